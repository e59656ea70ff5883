"""Requests to HubRise's API, and the words of a refusal.

Sources, on hubrise.com/developers/api: "General Concepts" (errors, private refs, rate limiting), "Orders". HubRise documents
500 requests a minute with a token, 2,500 an hour and 10,000 a day, and ten a minute for lists of orders.
"""

from datetime import datetime
from urllib.parse import quote, urlencode

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.replies import json_object, with_the_order
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request

#: The limit of a minute, for a shop's backlog; beyond the limits of an hour and a day HubRise answers 429. An order
#: is made, and looked up once. A callback has the order twice: before and after the change.
LIMITS = Limits(sustained=(500, 60.0), requests=2, request_bytes=2**20, callback_bytes=2**18)
#: Statuses of a refused order; 409 is documented nowhere.
REFUSALS = (400, 409, 422)
#: Maximum orders of a list: our only order, and orders by mistake.
_LISTED = 5
_JSON = {"Content-Type": "application/json"}
_CANCELLED = b'{"status":"cancelled"}'


def posting(content: bytes, order: Order, merchant: Merchant) -> Request:
    """Makes the order."""
    return Request("POST", _orders(merchant), content, _JSON, with_the_order(order))


def cancelling(known_as: str, merchant: Merchant) -> Request:
    """Cancels the order with HubRise's id ``known_as``."""
    url = f"{_orders(merchant)}/{quote(known_as, safe='')}"
    return Request("PATCH", url, _CANCELLED, _JSON, BODY_LIMIT)


def asking(known_as: str, merchant: Merchant) -> Request:
    """Asks for the order with HubRise's id ``known_as``."""
    url = f"{_orders(merchant)}/{quote(known_as, safe='')}"
    return Request("GET", url, expects=BODY_LIMIT)


def listing(private_ref: str, merchant: Merchant) -> Request:
    """Asks for the orders with this private ref."""
    query = urlencode({"private_ref": private_ref, "count": _LISTED})
    return Request("GET", f"{_orders(merchant)}?{query}", expects=BODY_LIMIT)


def listing_since(placed: datetime, count: int, cursor: str | None, merchant: Merchant) -> Request:
    """Asks for ``count`` of the orders placed since; ``cursor``: of the page before."""
    query = {"after": placed.isoformat(timespec="seconds"), "count": str(count)}
    query |= {} if cursor is None else {"cursor": cursor}
    return Request("GET", f"{_orders(merchant)}?{urlencode(query)}", expects=BODY_LIMIT)


def words(reply: Reply) -> str:
    """The words of an error: each field with the message, or the error's message."""
    found = json_object(reply) or {}
    errors = found.get("errors")
    each = (
        [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    )
    said = [f"{error.get('field')}: {error.get('message')}" for error in each]
    return "; ".join(said) or str(found.get("message") or f"HTTP {reply.status}")


def location_url(merchant: Merchant) -> str:
    """The merchant's location."""
    return f"{merchant.base_url}/locations/{merchant.pos['location_id']}"


def _orders(merchant: Merchant) -> str:
    return f"{location_url(merchant)}/orders"
