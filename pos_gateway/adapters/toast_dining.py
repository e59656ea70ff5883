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
from pos_gateway.adapters import order_type as types
from pos_gateway.adapters.adapted import Words, texts, words
from pos_gateway.adapters.pos_fields import GUID, PosField
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.order_parts import Address, DeliveryInfo, OrderType

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
#: Maximum characters of a text of an address: not documented.
_TEXT, _NOTES = 255, 1000


def dining(order: Order, merchant: Merchant) -> dict[str, Any]:
    """Fields of the order: ``diningOption``, ``deliveryInfo`` and the like. Raises Refused."""
    type_, named = types.order_type(order)
    option = _option(type_, order, merchant, named)
    fields: dict[str, Any] = {"diningOption": {"guid": option, "entityType": "DiningOption"}}
    if type_ == "delivery":
        fields["deliveryInfo"] = _delivery(order.delivery or DeliveryInfo(), named)
    if order.dine_in:
        if re.fullmatch(GUID, order.dine_in.table or ""):
            fields["table"] = {"guid": order.dine_in.table}
        if order.dine_in.guests:
            fields["numberOfGuests"] = order.dine_in.guests
    if type_ == "curbside":  # an order does not say how the guest arrives
        fields["curbsidePickupInfo"] = {"transportDescription": "Curbside pickup"}
    if order.scheduled_for:
        written = stamp(order.scheduled_for)
        fields |= {"promisedDate": written, "openedDate": written}
    return fields


def unsaid(order: Order, merchant: Merchant) -> list[Words]:
    """The text of ``fulfillment`` where no field that is sent says the same."""
    type_ = types.order_type(order)[0]
    is_sent = type_ != "dine_in" or "dine_in_dining_option" in merchant.pos
    return words("fulfillment", types.unsaid(order, type_ if is_sent else None))


def _option(type_: OrderType | None, order: Order, merchant: Merchant, named: str) -> str:
    """The GUID of the dining option.

    A dine-in order that says so by ``fulfillment`` alone may have the merchant's only one.
    """
    setting = f"{type_}_dining_option"
    if setting not in FIELDS:
        return merchant.pos["dining_option"]
    is_hint = type_ == "dine_in" and not (order.order_type or order.dine_in)
    if setting in merchant.pos or is_hint:
        return merchant.pos.get(setting, merchant.pos["dining_option"])
    problem = f"{named} is {type_}: give the merchant pos.{setting}"
    raise Refused(Rejection.UNSUPPORTED_FIELD, problem)


def _delivery(given: DeliveryInfo, named: str) -> dict[str, Any]:
    if given.address is None:
        problem = f"{named} is delivery, and the order has no delivery.address: Toast requires one"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    if given.courier is not None and given.courier.model_fields_set:
        problem = "delivery.courier: Toast has no place for a courier"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    note = lines.text(
        " / ".join(texts(lines.handover_words(given))), _NOTES, "delivery.instructions"
    )
    return {**_address(given.address), **({"notes": note} if note else {})}


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


def stamp(when: datetime) -> str:
    """A time in Toast's form."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.000%z")
