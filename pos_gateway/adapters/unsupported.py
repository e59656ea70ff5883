"""Refuses by name the fields of an order that a vendor's API has no place for.

An order may have fields that the schema does not name. A POS of the kind ``rest`` gets them all. A
vendor's request has those alone that its adapter reads (``further_fields.py``), and a kitchen that never
reads "no ice" makes another order.
"""

import re
from collections.abc import Iterator, Set
from itertools import islice
from typing import Any

from pos_gateway.adapters.further_fields import NOTHING, Reads, is_empty
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome, one_line
from pos_gateway.domain.record import Record
from pos_gateway.runtime import green

#: Unknown fields of an order and of its customer that change what is made, for whom or at what price.
#: Any other one is the backend's own data. Small letters and digits alone are compared.
MEANINGFUL = frozenset(
    re.findall(
        "[a-z]+",
        # Money beside the items' prices.
        "tax taxes taxamount taxtotal totaltax vat fee fees deliveryfee servicefee servicefees "
        "servicecharge servicecharges surcharge surcharges charges bagfee packagingfee "
        "smallorderfee deposit deposits discount discounts discountamount discounttotal "
        "totaldiscount promo promos promotion promotions coupon coupons voucher vouchers "
        "giftcard giftcards gratuity tips adjustments payment payments "
        # The way to the guest, and the time.
        "delivery deliveryaddress deliveryinfo deliveryinstructions deliverynotes address "
        "shippingaddress courier dinein table tablenumber curbside curbsidepickup ordertype "
        "scheduledfor scheduledat pickupat pickuptime deliverat deliverytime prepminutes "
        # What the kitchen makes.
        "modifiers allergy allergies allergens instructions specialinstructions "
        "specialrequests note comment comments remarks utensils cutlery",
    )
)
#: Unknown fields of an item or a modifier that are the backend's own data. Any other one is refused.
OWN = frozenset({"id", "line_id", "ref", "metadata"})

#: Fields compared before yielding to other green threads, in a millisecond or so.
YIELD_EVERY = 500
_LETTERS = re.compile("[^a-z0-9]")
#: Maximum fields that a reason names, and characters of a name.
_NAMED, _NAME = 5, 60


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
    own = OWN | reads.modifier
    for number, item in enumerate(order.items):
        if item.model_extra:
            yield from _unknown(item, f"items[{number}]", OWN)
        for each, modifier in enumerate(item.modifiers):
            if modifier.model_extra:
                yield from _unknown(modifier, f"items[{number}].modifiers[{each}]", own)
    yield from _meaningful(order, "", reads.order)
    if order.customer is not None:
        yield from _meaningful(order.customer, "customer.")
    if isinstance(order.fulfillment, dict) and order.fulfillment:
        yield "fulfillment", order.fulfillment


def _fields(part: Record) -> Iterator[tuple[str, Any]]:
    """The fields that the schema does not name: a megabyte of an order may be nothing else."""
    return green.cooperatively((part.model_extra or {}).items(), YIELD_EVERY)


def _unknown(part: Record, path: str, known: Set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in _fields(part):
        if name not in known and not is_empty(value):
            yield f"{path}.{_shown(name)}", value


def _meaningful(
    part: Record, path: str, known: Set[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    for name, value in _fields(part):
        if value and name not in known and _LETTERS.sub("", name[:_NAME].lower()) in MEANINGFUL:
            yield f"{path}{_shown(name)}", value


def _shown(name: str) -> str:
    return one_line(name[:_NAME]) or "?"


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
