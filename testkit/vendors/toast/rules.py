"""What Toast refuses in an order beyond its shape, and which items of the menu the order means.

Of the definition: an entity that does not exist is a 404; 400s are a negatively priced item, a payment
of another type than OTHER or CREDIT, a second discount of a check, an open percentage, a delivery
without ``deliveryInfo``, a takeout order or delivery without customer, preparation of other than a
multiple of five minutes, other characters in an e-mail address. Of the guides: a promise is not
before the order is opened, a phone number has ten digits, a selection its group, a modifier its
item's quantity, a group its fewest and most options, an external identifier its authority, a service
charge its dining behavior. Judgement: statuses that Toast does not publish; a dot and a hyphen are in
e-mail addresses; no card was authorized, so that no CREDIT payment is taken; at most ten checks.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from testkit.vendors.fields import Rule, faults
from testkit.vendors.toast.definition import TABLES
from testkit.vendors.toast.menu import Body, Group, Item
from testkit.vendors.toast.restaurant import Charge, Restaurant

T = TypeVar("T")
_EMAIL = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9_.-]+")
_EXTERNAL = re.compile(r"[^:]{1,16}:.{1,256}", re.DOTALL)
_PREPARATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?")
_MOST_CHECKS = 10


class Refused(Exception):
    """A refusal. Toast publishes one code, that of a payment without an amount: 10025."""

    def __init__(self, message: str, status: int = 400, code: int = 10000) -> None:
        super().__init__(message)
        self.message, self.status, self.code = message, status, code


@dataclass(frozen=True, slots=True)
class Line:
    """A selection, and the item that it means: None for a special request."""

    posted: Body
    item: Item | None
    quantity: int
    modifiers: tuple["Line", ...] = ()

    @property
    def name(self) -> str:
        return self.item.name if self.item else str(self.posted["displayName"])


def shaped(table: str, value: object) -> Any:
    """The value, if it has the table's shape. Raises Refused."""
    found = faults(TABLES, table, value)
    for each in found:
        if each.rule is Rule.MISSING and each.path.endswith("].amount"):
            raise Refused("Payment amount cannot be empty", code=10025)
    if found:
        raise Refused("; ".join(map(str, found[:5])))
    return value


def lines_of(order: Body, place: Restaurant, now: datetime) -> list[list[Line]]:
    """Each check's lines. Raises Refused."""
    shaped("Order", order)
    if len(order["checks"]) > _MOST_CHECKS:
        raise Refused("the order has too many checks", 413)
    for name in external_ids(order):
        if not _EXTERNAL.fullmatch(name):
            raise Refused(f"InvalidExternalIdentifier: {name!r}")
    behavior = known(place.dining_options, order["diningOption"], "DiningOption")
    if order.get("table"):
        known(place.tables, order["table"], "Table")
        if behavior != "DINE_IN":
            raise Refused("a table needs a dining option of the behavior DINE_IN")
    if behavior == "DELIVERY" and not order.get("deliveryInfo"):
        raise Refused("deliveryInfo is required for a delivery")
    opened = time_of(order["openedDate"]) if order.get("openedDate") else now
    if order.get("promisedDate") and time_of(order["promisedDate"]) < opened:
        raise Refused("promisedDate is earlier than openedDate")
    if order.get("requiredPrepTime") and not preparation(order["requiredPrepTime"]):
        raise Refused("requiredPrepTime is no positive multiple of five minutes")
    return [_of_check(check, behavior, place) for check in order["checks"]]


def external_ids(order: Body) -> Iterator[str]:
    """Those of the order, its checks and its selections."""
    below = [order]
    while below:
        each = below.pop()
        for name in ("checks", "selections", "modifiers"):
            below += each.get(name) or ()
        if each.get("externalId"):
            yield each["externalId"]


def known(entities: Mapping[str, T], reference: Body, kind: str) -> T:
    """The entity of this GUID. Raises Refused: it does not exist."""
    found = entities.get(reference["guid"].lower())
    if found is None:
        raise Refused(f"{kind} {reference['guid']} was not found", 404)
    return found


def cents(amount: float, name: str) -> int:
    """An amount of dollars. Raises Refused: negative, or with a third decimal."""
    found = Decimal(str(amount)) * 100
    if found < 0 or found != found.to_integral_value():
        raise Refused(f"{name} is {amount}: no amount of at most two decimals")
    return int(found)


def time_of(written: str) -> datetime:
    try:
        return datetime.strptime(written, "%Y-%m-%dT%H:%M:%S.%f%z")
    except ValueError:
        raise Refused(f"{written!r} is no date and time") from None


