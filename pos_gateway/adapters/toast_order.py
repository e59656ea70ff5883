"""What Toast is sent of an order: the body of a request for its prices, and of its create.

``toast.py`` has the sources.
"""

import json
import re
from decimal import Decimal
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.pos_fields import GUID
from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Customer, Item, Modifier, Order
from pos_gateway.domain.outcome import Outcome

#: An item's id in a catalog, or a sku.
ITEM = re.compile(f"(?P<group>{GUID})/(?P<item>{GUID})")
#: Maximum minor units that a JSON number of dollars holds exact to the cent.
_LARGEST = 10**15
#: Currencies whose minor unit is no hundredth (ISO 4217): Toast's amounts have two decimals.
_NOT_HUNDREDTHS = re.compile(
    "BIF|CLP|DJF|GNF|ISK|JPY|KMF|KRW|PYG|RWF|UGX|UYI|VND|VUV|XAF|XOF|XPF"
    "|BHD|IQD|JOD|KWD|LYD|OMR|TND|CLF|UYW"
)
#: Maximum characters of a special request; of a tab's name, which the kitchen display shows.
_REQUEST, _TAB = 1000, 255
#: Bytes of the shortest modifier in a request, without its comma.
_MODIFIER = 150
#: A customer's e-mail address as Toast takes it.
EMAIL = re.compile(r"(?=.{3,53}\Z)[!-?A-~]+@[!-?A-~]+")
#: A phone number without its punctuation: of ten digits, or with another country's code (ITU E.164).
_PHONE_MARKS = re.compile(r"[\s().-]")
_PHONE = re.compile(r"(?:\+?1)?([0-9]{10})")
_FOREIGN_PHONE = re.compile(
    r"\+(7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[2-9][0-9]{2})([0-9]{4,12})"
)
#: The last name of a customer who has one name.
_NO_NAME = "."
_GUIDS = "two GUIDs of Toast's, nor such itself"


def unsendable(order: Order, merchant: Merchant, limits: Limits) -> Outcome | None:
    """Our own rejection of an order that Toast's API cannot express."""
    is_odd = _NOT_HUNDREDTHS.fullmatch(order.currency) is not None
    if is_odd or max(order.total, order.tip or 0) > _LARGEST:
        problem = f"{order.total} {order.currency} cannot be written with two decimals"
        return rejected(Rejection.INVALID_ORDER, problem)
    if isinstance(order.fulfillment, str) and order.fulfillment.strip().lower() == "delivery":
        problem = "fulfillment is delivery: this adapter sends no address, and Toast requires it"
        return rejected(Rejection.UNSUPPORTED_FIELD, problem)
    modifiers = 0
    for item in order.items:
        if not ITEM.fullmatch(known_as(item, merchant)):
            problem = f"the sku {lines.shortened(item.sku, 100)!r} is not in the merchant's catalog"
            return rejected(Rejection.INVALID_ORDER, f"{problem} as group/item, {_GUIDS}")
        for modifier in item.modifiers:
            is_request = modifier.sku is None and modifier.unit_price == 0
            if not is_request and not ITEM.fullmatch(known_as(modifier, merchant)):
                problem = f"the modifier {lines.shortened(modifier.name, 100)!r}"
                return rejected(
                    Rejection.INVALID_ORDER,
                    f"{problem} is not in the merchant's catalog as option group/item, {_GUIDS}",
                )
            modifiers += 0 if is_request else modifier.quantity
    return lines.oversize(modifiers * _MODIFIER, limits)


