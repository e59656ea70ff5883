"""The order backend's API. Needs kombu and pydantic, and nothing else of the gateway's libraries.

    from pos_gateway.client import OrderClient

    client = OrderClient("amqp://...")
    client.submit(order)        # a dict as in docs/order.schema.json, or an Order
    client.submit(order, again=True)  # it may be at the gateway already, and may be late by now
    client.submit_many(orders)  # a result for each
    client.cancel("o1", "m1")

``client.outbox`` submits what a database transaction commits, ``client.events`` has the events'
types, ``client.aio`` an interface for asyncio. The message format is in ``docs/wire-format.md`` for
backends in other languages.
"""

from pos_gateway.client.orders import (
    CANCEL_FOR,
    OrderClient,
    home_of,
    in_canary,
    require_readable,
    require_submittable,
)
from pos_gateway.domain.submit_result import SubmitResult

__all__ = [
    "CANCEL_FOR",
    "OrderClient",
    "SubmitResult",
    "home_of",
    "in_canary",
    "require_readable",
    "require_submittable",
]