def preparation(written: str) -> timedelta | None:
    """A duration as Toast takes it; None: the text is none."""
    found = _PREPARATION.fullmatch(written)
    minutes = 60 * int(found[1] or 0) + int(found[2] or 0) if found else 0
    return timedelta(minutes=minutes) if minutes and minutes % 5 == 0 else None


def _of_check(check: Body, behavior: str, place: Restaurant) -> list[Line]:
    if check.get("customer"):
        _customer(check["customer"])
    elif behavior != "DINE_IN":
        raise Refused(f"a check needs a customer for {behavior}")
    for payment in check.get("payments") or ():
        _payment(payment, place)
    if len(check.get("appliedDiscounts") or ()) > 1:
        raise Refused("a check has one discount at most")
    for each in check.get("appliedDiscounts") or ():
        _open(known(place.discounts, each["discount"], "Discount"), each, "discountAmount")
    for each in check.get("appliedServiceCharges") or ():
        charge = known(place.service_charges, each["serviceCharge"], "ServiceCharge")
        _open(charge, each, "chargeAmount")
        if charge.behaviors and behavior not in charge.behaviors:
            raise Refused(f"the service charge {charge.name} is not for {behavior}")
    return [_line(each, place.menu) for each in check["selections"]]


def _open(charge: Charge, applied: Body, amount: str) -> None:
    if charge.kind == "OPEN_PERCENT":
        raise Refused("an open percentage is no discount of an order from the API")
    if charge.is_open:
        if applied.get(amount) is None:
            raise Refused(f"{charge.name} is open: it needs {amount}")
        cents(applied[amount], amount)


def _customer(customer: Body) -> None:
    digits = re.sub(r"[\s().+-]", "", customer["phone"])
    is_foreign = bool(customer.get("phoneCountryCode")) and digits.isdecimal()
    if not is_foreign and not re.fullmatch(r"[0-9]{10}", digits):
        raise Refused("a phone number has ten digits, or a country code")
    if not _EMAIL.fullmatch(customer["email"]):
        raise Refused("the e-mail address has characters that are not supported")


def _payment(payment: Body, place: Restaurant) -> None:
    if payment["type"] not in ("OTHER", "CREDIT"):
        raise Refused(f"a payment of type {payment['type']} is not supported")
    if payment["type"] == "CREDIT":
        raise Refused("the card payment was not authorized")
    if not payment.get("otherPayment"):
        raise Refused("a payment of type OTHER needs otherPayment")
    known(place.payment_types, payment["otherPayment"], "AlternatePaymentType")
    cents(payment["amount"], "amount")
    cents(payment["tipAmount"], "tipAmount")


def _line(posted: Body, menu: Mapping[str, Group]) -> Line:
    everywhere = {guid: item for group in menu.values() for guid, item in group.items.items()}
    known(everywhere, posted["item"], "MenuItem")
    if not posted.get("itemGroup"):
        raise Refused("a selection needs itemGroup")
    group = known(menu, posted["itemGroup"], "MenuGroup")
    item = group.items.get(posted["item"]["guid"].lower())
    if item is None:
        raise Refused(f"MenuItem {posted['item']['guid']} is in another group")
    if posted.get("selectionType") not in (None, "NONE"):
        raise Refused(f"a selection of type {posted['selectionType']} is not supported")
    if item.price is not None and posted.get("openPriceAmount") is not None:
        raise Refused(f"MenuItem {item.guid} has no open price")
    return _counted(posted, item)


def _counted(posted: Body, item: Item) -> Line:
    quantity = posted.get("quantity") or 0
    if quantity <= 0 or quantity != int(quantity):
        raise Refused("quantity is no counting number")
    modifiers = [_modifier(each, item, int(quantity)) for each in posted.get("modifiers") or ()]
    chosen = [each.posted["optionGroup"]["guid"].lower() for each in modifiers if each.item]
    for group in item.groups.values():
        count = chosen.count(group.guid)
        if count < group.fewest or (group.most is not None and count > group.most):
            raise Refused(f"the modifier group {group.guid} has {count} selections")
    return Line(posted, item, int(quantity), tuple(modifiers))


def _modifier(posted: Body, parent: Item, quantity: int) -> Line:
    if posted.get("selectionType") == "SPECIAL_REQUEST":
        if not posted.get("displayName"):
            raise Refused("a special request needs a displayName")
        return Line(posted, None, quantity)
    for name in ("item", "optionGroup"):
        if not posted.get(name):
            raise Refused(f"a modifier needs {name}")
    group = known(parent.groups, posted["optionGroup"], "MenuOptionGroup")
    line = _counted(posted, known(group.items, posted["item"], "MenuItem"))
    if line.quantity != quantity:
        raise Refused("the quantity of a modifier is not its item's")
    return line
