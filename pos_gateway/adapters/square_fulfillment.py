"""An order's fulfillment at Square: no POS shows an order that has none.

Sources, on developer.squareup.com: "Fulfillments", the objects FulfillmentPickupDetails,
FulfillmentDeliveryDetails, FulfillmentInStoreDetails (beta) and FulfillmentRecipient.

A DELIVERY is shown to sellers of Square's partners alone, and IN_STORE is in beta. So an order is a
PICKUP, by guest or courier, unless the merchant's ``pos`` says otherwise; the note says what the order is.
A recipient's name and phone number are required in words; whether Square refuses an order without a
number is open, so that an order is sent without one, and a refusal names ``customer.phone``.
"""

import re
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.domain.errors import ABSENT, FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Customer, Order

#: A recipient's phone_number: a number in the form of E.164, 17 characters at most. North American
#: ones have ten digits after the 1.
_PHONE = r"\+(?:1[2-9][0-9]{2}[2-9][0-9]{6}|[2-9][0-9]{7,14})"
FIELDS = {
    "delivery_as": PosField(
        "PICKUP, the default, or DELIVERY: the fulfillment of a delivery",
        "PICKUP|DELIVERY",
        required=False,
        names_pos=False,
    ),
    "dine_in_as": PosField(
        "PICKUP, the default, or IN_STORE: the fulfillment of an order to eat in",
        "PICKUP|IN_STORE",
        required=False,
        names_pos=False,
    ),
    "prep_minutes": PosField(
        "minutes until an order is ready, 1 to 999; a DELIVERY needs them",
        "[1-9][0-9]{0,2}",
        required=False,
        names_pos=False,
    ),
    "customer_phone": PosField(
        "a phone number like +14155552671, for customers without one that Square takes",
        _PHONE,
        required=False,
        names_pos=False,
    ),
}
#: Longest texts, from FulfillmentRecipient and the details of each type.
_RECIPIENT, _NOTE = 255, {"PICKUP": 500, "DELIVERY": 550, "IN_STORE": 500}
#: An order's ``fulfillment``, in small letters, by the type that says the same, and by the setting.
_SAID = {"PICKUP": "pickup", "DELIVERY": "delivery", "IN_STORE": "dinein"}
_SETTINGS = {"delivery": "delivery_as", "dinein": "dine_in_as"}
_BETWEEN = re.compile(r"[\s().-]+")


def problems(merchant: Merchant) -> list[FieldError]:
    """Errors between the fields of the merchant's ``pos``."""
    if merchant.pos.get("delivery_as") != "DELIVERY" or merchant.pos.get("prep_minutes"):
        return []
    problem = "must be given where delivery_as is DELIVERY: minutes until an order is ready"
    return [FieldError("pos.prep_minutes", problem, ABSENT)]


def fulfillment(order: Order, merchant: Merchant, handle: str) -> dict[str, Any]:
    """The order's only fulfillment. Raises Refused.

    Args:
        order: the order.
        merchant: the order's; ``pos`` has the types.
        handle: what the counter calls an order whose customer has no name.
    """
    given, customer = order.fulfillment or "", order.customer or Customer()
    word = re.sub("[^a-z]", "", given.lower())
    type_ = merchant.pos.get(_SETTINGS.get(word, ""), "PICKUP")
    recipient = {"display_name": lines.text(customer.name, _RECIPIENT, "customer.name") or handle}
    number, phone = _BETWEEN.sub("", customer.phone or ""), customer.phone
    if re.fullmatch(_PHONE, number):
        recipient["phone_number"], phone = number, None
    elif "customer_phone" in merchant.pos:
        recipient["phone_number"] = merchant.pos["customer_phone"]
    details: dict[str, Any] = {"recipient": recipient}
    if type_ != "IN_STORE":
        details["schedule_type"] = "ASAP"
        if "prep_minutes" in merchant.pos:
            details["prep_time_duration"] = f"PT{merchant.pos['prep_minutes']}M"
    if type_ == "DELIVERY":
        details["managed_delivery"] = True  # by a courier who has the address: the order has none
    is_said = re.sub(r"[\W_]+", "", given.lower()) == _SAID[type_]  # with no time or table beside
    if note := _note(None if is_said else given, phone, order, _NOTE[type_]):
        details["note"] = note
    return {"type": type_, "state": "PROPOSED", f"{type_.lower()}_details": details}


def _note(given: str | None, phone: str | None, order: Order, limit: int) -> str:
    """The order's ``fulfillment`` and the phone number, where no other field has either.

    The order's notes are added if they fit: they are whole in the first line, too.
    """
    words = " ".join(filter(None, (given, phone)))
    whole = lines.shortened(" ".join(filter(None, (words, order.notes))), limit + 1)
    if len(whole) <= limit:
        return whole
    return lines.text(words, limit, "fulfillment and customer.phone")