def creation(order: Order, merchant: Merchant) -> bytes:
    """The order as Toast's, in JSON. Raises Refused: a text is too long."""
    check: dict[str, Any] = {
        "entityType": "Check",
        "selections": [
            _selection(order, item, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
    }
    if order.customer is not None:
        check |= _guest(order.customer, merchant)
    if "payment" in merchant.pos:
        check["payments"] = [
            {
                "type": "OTHER",
                "otherPayment": {"guid": merchant.pos["payment"]},
                "paidDate": order.placed_at.strftime("%Y-%m-%dT%H:%M:%S.000%z"),
                "amount": _dollars(order.total),
                "tipAmount": _dollars(order.tip or 0),
            }
        ]
    content = {
        "entityType": "Order",
        "externalId": external_id(order, merchant),
        "diningOption": {"guid": merchant.pos["dining_option"], "entityType": "DiningOption"},
        "checks": [check],
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _guest(who: Customer, merchant: Merchant) -> dict[str, Any]:
    """The tab's name, and the customer if all that Toast requires of one is known.

    The tab has the phone number of a customer who is not sent.
    """
    name = lines.text(who.name, _TAB, "customer.name")
    phone = lines.text(who.phone, _TAB, "customer.phone")
    given = (who.model_extra or {}).get("email")
    is_email = isinstance(given, str) and EMAIL.fullmatch(given) is not None
    email = given if is_email else merchant.pos.get("customer_email")
    number = _phone(phone)
    if name and number and email:
        first, _, last = name.rpartition(" ")
        names = {"firstName": first or last, "lastName": last if first else _NO_NAME}
        return {"tabName": name, "customer": {**names, **number, "email": email}}
    tab = lines.text(f"{name} {phone}", _TAB, "customer.name with customer.phone")
    return {"tabName": tab} if tab else {}


def _phone(given: str) -> dict[str, str]:
    """A phone number as Toast takes it; empty: the text is none."""
    number = _PHONE_MARKS.sub("", given)
    if found := _PHONE.fullmatch(number):
        return {"phone": found[1]}
    if found := _FOREIGN_PHONE.fullmatch(number):
        return {"phone": found[2], "phoneCountryCode": found[1]}
    return {}


def _selection(order: Order, item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    modifiers = [
        each
        for number, modifier in enumerate(item.modifiers)
        for each in _modifiers(modifier, item, merchant, f"{path}.modifiers[{number}].name")
    ]
    note = lines.notes(order, item, _REQUEST, path)
    return {
        "entityType": "MenuItemSelection",
        **_reference(known_as(item, merchant), "itemGroup"),
        "quantity": item.quantity,
        "modifiers": [*modifiers, _request(note)] if note else modifiers,
    }


def _modifiers(
    modifier: Modifier, item: Item, merchant: Merchant, path: str
) -> list[dict[str, Any]]:
    """The modifier, once for each time that each of the items has it.

    Toast rejects a modifier of another quantity than its item's.
    """
    if modifier.sku is None:
        times = f"{modifier.quantity} x " if modifier.quantity > 1 else ""
        text = lines.text(times + modifier.name, _REQUEST, path)
        return [_request(text)] if text else []
    reference = _reference(known_as(modifier, merchant), "optionGroup")
    return [{**reference, "quantity": item.quantity}] * modifier.quantity


def _request(text: str) -> dict[str, Any]:
    return {"selectionType": "SPECIAL_REQUEST", "displayName": text}


def known_as(what: Item | Modifier, merchant: Merchant) -> str:
    """Toast's id for it, ``group/item``, if the order can be sent."""
    return merchant.pos_id(what.sku) or what.sku or ""


def _reference(pos_id: str, group: str) -> dict[str, Any]:
    found = ITEM.fullmatch(pos_id)
    assert found is not None  # noqa: S101  (unsendable has checked it)
    item = {"guid": found["item"], "entityType": "MenuItem"}
    return {group: {"guid": found["group"]}, "item": item}


def external_id(order: Order, merchant: Merchant) -> str:
    """The order's mark: at most 141 characters after the naming authority's; Toast allows 256."""
    return f"{unmarked(order, merchant)}-{merchant_digest(order)}"


def unmarked(order: Order, merchant: Merchant) -> str:
    """The mark of the release before, without the merchant."""
    return f"{merchant.pos['naming_authority']}:{order.order_id}"


def _dollars(minor: int) -> float:
    """Exact: below ``_LARGEST`` a float's shortest form has the same two decimals."""
    return float(Decimal(minor) / 100)
