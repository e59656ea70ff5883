"""The guest of an order at Toast: a complete Customer, and the name of the check's tab.

Sources: the orders API's definition (Customer, Check), "Order details based on the order dining option"
on doc.toasttab.com. A customer has two names, a phone number and an e-mail address, and Toast takes no
take-out order or delivery without one. ``customer_phone`` and ``customer_email`` in the merchant's
``pos`` stand in for those that are missing, or that Toast does not take; what is known is on the tab
then, which the kitchen display shows. Without both an incomplete customer is on the tab alone.
"""

import re
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.adapted import Words, texts, words
from pos_gateway.adapters.pos_fields import GUID, PosField
from pos_gateway.adapters.toast_dining import unsaid
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Customer, Order

#: An e-mail address: one that Toast may take, and the characters that its definition names.
_EMAIL = re.compile(r"(?=.{3,53}\Z)[!-?A-~]+@[!-?A-~]+")
_SURE_EMAIL = re.compile(r"(?=.{3,53}\Z)[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+")
#: A phone number without its punctuation: of ten digits, or with another country's code (ITU E.164).
_PHONE_MARKS = re.compile(r"[\s().-]")
_PHONE = re.compile(r"(?:\+?1)?([0-9]{10})")
_FOREIGN_PHONE = re.compile(
    r"\+(7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[2-9][0-9]{2})([0-9]{4,12})"
)
FIELDS = {
    "customer_email": PosField(
        "the e-mail address of customers who give none, ASCII, at most 53 characters",
        _EMAIL.pattern,
        required=False,
        names_pos=False,
    ),
    "customer_phone": PosField(
        "the phone number, of ten digits, of customers who give none that Toast takes",
        r"[0-9]{10}",
        required=False,
        names_pos=False,
    ),
}
#: Maximum characters of a tab's name, and of each part.
_TAB = 255
#: The last name of a customer who has one name.
_NO_NAME = "."
REMEDY = (
    "give customer.name, customer.phone and customer.email, or the merchant pos.customer_phone and"
    " pos.customer_email"
)


def guest(order: Order, merchant: Merchant) -> dict[str, Any]:
    """Fields of the order's check: ``tabName``, ``customer``. Raises Refused."""
    customer, parts = _guest(order, merchant)
    named = "display_id, customer and fulfillment"
    said = (" ".join(texts(each)) for each in parts if each)
    tab = lines.text(" / ".join(said), _TAB, named)
    return {**({"tabName": tab} if tab else {}), **({"customer": customer} if customer else {})}


def tab_words(order: Order, merchant: Merchant) -> list[Words]:
    """The words of the tab's name. Raises Refused."""
    return [each for part in _guest(order, merchant)[1] for each in part]


def _guest(order: Order, merchant: Merchant) -> tuple[dict[str, str] | None, list[list[Words]]]:
    """The customer, and the words of the tab's name."""
    who = order.customer or Customer()
    name = lines.text(who.full_name, _TAB, "customer.name")
    phone = lines.text(who.phone, _TAB, "customer.phone")
    handle = lines.display_id(order, _TAB)
    number = _phone(phone)
    email = _email(who, merchant)
    customer = _customer(who, name or handle or order.order_id, number, email, merchant)
    is_whole = bool(customer and name and number)
    known = lines.full_name(who) if name and not customer else words("", name)
    if not is_whole:
        known += words("" if customer and number else "customer.phone", phone)
    if customer is None or customer["email"] != who.email:
        known += words("customer.email", lines.text(who.email, _TAB, "customer.email"))
    table = words("dine_in.table", _table(order))
    return customer, [table, words("", handle), known, unsaid(order, merchant)]


def _customer(
    who: Customer, name: str, number: dict[str, str], email: str | None, merchant: Merchant
) -> dict[str, str] | None:
    """All that Toast requires of a customer; None: a part is unknown."""
    number = number or _phone(merchant.pos.get("customer_phone", ""))
    if not number or not email:
        return None
    first, _, last = name.rpartition(" ")
    if who.has_parts:
        first = lines.text(who.first_name, _TAB, "customer.first_name")
        last = lines.text(who.last_name, _TAB, "customer.last_name")
    names = {"firstName": first or last, "lastName": last if first else _NO_NAME}
    return {**names, **number, "email": email}


def _email(who: Customer, merchant: Merchant) -> str | None:
    """The guest's own address, unless Toast may refuse it and the merchant has another."""
    given, other = who.email or "", merchant.pos.get("customer_email")
    if not _EMAIL.fullmatch(given):
        return other
    return given if other is None or _SURE_EMAIL.fullmatch(given) else other


def _phone(given: str) -> dict[str, str]:
    """A phone number as Toast takes it; empty: the text is none."""
    number = _PHONE_MARKS.sub("", given)
    if found := _PHONE.fullmatch(number):
        return {"phone": found[1]}
    if found := _FOREIGN_PHONE.fullmatch(number):
        return {"phone": found[2], "phoneCountryCode": found[1]}
    return {}


def _table(order: Order) -> str:
    """The words of a table that is none of Toast's GUIDs."""
    table = order.dine_in.table if order.dine_in else None
    if not table or re.fullmatch(GUID, table):
        return ""
    return f"Table {lines.text(table, _TAB, 'dine_in.table')}"
