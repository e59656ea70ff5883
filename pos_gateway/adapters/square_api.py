"""Requests to Square's API, and the words of a refusal.

Sources, on developer.squareup.com: "Versioning in Square APIs", "Idempotency", "Handling errors",
"ErrorCode".
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import json_object, with_the_order
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request

#: The API's version: of Square's SDK 46.0.0, the first here with IN_STORE fulfillments and nested
#: modifiers. Without the header the version is the application's own setting.
VERSION = "2026-09-16"
_VERSION = {"Square-Version": VERSION}
JSON = {**_VERSION, "Content-Type": "application/json"}

#: Square does not publish rate limits.
LIMITS = Limits(request_bytes=2**20)
#: Maximum characters of a payment's or a refund's key ("CreatePayment", "RefundPayment").
_SHORT = 45

#: ErrorCode: those that reject an order. Any other is OTHER.
REJECTIONS: Mapping[str, Rejection] = {
    "BAD_REQUEST": Rejection.INVALID_ORDER,
    "MISSING_REQUIRED_PARAMETER": Rejection.INVALID_ORDER,
    "INCORRECT_TYPE": Rejection.INVALID_ORDER,
    "INVALID_VALUE": Rejection.INVALID_ORDER,
    "CONFLICTING_PARAMETERS": Rejection.INVALID_ORDER,
    "VALUE_TOO_SHORT": Rejection.INVALID_ORDER,
    "VALUE_TOO_LONG": Rejection.INVALID_ORDER,
    "VALUE_TOO_LOW": Rejection.INVALID_ORDER,
    "VALUE_TOO_HIGH": Rejection.INVALID_ORDER,
    "VALUE_EMPTY": Rejection.INVALID_ORDER,
    "ARRAY_LENGTH_TOO_LONG": Rejection.INVALID_ORDER,
    "ARRAY_EMPTY": Rejection.INVALID_ORDER,
    "INVALID_ENUM_VALUE": Rejection.INVALID_ORDER,
    "UNPROCESSABLE_ENTITY": Rejection.INVALID_ORDER,
    "LOCATION_MISMATCH": Rejection.OTHER,
    "INVALID_PHONE_NUMBER": Rejection.INVALID_ORDER,
    "NOT_FOUND": Rejection.ITEM_UNAVAILABLE,
}


def asking(url: str) -> Request:
    """A request that changes nothing."""
    return Request("GET", url, None, _VERSION, BODY_LIMIT)


def changing(method: str, url: str, content: bytes, order: Order) -> Request:
    """A request that may change something, and whose reply may repeat the order."""
    return Request(method, url, content, JSON, with_the_order(order))


def order_url(known_as: object, merchant: Merchant) -> str:
    """The URL of the order with Square's id ``known_as``."""
    return f"{merchant.base_url}/v2/orders/{quote(str(known_as or ''), safe='')}"


def key(order: Order, what: str = "create") -> str:
    """Unique among all orders of the application: two merchants may use the same order id."""
    whole = f"{order.merchant_id}\n{order.order_id}\n{what}"
    return hashlib.sha256(whole.encode()).hexdigest()


def short_key(order: Order, what: str) -> str:
    """As ``key``, for a payment or a refund."""
    return key(order, what)[:_SHORT]


def encoded(value: dict[str, Any]) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def error(reply: Reply) -> tuple[str, str]:
    """Code and words of the first error, which the status belongs to."""
    errors = (json_object(reply) or {}).get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first, dict):
        return f"HTTP_{reply.status}", ""
    return str(first.get("code")), f"{first.get('field') or ''} {first.get('detail') or ''}".strip()


def refused(code: str, words: str) -> Outcome:
    """The rejection for an ErrorCode."""
    return rejected(REJECTIONS.get(code, Rejection.OTHER), words)
