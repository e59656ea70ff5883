"""Refuses by name the fields of an order that a vendor's API has no place for.

A POS of the kind ``rest`` gets an order with all fields. A vendor's request has those alone that the adapter
reads: of the schema's optional ones an adapter says so (``Reads``), and of fields that the schema does not name
none is read. A kitchen that never reads "no ice" makes another order.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.domain.order import PARTS, AnyModifier, Order
from pos_gateway.domain.outcome import Outcome, one_line
from pos_gateway.domain.record import Record
from pos_gateway.runtime import green

#: Unknown fields of an order and of its customer that change what is made, for whom or at what price.
#: Any other one is the backend's own data. Small letters and digits alone are compared, also without a last s.
MEANINGFUL = frozenset(
    re.findall(
        "[a-z]+",
        # Money beside the items' prices.
        "tax taxes taxamount taxtotal totaltax vat fee deliveryfee servicefee servicecharge "
        "surcharge charges bagfee packagingfee smallorderfee deposit discount discountamount "
        "discounttotal totaldiscount promo promotion coupon voucher giftcard gratuity tips "
        "adjustments payment "
        # The way to the guest, and the time.
        "delivery deliveryaddress deliveryinfo address shippingaddress courier dinein table "
        "tablenumber curbside curbsidepickup ordertype "
        "scheduledfor scheduledat scheduledtime scheduleddate pickupat pickuptime pickupdate "
        "deliverat deliveryat deliverytime deliverydate readyat readyby readytime prepminutes "
        # What the kitchen makes.
        "modifier specialrequest utensil cutlery",
    )
)
#: Names of words for a kitchen or a courier, but for those that are by their name for neither.
_WORDS = re.compile("(?!internal|private).*(allerg|dietary|(note|instruction|comment|remark)s?$)")
#: Unknown fields of an item or a modifier that are the backend's own data. Any other one is refused.
OWN = frozenset({"id", "line_id", "ref", "metadata"})

#: Fields compared before yielding to other green threads, in a millisecond or so.
YIELD_EVERY = 500
_LETTERS = re.compile("[^a-z0-9]")
#: Maximum fields that a reason names, and characters of a name; of a longer name its beginning and end are compared.
_NAMED, _NAME = 5, 60


@dataclass(frozen=True, slots=True)
class Reads:
    """Names of the optional fields that an adapter reads: of an order, and of a modifier."""

    order: frozenset[str] = frozenset()
    modifier: frozenset[str] = frozenset()


NOTHING = Reads()


def unsupported(order: Order, reads: Reads = NOTHING) -> Outcome | None:
    """Our own rejection of an order with fields that would be dropped; names and kinds of five."""
    dropped = islice(_dropped(order, reads), _NAMED + 1)
    found = [f"{path} ({_kind(value)})" for path, value in dropped]
    if not found:
        return None
    if len(found) > _NAMED:
        found[_NAMED:] = ["and more"]
    problem = f"this POS's API has no place for {', '.join(found)}"
    return rejected(Rejection.UNSUPPORTED_FIELD, problem)


def _dropped(order: Order, reads: Reads) -> Iterator[tuple[str, Any]]:
    """Path and value of each field that an adapter does not read, and a kitchen or courier acts on."""
    for number, item in enumerate(order.items):
        if item.model_extra:
            yield from _unknown(item, f"items[{number}]")
        for each, modifier in enumerate(item.modifiers):
            yield from _of_modifier(modifier, f"items[{number}].modifiers[{each}]", reads)
    for name in PARTS:
        value = getattr(order, name)
        if name not in reads.order and not is_empty(value):
            yield name, value
        elif value is not None:
            yield from _of_part(value, name)
    yield from _meaningful(order, "")
    if order.customer is not None:
        yield from _meaningful(order.customer, "customer.")
    if isinstance(order.fulfillment, dict) and order.fulfillment:
        yield "fulfillment", order.fulfillment


def _of_modifier(modifier: AnyModifier, path: str, reads: Reads) -> Iterator[tuple[str, Any]]:
    if modifier.model_extra:
        yield from _unknown(modifier, path)
    if modifier.notes and "notes" not in reads.modifier:
        yield f"{path}.notes", modifier.notes
    if not modifier.modifiers:
        return
    if "modifiers" not in reads.modifier:
        yield f"{path}.modifiers", modifier.modifiers
        return
    for number, each in enumerate(modifier.modifiers):
        yield from _of_modifier(each, f"{path}.modifiers[{number}]", reads)


def _of_part(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Fields of a part that is read, and of the part's own, that the schema does not name."""
    if isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _of_part(each, f"{path}[{number}]")
    elif isinstance(value, Record):
        yield from _unknown(value, path)
        for name in type(value).model_fields:
            yield from _of_part(getattr(value, name), f"{path}.{name}")


def is_empty(value: Any) -> bool:
    """Whether nothing is lost with the value. 0 and false are words in an item: "ice: 0"."""
    if isinstance(value, Record):
        return all(each is None for each in vars(value).values()) and not value.model_extra
    return value is None or value in ("", (), [], {})


def _fields(part: Record) -> Iterator[tuple[str, Any]]:
    """The fields that the schema does not name: a megabyte of an order may be nothing else."""
    return green.cooperatively((part.model_extra or {}).items(), YIELD_EVERY)


def _unknown(part: Record, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in _fields(part):
        if name not in OWN and not is_empty(value):
            yield f"{path}.{_shown(name)}", value


def _meaningful(part: Record, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in _fields(part):
        letters = _LETTERS.sub("", (name[:_NAME] + name[_NAME:][-_NAME:]).lower())
        is_listed = letters in MEANINGFUL or letters.removesuffix("s") in MEANINGFUL
        if value and (is_listed or _WORDS.match(letters)):
            yield f"{path}{_shown(name)}", value


def _shown(name: str) -> str:
    return one_line(name[:_NAME]) or "?"


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str() | datetime():
            return "a text"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
