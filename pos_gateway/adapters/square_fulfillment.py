"""An order's fulfillment at Square: no POS shows an order that has none.

Sources, on developer.squareup.com: "Fulfillments", the objects FulfillmentPickupDetails,
FulfillmentDeliveryDetails, FulfillmentInStoreDetails (beta) and FulfillmentRecipient.

A DELIVERY is shown to sellers of Square's partners alone, and IN_STORE is in beta. So an order is a
PICKUP, by guest or courier, unless the merchant's ``pos`` says otherwise; the note says what the order is, and
all of address, courier, table and time that the fulfillment has no field for.
A recipient's name and phone number are required in words; whether Square refuses an order without a
number is open, so that an order is sent without one, and a refusal names ``customer.phone``.
"""

import re
from collections.abc import Iterable
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters import order_type as types
from pos_gateway.adapters.adapted import Words, texts, words
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.domain.errors import ABSENT, FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Customer, Order
from pos_gateway.domain.order_parts import Address, Courier, DeliveryInfo, OrderType

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
    "time_zone": lines.TIME_ZONE,
    "customer_phone": PosField(
        "a phone number like +14155552671, for customers without one that Square takes",
        _PHONE,
        required=False,
        names_pos=False,
    ),
}
#: Longest texts, from FulfillmentRecipient and the details of each type.
_RECIPIENT, _SUPPORT, _NOTE = 255, 17, {"PICKUP": 500, "DELIVERY": 550, "IN_STORE": 500}
#: The order's type by the fulfillment that says the same, and settings by the order's type.
_SAID: dict[str, OrderType] = {"PICKUP": "pickup", "DELIVERY": "delivery", "IN_STORE": "dine_in"}
_SETTINGS: dict[OrderType | None, str] = {"delivery": "delivery_as", "dine_in": "dine_in_as"}
_BETWEEN = re.compile(r"[\s().-]+")


def problems(merchant: Merchant) -> list[FieldError]:
    """Errors between the fields of the merchant's ``pos``, and in the time zone."""
    found = lines.time_problems(merchant)
    if merchant.pos.get("delivery_as") == "DELIVERY" and not merchant.pos.get("prep_minutes"):
        problem = "must be given where delivery_as is DELIVERY: minutes until an order is ready"
        found.append(FieldError("pos.prep_minutes", problem, ABSENT))
    return found


def fulfillment(order: Order, merchant: Merchant, handle: str) -> dict[str, Any]:
    """The order's only fulfillment. Raises Refused.

    Args:
        order: the order.
        merchant: the order's; ``pos`` has the types.
        handle: what the counter calls an order whose customer has no name.
    """
    customer = order.customer or Customer()
    is_of, type_ = _types(order, merchant)
    name = lines.text(customer.full_name, _RECIPIENT, "customer.name")
    recipient: dict[str, Any] = {"display_name": name or handle}
    if customer.email:
        recipient["email_address"] = customer.email
    if number := _number(customer) or merchant.pos.get("customer_phone"):
        recipient["phone_number"] = number
    details: dict[str, Any] = {"recipient": recipient}
    if type_ != "IN_STORE":
        details |= _times(order, merchant, type_)
    if type_ == "DELIVERY":
        fields, address = _delivery(order.delivery or DeliveryInfo())
        details |= fields
        recipient |= address
    if is_of == "curbside":
        details["is_curbside_pickup"] = True
    if note := _note(texts(note_words(order, merchant)), order, _NOTE[type_]):
        details["note"] = note
    return {"type": type_, "state": "PROPOSED", f"{type_.lower()}_details": details}


def note_words(order: Order, merchant: Merchant) -> list[Words]:
    """The words that no other field has: of the order's type, the phone number, the way to the guest.

    Raises Refused.
    """
    is_of, type_ = _types(order, merchant)
    customer = order.customer or Customer()
    found = _given(order, is_of, type_)
    if not _number(customer):
        found += words("customer.phone", customer.phone)
    if type_ == "IN_STORE":
        found += lines.time_words(order, merchant)
    if type_ != "DELIVERY" and order.delivery:
        found += lines.delivery_words(order.delivery)
    if order.dine_in:
        found += lines.table_words(order.dine_in)
    return found


def _types(order: Order, merchant: Merchant) -> tuple[OrderType | None, str]:
    """The order's type, and the fulfillment's. Raises Refused."""
    is_of, _ = types.order_type(order)
    return is_of, merchant.pos.get(_SETTINGS.get(is_of, ""), "PICKUP")


def _number(customer: Customer) -> str:
    """The customer's phone number in Square's form; empty without."""
    number = _BETWEEN.sub("", customer.phone or "")
    return number if re.fullmatch(_PHONE, number) else ""


def _given(order: Order, is_of: OrderType | None, type_: str) -> list[Words]:
    """The words of the order's type that the fulfillment does not say; with a time or table beside, whole."""
    is_said = is_of in (None, _SAID[type_], "pickup", "curbside")
    word = "" if is_said else str(is_of)
    if order.order_type:
        unsaid = words("fulfillment", types.unsaid(order, is_of))
        return [*words("order_type", word), *unsaid]
    # Without a text the order is of this type since it has the field of this name.
    unsaid = words("fulfillment", types.unsaid(order, is_of if is_said else None))
    return unsaid or words(word, word)


def _times(order: Order, merchant: Merchant, type_: str) -> dict[str, Any]:
    minutes = merchant.pos.get("prep_minutes") if order.prep_minutes is None else order.prep_minutes
    times: dict[str, Any] = {"schedule_type": "ASAP"}
    if order.scheduled_for:
        at = "deliver_at" if type_ == "DELIVERY" else "pickup_at"
        times = {"schedule_type": "SCHEDULED", at: order.scheduled_for.isoformat()}
    if minutes is not None:
        times["prep_time_duration"] = f"PT{minutes}M"
    return times


def _delivery(given: DeliveryInfo) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a DELIVERY, and of its recipient."""
    address, courier = given.address, given.courier or Courier()
    fields: dict[str, Any] = {}
    if address is None or given.courier:  # a courier carries the order, and has the address
        fields["managed_delivery"] = True
    if given.instructions:
        fields["dropoff_notes"] = lines.text(
            given.instructions, _NOTE["DELIVERY"], "delivery.instructions"
        )
    if given.contactless is not None:
        fields["is_no_contact_delivery"] = given.contactless
    texts = {
        "courier_provider_name": (courier.name, _RECIPIENT, "delivery.courier.name"),
        "courier_support_phone_number": (courier.phone, _SUPPORT, "delivery.courier.phone"),
        "external_delivery_id": (courier.reference, 50, "delivery.courier.reference"),
    }
    for name, (value, limit, path) in texts.items():
        if value:
            fields[name] = lines.text(value, limit, path)
    return fields, {"address": _address(address)} if address else {}


def _address(given: Address) -> dict[str, str]:
    texts = {
        "address_line_1": given.line1,
        "address_line_2": given.line2,
        "locality": given.city,
        "administrative_district_level_1": given.region,
        "postal_code": given.postal_code,
        "country": given.country,
    }
    return {name: lines.shortened(value, 4096) for name, value in texts.items() if value}


def _note(parts: Iterable[str], order: Order, limit: int) -> str:
    """The note. The order's notes are added if they fit: they are whole in the first line, too."""
    said = " ".join(parts)
    whole = lines.shortened(" ".join(filter(None, (said, order.notes))), limit + 1)
    if len(whole) <= limit:
        return whole
    return lines.text(said, limit, "fulfillment, customer.phone, delivery and dine_in")
