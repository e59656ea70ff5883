"""Acts on every status event once, in order, over HTTP, by its type. Needs pos-gateway alone.

    POS_GATEWAY_HTTP_URL=https://orders.example.com POS_GATEWAY_TOKEN=... python http_consumer.py shop.db

Over AMQP: consumer.py, whose ``apply`` can use ``events.parse`` likewise.
"""

import sqlite3
import sys

from pos_gateway.client import events
from pos_gateway.client.events import OrderAccepted, OrderRejected
from pos_gateway.http_client import HttpOrderClient

TABLES = """
create table if not exists applied (position integer not null);
create table if not exists orders (merchant_id text, order_id text, status text, note text,
                                   primary key (merchant_id, order_id));
"""


def apply(database, event):
    """Everything that follows from the event, in the transaction that it is called in."""
    match event:
        case OrderAccepted(external_id=pos_id):
            status, note = "in the kitchen", pos_id
        case OrderRejected(reason=reason):
            status, note = "refund", reason.message if reason else None
        case _ if event.is_terminal:  # cancelled, expired, failed
            status, note = "refund", event.type
        case _:  # pending, in doubt, preparing, ..., and what a later gateway has
            status, note = event.type.removeprefix("order."), None
    database.execute(
        "insert into orders values (?, ?, ?, ?) on conflict (merchant_id, order_id) "
        "do update set status = excluded.status, note = excluded.note",
        (event.merchant_id, event.order_id, status, note),
    )


def consume(client, database):
    """Apply each event with its position, for ever."""
    (last,) = database.execute("select coalesce(max(position), 0) from applied").fetchone()
    for received in client.events(after=last):
        event = events.parse(received)
        database.execute("begin immediate")
        with database:  # commits, or rolls all of it back
            apply(database, event)
            database.execute("delete from applied")
            database.execute("insert into applied values (?)", (event.position,))
        print(event.position, event.type, event.order_id, flush=True)


if __name__ == "__main__":
    shop = sqlite3.connect(sys.argv[1], isolation_level=None)
    shop.executescript(TABLES)
    with HttpOrderClient() as gateway:
        consume(gateway, shop)
