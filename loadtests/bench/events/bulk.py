"""Many outcomes' events in one transaction, behind their orders, as if they had come at once."""

import time
from collections.abc import Iterator

from sqlalchemy import Engine, text

from loadtests.bench import orders
from pos_gateway.domain.order import Order
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault

#: Whose they are: a merchant without a record.
MERCHANT = "bulk"
#: Rows of a statement.
_ROWS = 10_000

_ORDERS = """
insert into orders (merchant_id, order_id, action, state, ticket, epoch, attempts, deaths, pending,
                    reopened, created_at, updated_at, payload)
select :merchant, :name || '-' || n, 'submit', 'accepted', 0, 1, 1, 0, false, 0, :now, :now, :payload
from generate_series(cast(:first as bigint), cast(:last as bigint)) n"""

_EVENTS = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, attempts)
select :name || '-' || n, 'accepted', :merchant, :name || '-' || n, :now, 'pos-1', 1
from generate_series(cast(:first as bigint), cast(:last as bigint)) n"""


def write(engine: Engine, name: str, count: int) -> float:
    """Write ``count`` events, ``name-1`` and on, behind their orders; when they were committed."""
    write_orders(engine, name, count)
    return write_events(engine, name, count)


def write_orders(engine: Engine, name: str, count: int) -> None:
    """Write the orders alone, all of them accepted."""
    order = Order.parse(orders.place("order", MERCHANT))
    payload = Payloads(Vault()).seal(Key(MERCHANT, "order"), order.to_json())
    with engine.begin() as connection:
        for values in _parts(name, count):
            connection.execute(text(_ORDERS), {**values, "payload": payload})


def write_events(engine: Engine, name: str, count: int) -> float:
    """Write the events of orders that are there; when they were committed, by the wall clock."""
    with engine.begin() as connection:
        for values in _parts(name, count):
            connection.execute(text(_EVENTS), values)
    return time.time()


def _parts(name: str, count: int) -> Iterator[dict[str, object]]:
    """Numbers of rows that one statement writes within its limit of time."""
    for first in range(1, count + 1, _ROWS):
        last = min(count, first + _ROWS - 1)
        yield {"merchant": MERCHANT, "name": name, "now": time.time(), "first": first, "last": last}
