"""An order as Square's CreateOrder takes it: OrderLineItem, OrderLineItemModifier and a pickup.

Each text is sent whole, or the order is refused: see ``lines.text``.
"""

import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Customer, Item, Modifier, Order

#: Longest texts, from OrderLineItem and OrderLineItemModifier; reference_id and ticket_name, from
#: Order; display_name and note, from FulfillmentPickupDetails.
_NAME, _MODIFIER, _NOTE, _REFERENCE, _TICKET = 512, 255, 2000, 40, 30
_RECIPIENT, _PICKUP_NOTE = 255, 500
#: phone_number: a number in the form of E.164. North American ones have ten digits after the 1.
_PHONE = re.compile(r"\+(?:1[2-9][0-9]{2}[2-9][0-9]{6}|[2-9][0-9]{7,14})")
_BETWEEN = re.compile(r"[\s().-]+")


def creation(order: Order, merchant: Merchant) -> bytes:
    """The body of a CreateOrder. Raises Refused."""
    content: dict[str, Any] = {
        "location_id": merchant.pos["location_id"],
        # Private to the application that wrote it, up to 255 characters: look-ups use it.
        "metadata": {"order_id": order.order_id, "merchant_id": order.merchant_id},
        "line_items": [
            _line(order, item, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
    }
    if len(order.order_id) <= _REFERENCE:
        content["reference_id"] = order.order_id
    if order.customer and order.customer.name:
        content["ticket_name"] = lines.shortened(order.customer.name, _TICKET)
        if order.fulfillment == "pickup":
            content["fulfillments"] = [_pickup(order, order.customer)]
    return encoded({"idempotency_key": key(order), "order": content})


def _pickup(order: Order, customer: Customer) -> dict[str, Any]:
    recipient = {"display_name": lines.text(customer.name, _RECIPIENT, "customer.name")}
    said, phone = customer.phone, _BETWEEN.sub("", customer.phone or "")
    if _PHONE.fullmatch(phone):
        said, recipient["phone_number"] = None, phone
    details: dict[str, Any] = {"schedule_type": "ASAP", "recipient": recipient}
    # Square would reject the order for a number of another form, which goes into the note. The order's
    # notes are whole in its first line, too.
    parts = filter(None, (said, order.notes))
    note = lines.shortened(" ".join(parts), _PICKUP_NOTE + 1)
    if len(note) > _PICKUP_NOTE:
        note = lines.text(said, _PICKUP_NOTE, "customer.phone")
    if note:
        details["note"] = note
    return {"type": "PICKUP", "state": "PROPOSED", "pickup_details": details}


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
    return lines.unit_price(item) if _is_folded(item) else item.unit_price


def _modifier_name(modifier: Modifier, path: str) -> str:
    return lines.text(modifier.name, _MODIFIER, path) or "modifier"


def _named(known_as: str | None, name: Callable[[], str]) -> dict[str, str]:
    """The catalog id if there is one, else the name: Square's name wins over ours."""
    return {"name": name()} if known_as is None else {"catalog_object_id": known_as}


def key(order: Order, what: str = "create") -> str:
    """Unique among all orders of the application: two merchants may use the same order id."""
    whole = f"{order.merchant_id}\n{order.order_id}\n{what}"
    return hashlib.sha256(whole.encode()).hexdigest()


def encoded(value: dict[str, Any]) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()
