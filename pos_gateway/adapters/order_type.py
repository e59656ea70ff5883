"""An order's type: pickup, delivery, dine-in or curbside, by whichever field says so."""

import re

from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.order import Order
from pos_gateway.domain.order_parts import OrderType

#: An order's ``fulfillment`` in small letters, where no ``order_type`` is given.
_HINTS: dict[str, OrderType] = {
    "delivery": "delivery",
    "dinein": "dine_in",
    "curbside": "curbside",
    "curbsidepickup": "curbside",
}
_PICKUP = frozenset({"pickup", "takeout", "takeaway", "collection"})


def order_type(order: Order) -> tuple[OrderType | None, str]:
    """The order's type, and the field that says so; None: a type of the backend's own, or no type.

    Raises:
        Refused: the order has ``delivery`` or ``dine_in``, and is of another type.
    """
    ways: dict[OrderType, bool] = {
        "delivery": order.delivery is not None and bool(order.delivery.model_fields_set),
        "dine_in": order.dine_in is not None and bool(order.dine_in.model_fields_set),
    }
    type_, named = _said(order, ways)
    for name, is_given in ways.items():
        if is_given and type_ != name:
            problem = f"{name}: the order's {named} is {type_ or order.fulfillment}"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    return type_, named


def _said(order: Order, ways: dict[OrderType, bool]) -> tuple[OrderType | None, str]:
    if order.order_type:
        return order.order_type, "order_type"
    text = order.fulfillment if isinstance(order.fulfillment, str) else ""
    if word := re.sub("[^a-z]", "", text.lower()):
        return _HINTS.get(word), "fulfillment"
    return next((name for name, is_given in ways.items() if is_given), None), "fulfillment"


def unsaid(order: Order, type_: OrderType | None) -> str:
    """The text of ``fulfillment`` where ``type_`` does not say the same, else empty.

    A text with a time or a table beside its hint is kept whole.
    """
    text = order.fulfillment.strip() if isinstance(order.fulfillment, str) else ""
    word = re.sub(r"[\W_]+", "", text.lower())
    if word in _PICKUP:
        return "" if type_ in (None, "pickup") else text
    return "" if type_ is not None and _HINTS.get(word) == type_ else text
