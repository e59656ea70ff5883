"""An order as Square's CreateOrder takes it: OrderLineItem, OrderLineItemModifier and a fulfillment.

Each text is sent whole, or the order is refused: see ``lines.text``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.adapters.square_api import encoded, key
from pos_gateway.adapters.square_fulfillment import fulfillment
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Modifier, Order

#: Longest texts, from OrderLineItem and OrderLineItemModifier; reference_id and ticket_name, from
#: Order.
_NAME, _MODIFIER, _NOTE, REFERENCE, _TICKET = 512, 255, 2000, 40, 30


def creation(order: Order, merchant: Merchant) -> bytes:
    """The body of a CreateOrder. Raises Refused."""
    if order.tip and not order.total:
        problem = "tip: Square records a tip with a payment, and an order of 0 has no payment"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    handle = lines.display_id(order, _TICKET)
    content: dict[str, Any] = {
        "location_id": merchant.pos["location_id"],
        # Private to the application that wrote it, up to 255 characters: look-ups use it.
        "metadata": {"order_id": order.order_id, "merchant_id": order.merchant_id},
        "line_items": [
            _line(order, item, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
        "fulfillments": [fulfillment(order, merchant, handle or order.order_id)],
    }
    if len(order.order_id) <= REFERENCE:
        content["reference_id"] = order.order_id
    if handle:
        content["ticket_name"] = handle
    elif order.customer and order.customer.name:
        content["ticket_name"] = lines.shortened(order.customer.name, _TICKET)
    return encoded({"idempotency_key": key(order), "order": content})


def _line(order: Order, item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    known_as = merchant.pos_id(item.sku)
    folded = _is_folded(item)
    line: dict[str, Any] = {
        **_named(known_as, lambda: lines.name(item, _NAME, path)),
        "quantity": str(item.quantity),
        "base_price_money": {"amount": price(item), "currency": order.currency},
        "modifiers": [
            {
                **_named(
                    merchant.pos_id(modifier.sku) if known_as else None,
                    partial(_modifier_name, modifier, f"{path}.modifiers[{number}].name"),
                ),
                "quantity": str(modifier.quantity),
                "base_price_money": {
                    "amount": 0 if folded else modifier.unit_price,
                    "currency": order.currency,
                },
            }
            for number, modifier in enumerate(item.modifiers)
        ],
    }
    note = lines.notes(order, item, _NOTE, path)
    return {**line, "note": note} if note else line


def _is_folded(item: Item) -> bool:
    """Whether the item's price includes its modifiers': money is unsigned, and one is a discount."""
    return any(modifier.unit_price < 0 for modifier in item.modifiers)


def price(item: Item) -> int:
    """The price of one unit as it is sent."""
    return item.price if _is_folded(item) else item.unit_price


def _modifier_name(modifier: Modifier, path: str) -> str:
    return lines.text(modifier.name, _MODIFIER, path) or "modifier"


def _named(known_as: str | None, name: Callable[[], str]) -> dict[str, str]:
    """The catalog id if there is one, else the name: Square's name wins over ours."""
    return {"name": name()} if known_as is None else {"catalog_object_id": known_as}
