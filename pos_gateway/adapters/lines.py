"""An order's items for a POS: money that is exact or refused, text as one printable line.

A modifier applies to each unit of its item: 2 burgers with 1 extra cheese have 2 extra cheeses.
``total`` is the sum of the items. The tip is not part of it.
"""

from collections.abc import Iterator

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.domain.order import Item, Order
from pos_gateway.domain.outcome import Outcome, one_line
from pos_gateway.runtime import green

#: Items and modifiers translated before yielding to other green threads, in a millisecond or so.
YIELD_EVERY = 200


def text(value: str | None, limit: int) -> str:
    """One printable line of at most ``limit`` characters."""
    return one_line(value or "")[:limit]


def cooperatively(order: Order) -> Iterator[Item]:
    """The order's items, yielding to other green threads within a long order."""
    return green.cooperatively(order.items, YIELD_EVERY, lambda item: 1 + len(item.modifiers))


def oversize(size: int, limits: Limits) -> Outcome | None:
    """Our own rejection of an order whose request has more bytes than are sent to the POS."""
    most = limits.request_bytes
    if most is None or size <= most:
        return None
    problem = f"makes a request of {size} bytes; at most {most} are sent"
    return rejected(Rejection.INVALID_ORDER, problem)


def name(item: Item, limit: int) -> str:
    """The item's name; never empty."""
    return text(item.name, limit) or text(item.sku, limit) or "item"


def notes(order: Order, item: Item) -> str:
    """The item's notes. The first item also has the order's, where an order has no notes field."""
    whole = order.notes if item is order.items[0] else None
    return " / ".join(filter(None, (text(item.notes, 4096), text(whole, 4096))))


def unit_price(item: Item) -> int:
    """The price of one unit with all its modifiers, in minor units."""
    return item.unit_price + sum(each.quantity * each.unit_price for each in item.modifiers)


def refusal(order: Order) -> Outcome | None:
    """Our own rejection of an order that a POS would price differently from its backend."""
    for item in order.items:
        if unit_price(item) < 0:
            problem = f"{name(item, 100)!r} costs less than nothing with its modifiers"
            return rejected(Rejection.PRICE_MISMATCH, problem)
    total = sum(item.quantity * unit_price(item) for item in order.items)
    if total != order.total:
        problem = f"the items come to {total}, the total is {order.total}"
        return rejected(Rejection.PRICE_MISMATCH, problem)
    return None
