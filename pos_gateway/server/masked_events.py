"""Events without personal data, for tokens that may not see it."""

from typing import Any

from pydantic_core import from_json

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.masking import MASK, masked, masked_reason
from pos_gateway.domain.order import Order

#: What begins an event's order. No text of a field before it has this: its quotes are escaped.
_ORDER = b',"order":'


def masked_event(body: bytes) -> dict[str, Any]:
    """An event with all masked that may be personal.

    Its order, the last field, is parsed by itself: within an event it may be nested too deeply.
    """
    head, _, order = body.partition(_ORDER)
    event: dict[str, Any] = from_json(head + b"}")
    if event.get("reason"):
        code, message = masked_reason(event["type"], event["reason"]["code"])
        event["reason"] |= {"code": code, "message": message}
    order = order.removesuffix(b"}")
    try:
        event["order"] = None if order == b"null" else masked(Order.parse_json(order))
    except InvalidOrder:
        event["order"] = MASK
    return event
