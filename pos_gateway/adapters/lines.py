"""An order's items for a POS: money that is exact or refused, text as one printable line.

A modifier applies to each unit of its item: 2 burgers with 1 extra cheese have 2 extra cheeses.
``total`` is the sum of the items, and of what an adapter reads beside them (``further_fields.py``): plus
fees and additive taxes, minus discounts. The tip is not part of it.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal

from pos_gateway.adapters.further_fields import NOTHING, DeepModifier, Reads, further_fields
from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.unsupported import unsupported
from pos_gateway.domain.order import Item, Modifier, Order
from pos_gateway.domain.outcome import Outcome, Reason, one_line
from pos_gateway.runtime import green

#: Items and modifiers translated before yielding to other green threads, in a millisecond or so.
YIELD_EVERY = 200


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
    said = getattr(order, "display_id", None)  # a field that the schema does not name yet
    return text(said, limit, "display_id") if isinstance(said, str) else ""


def notes(order: Order, item: Item, limit: int, path: str) -> str:
    """The notes of the item at ``path``. Raises Refused.

    The first item also has the order's, where an order has no notes field.
    """
    whole, field = item.notes, f"{path}.notes"
    if item is order.items[0] and order.notes:
        both = text(item.notes, limit, field), text(order.notes, limit, "notes")
        whole, field = " / ".join(filter(None, both)), f"{field} and notes"
    return text(whole, limit, field)


def unit_price(item: Item) -> int:
    """The price of one unit with all its modifiers, in minor units."""
    return item.unit_price + sum(each.quantity * _price(each) for each in item.modifiers)


def _price(modifier: Modifier) -> int:
    return modifier.price if isinstance(modifier, DeepModifier) else modifier.unit_price


def refusal(order: Order, reads: Reads = NOTHING) -> Outcome | None:
    """Our own rejection of an order that a POS would price differently, or get without a part.

    Args:
        order: the order; ``deepened`` if the adapter reads fields of modifiers.
        reads: what the adapter reads beside the schema's fields.

    Raises:
        Refused: a field that the adapter reads has another form.
    """
    if (refused := unsupported(order, reads)) is not None:
        return refused
    for item in order.items:
        if unit_price(item) < 0:
            problem = f"{shortened(item.name, 100)!r} costs less than nothing with its modifiers"
            return rejected(Rejection.PRICE_MISMATCH, problem)
    items = sum(item.quantity * unit_price(item) for item in order.items)
    total = items + further_fields(order, reads).besides
    if total != order.total:
        besides = "" if total == items else f", with fees, taxes and discounts to {total}"
        problem = f"the items come to {items}{besides}, the total is {order.total}"
        return rejected(Rejection.PRICE_MISMATCH, problem)
    return None


def request(
    order: Order, limits: Limits, write: Callable[[], bytes], reads: Reads = NOTHING
) -> bytes | Outcome:
    """The body of the request that creates the order, or our own rejection: nothing is sent.

    Args:
        order: the order to write; ``deepened`` if the adapter reads fields of modifiers.
        limits: the vendor's.
        write: writes the body; may raise Refused.
        reads: what the adapter reads beside the schema's fields.
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
