"""Transactional enqueue: an order is submitted if, and only if, the backend's transaction commits.

    from pos_gateway.client import OrderClient, outbox

    with engine.begin() as connection:          # SQLAlchemy, Django or a plain DB-API connection
        connection.execute(insert(orders), ...)
        outbox.add(connection, order)           # raises InvalidOrder here, in the request

    outbox.Relay(OrderClient(), database_url).start()    # or: pos-gateway outbox relay

``add`` and ``cancel`` write a row of the table ``pos_gateway_outbox`` into the backend's own
database. A relay submits what is committed, at least once, each order's rows in the order in which
they were written. ``docs/outbox.md`` has the guarantees.
"""

from pos_gateway.client.outbox.adding import add, cancel
from pos_gateway.client.outbox.relay import Relay
from pos_gateway.client.outbox.store import Lag, lag
from pos_gateway.client.outbox.table import TABLE, Dialect, ddl

__all__ = ["TABLE", "Dialect", "Lag", "Relay", "add", "cancel", "ddl", "lag"]
