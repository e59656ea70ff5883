"""Rules between the fields of an order, beyond the tables of fields.

*Document*, in descriptions: one fulfillment, with the details of its type; ``pickup_at`` or
``deliver_at`` of a scheduled one (the default), ``prep_time_duration`` of an ASAP delivery;
a recipient's name and phone, a delivery's address as well, unless the delivery is managed by a third
party or the recipient is a Square customer; an ad hoc part's price; either percentage or amount.
*Judgement*: a number has 9 to 16 digits after its ``+`` (the document's rule for payments);
references between the parts of an order must meet; each amount is in the location's currency.
"""

import re
from collections.abc import Iterator
from typing import Any

from testkit.vendors.square.refusals import Refused

Json = dict[str, Any]
_DETAILS = {
    "PICKUP": "pickup_details",
    "DELIVERY": "delivery_details",
    "SHIPMENT": "shipment_details",
    "IN_STORE": "in_store_details",
}
#: Fields of which a part has exactly one, unless the part is of the catalog.
_ONE_OF = {
    "taxes": ("percentage",),
    "discounts": ("percentage", "amount_money"),
    "service_charges": ("percentage", "amount_money"),
}
_PHONE = re.compile(r"\+?[0-9 ().-]+")


def check(order: Json, currency: str, *, needs_recipient: bool) -> None:
    """Raises Refused for a broken rule.

    Args:
        order: valid by the tables.
        currency: the location's.
        needs_recipient: recipients need the fields that the document requires in words alone.
    """
    for money, path in _moneys(order, "order"):
        if money["currency"] != currency:
            detail = f"{money['currency']} is not the location's currency, {currency}"
            raise Refused("INVALID_VALUE", detail, f"{path}.currency")
    for name, fields in _ONE_OF.items():
        for number, each in enumerate(order.get(name) or ()):
            is_catalogs = each.get("catalog_object_id") is not None
            if not is_catalogs and sum(each.get(field) is not None for field in fields) != 1:
                detail = f"exactly one of {', '.join(fields)}"
                raise Refused("INVALID_VALUE", detail, f"order.{name}[{number}]")
            if each.get("calculation_phase") == "TOTAL_PHASE" and each.get("taxable"):
                detail = "a charge of the TOTAL_PHASE cannot be taxable"
                raise Refused("INVALID_VALUE", detail, f"order.{name}[{number}].taxable")
    _references(order)
    for number, each in enumerate(order.get("fulfillments") or ()):
        _fulfillment(each, f"order.fulfillments[{number}]", needs_recipient=needs_recipient)


def _moneys(value: Any, path: str) -> Iterator[tuple[Json, str]]:
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _moneys(each, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            if name.endswith("_money") and isinstance(each, dict):
                yield each, f"{path}.{name}"
            else:
                yield from _moneys(each, f"{path}.{name}")


def _references(order: Json) -> None:
    known = {
        f"{what}_uid": {each.get("uid") for each in order.get(name) or ()}
        for what, name in (("tax", "taxes"), ("discount", "discounts"))
    }
    for number, line in enumerate(order.get("line_items") or ()):
        path = f"order.line_items[{number}]"
        is_whole = re.fullmatch("[0-9]+", line["quantity"])
        if not is_whole and not line.get("quantity_unit"):
            raise Refused("INVALID_VALUE", "a decimal needs a quantity_unit", f"{path}.quantity")
        for name, uids in known.items():
            listed = "applied_taxes" if name == "tax_uid" else "applied_discounts"
            if any(each[name] not in uids for each in line.get(listed) or ()):
                raise Refused("INVALID_VALUE", f"no such {name}", f"{path}.{listed}")
        modifiers = line.get("modifiers") or ()
        own = {each.get("uid") for each in modifiers}
        for each in modifiers:
            parent = each.get("parent_modifier_uid")
            if parent is not None and (parent not in own or parent == each.get("uid")):
                raise Refused("INVALID_VALUE", f"no modifier {parent}", f"{path}.modifiers")


def _fulfillment(found: Json, path: str, *, needs_recipient: bool) -> None:
    type_ = found.get("type")
    if type_ is None:
        raise Refused("MISSING_REQUIRED_PARAMETER", "is required", f"{path}.type")
    name = _DETAILS[type_]
    path, details = f"{path}.{name}", found.get(name)
    if not details:
        raise Refused("MISSING_REQUIRED_PARAMETER", f"is required for {type_}", path)
    is_scheduled = details.get("schedule_type", "SCHEDULED") == "SCHEDULED"
    needed = {
        ("PICKUP", True): ["pickup_at"],
        ("DELIVERY", True): ["deliver_at"],
        ("DELIVERY", False): ["prep_time_duration"],
    }.get((type_, is_scheduled), [])
    for each in needed:
        if not details.get(each):
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", f"{path}.{each}")
    if not details.get("is_curbside_pickup") and details.get("curbside_pickup_details"):
        detail = "only if is_curbside_pickup is true"
        raise Refused("INVALID_VALUE", detail, f"{path}.curbside_pickup_details")
    recipient = details.get("recipient") or {}
    is_excused = details.get("managed_delivery") or recipient.get("customer_id")
    required = ["display_name", "phone_number"] + (["address"] if type_ == "DELIVERY" else [])
    for each in required if needs_recipient and type_ != "IN_STORE" and not is_excused else ():
        if not recipient.get(each):
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", f"{path}.recipient.{each}")
    _phone(recipient.get("phone_number"), f"{path}.recipient.phone_number")


def _phone(number: str | None, path: str) -> None:
    if number is None:
        return
    digits = sum(each.isdigit() for each in number)
    if not _PHONE.fullmatch(number) or not 9 <= digits <= 16:
        raise Refused("INVALID_PHONE_NUMBER", "is no phone number", path)
