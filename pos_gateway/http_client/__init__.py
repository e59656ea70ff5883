"""The order backend's API over HTTP, for backends without AMQP. Needs requests and pydantic.

    from pos_gateway.http_client import HttpOrderClient

    client = HttpOrderClient("https://orders.example.com", token)
    client.submit(order)        # a dict as in docs/order.schema.json, or an Order
    client.cancel("o1", "m1")
    for event in client.events(after=position):
        ...

The API is in ``docs/http.md`` for backends in other languages.
"""

from pos_gateway.domain.submit_result import SubmitResult
from pos_gateway.http_client.orders import HttpOrderClient

__all__ = ["HttpOrderClient", "SubmitResult"]
