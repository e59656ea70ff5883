"""Many outcomes' events in one transaction, with their orders, as if they had come at once."""

import time

from sqlalchemy import Engine, text

from loadtests.bench import orders
from pos_gateway.domain.order import Order
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault

#: Whose they are: a merchant without a record.
MERCHANT = "bulk"

_ORDERS = """
insert into orders (merchant_id, order_id, action, state, ticket, epoch, attempts, deaths, pending,
                    reopened, created_at, updated_at, payload)
select :merchant, :name || '-' || n, 'submit', 'accepted', 0, 1, 1, 0, false, 0, :now, :now, :payload
from generate_series(1, :count) n"""

_EVENTS = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, attempts)
select :name || '-' || n, 'accepted', :merchant, :name || '-' || n, :now, 'pos-1', 1
from generate_series(1, :count) n"""


def write(engine: Engine, name: str, count: int) -> float:
    """Write ``count`` events, ``name-1`` and on; when they were committed, by the wall clock."""
    order = Order.parse(orders.place("order", MERCHANT))
    payload = Payloads(Vault()).seal(Key(MERCHANT, "order"), order.to_json())
    values = {"merchant": MERCHANT, "name": name, "now": time.time(), "count": count}
    with engine.begin() as connection:
        connection.execute(text(_ORDERS), {**values, "payload": payload})
        connection.execute(text(_EVENTS), values)
    return time.time()
