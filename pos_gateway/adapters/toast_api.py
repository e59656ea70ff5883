"""Requests to Toast's orders API, and the words of a refusal.

Sources, on doc.toasttab.com: "Handling request timeouts for the orders API", "Rate limiting", "API
responses and errors", and the orders API reference (ErrorMessage).
"""

from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote, urlencode

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import json_object, with_the_order
from pos_gateway.adapters.toast_dining import stamp
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request

#: "Handling request timeouts for the orders API". "Rate limiting": both of a location.
LIMITS = Limits(
    longest_reply=30.0,
    per_second=20.0,
    sustained=(10_000, 15 * 60.0),
    per_location=True,
    requests=4,  # prices, restaurant, stock, creation
    request_bytes=2**20,
    callback_bytes=2**20,  # "Orders webhook": over 600 kB
)
#: ErrorMessage.code. Toast publishes no list; this one is in "API responses and errors".
REJECTIONS: Mapping[str, Rejection] = {"10025": Rejection.PAYMENT_REQUIRED}
#: Statuses of a refused order.
REFUSALS = (400, 422)
_VOID = b'{"selections":{"voidAll":true},"payments":{"voidAll":true}}'


def posting(path: str, content: bytes, order: Order, merchant: Merchant) -> Request:
    """A POST of the order to ``/prices``, which makes nothing, or to ``/orders``, which makes the order."""
    given = {**headers(merchant), "Content-Type": "application/json"}
    url, most = _orders(merchant) + path, with_the_order(order)
    return Request("POST", url, content, given, most, is_search=path == "/prices")


def voiding(guid: str | None, order: Order, merchant: Merchant) -> Request:
    """A void of the order with Toast's id ``guid``, and of the order's payments."""
    return posting(f"/orders/{quote(guid or '', safe='')}/void", _VOID, order, merchant)


def asking(external_id: str, merchant: Merchant) -> Request:
    """A look-up of the order with this external identifier."""
    url = f"{_orders(merchant)}/orders/{quote(external_id, safe='')}"
    return Request("GET", url, headers=headers(merchant), expects=BODY_LIMIT)


def listing(since: datetime, until: datetime, size: int, page: int, merchant: Merchant) -> Request:
    """Asks for a page, counted from 1, of the orders changed between the two times."""
    query = {"startDate": stamp(since), "endDate": stamp(until), "pageSize": size, "page": page}
    url = f"{_orders(merchant)}/ordersBulk?{urlencode(query)}"
    return Request("GET", url, headers=headers(merchant), expects=BODY_LIMIT)


def error(reply: Reply) -> tuple[str, str]:
    """Code and words of an ErrorMessage; the words are empty without one."""
    found = json_object(reply) or {}
    words = filter(None, (found.get("message"), found.get("developerMessage")))
    return str(found.get("code")), " / ".join(map(str, words))[:1000]


def refused(code: str, words: str, status: int) -> Outcome:
    """The rejection for an ErrorMessage of a reply with this status."""
    said = f"{code} {words or f'HTTP {status}'}"
    return rejected(REJECTIONS.get(code, Rejection.INVALID_ORDER), said)


def _orders(merchant: Merchant) -> str:
    return f"{merchant.base_url}/orders/v2"


def headers(merchant: Merchant) -> dict[str, str]:
    """The headers of every request: the restaurant."""
    return {"Toast-Restaurant-External-ID": merchant.pos["restaurant"]}
