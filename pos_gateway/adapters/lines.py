"""An order's items for a POS: money that is exact or refused, text as one printable line.

A modifier applies to each unit of its item: 2 burgers with 1 extra cheese have 2 extra cheeses.
``total`` is the sum of the items, or, with fees, taxes or discounts, as the order's schema has checked. The
tip is not part of it.
"""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal

from pos_gateway.adapters.adapted import Words, texts, words
from pos_gateway.adapters.hours import local, zone_of
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.unsupported import NOTHING, Reads, unsupported
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import AnyModifier, Customer, Item, Order
from pos_gateway.domain.order_parts import Address, Courier, DeliveryInfo, DineIn
from pos_gateway.domain.outcome import Outcome, Reason, one_line
from pos_gateway.runtime import green

#: Items and modifiers translated before yielding to other green threads, in a millisecond or so.
YIELD_EVERY = 200
#: A merchant's setting, for POSes with a time in a note alone.
TIME_ZONE = PosField(
    "the location's time zone, as America/New_York: times in notes are by its clock, else with the backend's offset",
    r"[A-Za-z0-9_+/-]{1,64}",
    required=False,
    names_pos=False,
)
#: Currencies whose minor unit is no hundredth (ISO 4217).
_NOT_HUNDREDTHS = re.compile(
    "BIF|CLP|DJF|GNF|ISK|JPY|KMF|KRW|PYG|RWF|UGX|UYI|VND|VUV|XAF|XOF|XPF"
    "|BHD|IQD|JOD|KWD|LYD|OMR|TND|CLF|UYW"
)


def has_hundredths(order: Order) -> bool:
    """Whether amounts of the order have two decimals."""
    return _NOT_HUNDREDTHS.fullmatch(order.currency) is None


def shortened(value: str | None, limit: int) -> str:
    """One printable line of at most ``limit`` characters, for a text that may be cut."""
    return one_line(value or "")[:limit]


def text(value: str | None, limit: int, field: str) -> str:
    """One printable line, whole: a kitchen that reads half of a text makes another order.

    Args:
        value: the order's text.
        limit: the vendor's, in characters.
        field: the text's path in the order, for the reason.

    Raises:
        Refused: the line is longer than ``limit``.
    """
    line = one_line(value or "")
    if len(line) > limit:
        problem = f"{field} has {len(line)} characters; the POS takes {limit}"
        raise Refused(Rejection.TEXT_TOO_LONG, problem)
    return line


def cooperatively(order: Order) -> Iterator[Item]:
    """The order's items, yielding to other green threads within a long order."""
    return green.cooperatively(order.items, YIELD_EVERY, lambda item: 1 + len(item.modifiers))


def name(item: Item, limit: int, path: str) -> str:
    """The name of the item at ``path``; never empty. Raises Refused."""
    named = text(item.name, limit, f"{path}.name") or text(item.sku, limit, f"{path}.sku")
    return named or "item"


def display_id(order: Order, limit: int) -> str:
    """What guest and counter call the order; empty without. Raises Refused."""
    return text(order.display_id, limit, "display_id")


def notes(order: Order, item: Item, limit: int, path: str) -> str:
    """The notes of the item at ``path``. Raises Refused.

    The first item also has the order's, where an order has no notes field.
    """
    whole, field = item.notes, f"{path}.notes"
    if of_order := texts(orders_notes(order, item)):
        said = text(item.notes, limit, field), *(text(each, limit, "notes") for each in of_order)
        whole, field = " / ".join(filter(None, said)), f"{field} and notes"
    return text(whole, limit, field)


def orders_notes(order: Order, item: Item) -> list[Words]:
    """The parts of the order in the note of the first item."""
    return [*utensils(order), *words("notes", order.notes)] if item is order.items[0] else []


def modifiers_notes(part: Item | AnyModifier, path: str) -> Iterator[Words]:
    """The notes of the part's modifiers, each with the modifier's name, where a modifier has no notes field."""
    for number, each in enumerate(part.modifiers or ()):
        where = f"{path}.modifiers[{number}]"
        if each.notes:
            yield Words(f"{where}.notes", f"{each.name}: {each.notes}")
        if each.modifiers:
            yield from modifiers_notes(each, where)


def shares(order: Order) -> list[list[tuple[int, int]]]:
    """By discount: what each of its items gets, as the item's number and an amount; empty: it is the order's.

    Raises:
        Refused: a discount is more than its items come to.
    """
    found: list[list[tuple[int, int]]] = []
    left = [item.quantity * item.price for item in order.items] if order.discounts else []
    for number, discount in enumerate(order.discounts or ()):
        found.append([])
        refs, amount = frozenset(discount.items or ()), discount.amount
        if not (refs and discount.is_in_total):
            continue
        for place, item in enumerate(order.items):
            share = min(amount, left[place]) if item.ref in refs else 0
            if share > 0:
                found[number].append((place, share))
                left[place], amount = left[place] - share, amount - share
        if amount:
            problem = f"discounts[{number}].amount is {amount} more than its items come to"
            raise Refused(Rejection.PRICE_MISMATCH, problem)
    return found


def utensils(order: Order) -> list[Words]:
    """Whether the guest wants utensils, in words; none: the order does not say."""
    if order.utensils is None:
        return []
    return [Words("utensils", "with utensils" if order.utensils else "no utensils")]


