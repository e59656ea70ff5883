"""How an order at Toast reaches its guest, and when: dining option, address, table, promised time.

Sources, on doc.toasttab.com: "Order details based on the order dining option", "Scheduling future orders";
the orders API's definition (Order, DeliveryInfo, CurbsidePickupInfo). A dining option has a behavior:
TAKE_OUT, DELIVERY or DINE_IN. Which one ``pos.dining_option`` has is the merchant's matter: orders of
no type have it, and pickups. A delivery is made at an address alone, by ``pos.delivery_dining_option``.
An order for later has its promised time as ``openedDate``, too, as both documents want it: the business
day is that one. Toast holds the order until its preparation begins (``FUTURE``).
"""

import re
from datetime import datetime
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.further_fields import Address, FurtherFields
from pos_gateway.adapters.pos_fields import GUID, PosField
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order

FIELDS = {
    "dining_option": PosField(
        "the GUID of the dining option for these orders", GUID, names_pos=False
    ),
    "delivery_dining_option": PosField(
        "the GUID of the dining option for deliveries", GUID, required=False, names_pos=False
    ),
    "dine_in_dining_option": PosField(
        "the GUID of the dining option for orders to eat in", GUID, required=False, names_pos=False
    ),
}
#: An order's ``fulfillment`` in small letters, where no ``order_type`` is given.
_HINTS = {
    "delivery": "delivery",
    "dinein": "dine_in",
    "curbside": "curbside",
    "curbsidepickup": "curbside",
}
_PICKUP = frozenset({"pickup", "takeout", "takeaway", "collection"})
#: Maximum characters of a text of an address: not documented.
_TEXT, _NOTES = 255, 1000


def dining(order: Order, further: FurtherFields, merchant: Merchant) -> dict[str, Any]:
    """Fields of the order: ``diningOption``, ``deliveryInfo`` and the like. Raises Refused."""
    type_, named = _type(order, further)
    for name, is_given in (("delivery", further.delivery), ("dine_in", further.dine_in)):
        if is_given and type_ != name:
            problem = f"{name}: the order's {named} is {type_ or order.fulfillment}"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    option = _option(type_, further, merchant, named)
    fields: dict[str, Any] = {"diningOption": {"guid": option, "entityType": "DiningOption"}}
    if further.delivery:
        notes = [further.delivery.instructions, "contactless" * further.delivery.contactless]
        fields["deliveryInfo"] = _address(further.delivery.address)
        if note := lines.text(" / ".join(filter(None, notes)), _NOTES, "delivery.instructions"):
            fields["deliveryInfo"]["notes"] = note
    elif type_ == "delivery":
        problem = f"{named} is delivery, and the order has no delivery.address: Toast requires one"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    if further.dine_in:
        if re.fullmatch(GUID, further.dine_in.table or ""):
            fields["table"] = {"guid": further.dine_in.table}
        if further.dine_in.guests:
            fields["numberOfGuests"] = further.dine_in.guests
    if type_ == "curbside":  # an order does not say how the guest arrives
        fields["curbsidePickupInfo"] = {"transportDescription": "Curbside pickup"}
    if further.scheduled_for:
        fields |= _promised(further.scheduled_for, order)
    return fields


def unsaid(order: Order, further: FurtherFields, merchant: Merchant) -> str:
    """The text of ``fulfillment`` where no other field says the same, else empty.

    A text with a time or a table beside its hint is kept whole.
    """
    text = order.fulfillment.strip() if isinstance(order.fulfillment, str) else ""
    type_, word = _type(order, further)[0], re.sub(r"[\W_]+", "", text.lower())
    if word in _PICKUP:
        return "" if type_ in (None, "pickup") else text
    is_sent = type_ != "dine_in" or "dine_in_dining_option" in merchant.pos
    return "" if type_ is not None and _HINTS.get(word) == type_ and is_sent else text


def _type(order: Order, further: FurtherFields) -> tuple[str | None, str]:
    """The order's type, and the field that says it; None: a type of the backend's own, or none."""
    if further.order_type:
        return further.order_type, "order_type"
    word = _word(order)
    if not word:
        implied = (("delivery", further.delivery), ("dine_in", further.dine_in))
        return next((name for name, is_given in implied if is_given), None), "fulfillment"
    return _HINTS.get(word), "fulfillment"


def _word(order: Order) -> str:
    """The small letters of ``fulfillment``."""
    text = order.fulfillment if isinstance(order.fulfillment, str) else ""
    return re.sub("[^a-z]", "", text.lower())


def _option(type_: str | None, further: FurtherFields, merchant: Merchant, named: str) -> str:
    """The GUID of the dining option.

    A dine-in order that says so by ``fulfillment`` alone may have the merchant's only one.
    """
    setting = f"{type_}_dining_option"
    if setting not in FIELDS:
        return merchant.pos["dining_option"]
    is_hint = type_ == "dine_in" and not (further.order_type or further.dine_in)
    if setting in merchant.pos or is_hint:
        return merchant.pos.get(setting, merchant.pos["dining_option"])
    problem = f"{named} is {type_}: give the merchant pos.{setting}"
    raise Refused(Rejection.UNSUPPORTED_FIELD, problem)


def _address(given: Address) -> dict[str, Any]:
    state = (given.region or "").strip().upper()
    if not re.fullmatch("[A-Z]{2}", state):
        problem = (
            "delivery.address.region must be the two letters of a state, like MA: Toast requires it"
        )
        raise Refused(Rejection.INVALID_ORDER, problem)
    texts = {
        "address1": ("line1", given.line1),
        "address2": ("line2", given.line2),
        "city": ("city", given.city),
        "zipCode": ("postal_code", given.postal_code),
        "country": ("country", given.country),
    }
    found = {
        name: lines.text(value, _TEXT, f"delivery.address.{ours}")
        for name, (ours, value) in texts.items()
    }
    return {**{name: value for name, value in found.items() if value}, "state": state}


def _promised(when: datetime, order: Order) -> dict[str, str]:
    if when < order.placed_at:
        raise Refused(Rejection.INVALID_ORDER, "scheduled_for is before placed_at")
    written = stamp(when)
    return {"promisedDate": written, "openedDate": written}


def stamp(when: datetime) -> str:
    """A time in Toast's form."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.000%z")