def full_name(customer: Customer) -> list[Words]:
    """The parts of the customer's full name, for a note."""
    if customer.name:
        return [Words("customer.name", customer.name)]
    first = words("customer.first_name", customer.first_name)
    return [*first, *words("customer.last_name", customer.last_name)]


def address_words(address: Address) -> str:
    """An address as one line."""
    town = filter(None, (address.postal_code, address.city, address.region))
    parts = (address.line1, address.line2, " ".join(town), address.country)
    return ", ".join(filter(None, parts))


def delivery_words(given: DeliveryInfo) -> list[Words]:
    """Address, instructions and courier, for a note."""
    address = words("delivery.address", address_words(given.address) if given.address else None)
    beside = [
        Words(each.field or "delivery.instructions", each.text) for each in handover_words(given)
    ]
    return [*address, *beside]


def handover_words(given: DeliveryInfo) -> list[Words]:
    """Instructions and courier, for a note for couriers: the instructions' own place."""
    found = words("", given.instructions)
    found += [Words("delivery.contactless", "contactless")] if given.contactless else []
    courier = given.courier or Courier()
    known = " ".join(filter(None, (courier.name, courier.phone, courier.reference)))
    return [*found, Words("delivery.courier", f"courier {known}")] if known else found


def table_words(given: DineIn) -> list[Words]:
    """The table and the number of guests, for a note."""
    table = [Words("dine_in.table", f"table {given.table}")] if given.table else []
    return [*table, Words("dine_in.guests", f"{given.guests} guests")] if given.guests else table


def time_words(order: Order, merchant: Merchant) -> list[Words]:
    """When the guest gets the order, and how long the kitchen needs, for a note.

    The time is by the clock of ``pos.time_zone``, else with the backend's offset.
    """
    at = order.scheduled_for
    if at is None:
        return prep_words(order)
    zone = zone_of(merchant.pos.get("time_zone"))
    said = f"{local(at, zone):%Y-%m-%d %H:%M}" if zone else f"{at:%Y-%m-%d %H:%M %z}"
    return [Words("scheduled_for", f"for {said}"), *prep_words(order)]


def time_problems(merchant: Merchant) -> list[FieldError]:
    """The error in the merchant's ``pos.time_zone``, if any."""
    name = merchant.pos.get("time_zone")
    if name is None or zone_of(name):
        return []
    return [FieldError("pos.time_zone", f"must be {TIME_ZONE.meaning}", name)]


def prep_words(order: Order) -> list[Words]:
    """How long the kitchen needs, for a note beside a time."""
    minutes = order.prep_minutes
    return [] if minutes is None else [Words("prep_minutes", f"takes {minutes} minutes")]


def refuse_unpaid(order: Order) -> None:
    """Refuse an order that staff would have to collect the money for. Raises Refused."""
    if order.payment and order.payment.status == "unpaid":
        problem = "payment.status is unpaid: the gateway records orders as paid at this POS"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)


def refusal(order: Order, reads: Reads = NOTHING) -> Outcome | None:
    """Our own rejection of an order that a POS would price differently, or get without a part.

    Args:
        order: the order.
        reads: the optional fields that the adapter reads.
    """
    if (refused := unsupported(order, reads)) is not None:
        return refused
    for item in order.items:
        if item.price < 0:
            problem = f"{shortened(item.name, 100)!r} costs less than nothing with its modifiers"
            return rejected(Rejection.PRICE_MISMATCH, problem)
    has_charges = order.discounts or order.fees or order.taxes  # then the schema has added up
    if not has_charges and order.subtotal != order.total:
        problem = f"the items come to {order.subtotal}, the total is {order.total}"
        return rejected(Rejection.PRICE_MISMATCH, problem)
    return None


def request(
    order: Order, limits: Limits, write: Callable[[], bytes], reads: Reads = NOTHING
) -> bytes | Outcome:
    """The body of the request that creates the order, or our own rejection: nothing is sent.

    Args:
        order: the order to write.
        limits: the vendor's.
        write: writes the body; may raise Refused.
        reads: the optional fields that the adapter reads.
    """
    try:
        if (refused := refusal(order, reads)) is not None:
            return refused
        content = write()
    except Refused as error:
        return error.outcome
    return oversize(len(content), limits) or content


def oversize(size: int, limits: Limits) -> Outcome | None:
    """Our own rejection of an order whose request has more bytes than are sent to the POS."""
    most = limits.request_bytes
    if most is None or size <= most:
        return None
    problem = f"makes a request of {size} bytes; at most {most} are sent"
    return rejected(Rejection.INVALID_ORDER, problem)


def mispriced(order: Order, theirs: object, currency: object = None) -> Reason | None:
    """Why the POS's total of an order is not the order's; None: they agree.

    Args:
        order: the order that was agreed with the guest.
        theirs: the POS's own total in minor units, as in its reply.
        currency: the currency of the POS's total; None: the reply names none.
    """
    is_theirs = isinstance(theirs, int | Decimal) and not isinstance(theirs, bool)
    same = str(currency or order.currency).upper() == order.currency
    if is_theirs and theirs == order.total and same:
        return None
    known = theirs if is_theirs else "unknown"
    problem = f"the POS's total is {known} {currency or ''}".rstrip()
    mine = f"the order's is {order.total} {order.currency}"
    return Reason.of(Rejection.PRICE_MISMATCH, f"{problem}, {mine}")
