"""An order's items for a POS: money that is exact or refused, text that is one printable line.

A modifier counts once for each of its item: 2 burgers with 1 extra cheese are 2 extra cheeses.
``total`` is what the items come to. The tip is not part of it.
"""

from collections.abc import Iterator

from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.domain.order import Item, Order
from pos_gateway.domain.outcome import Outcome, one_line
from pos_gateway.runtime import green

#: Items and modifiers that are translated in a row, in a millisecond or so.
IN_A_ROW = 200


def text(value: str | None, limit: int) -> str:
    """One printable line of at most so many characters."""
    return one_line(value or "")[:limit]


def in_turns(order: Order) -> Iterator[Item]:
    """The order's items; others have their turns while a long one is translated."""
    return green.in_turns(order.items, IN_A_ROW, lambda item: 1 + len(item.modifiers))


def oversize(size: int, limits: Limits) -> Outcome | None:
    """Our own rejection of an order that makes a request of more bytes than the POS is sent."""
    most = limits.request_bytes
    if most is None or size <= most:
        return None
    problem = f"makes a request of {size} bytes; at most {most} are sent"
    return rejected(Rejection.INVALID_ORDER, problem)


def name(item: Item, limit: int) -> str:
    """What the item is called; never empty."""
    return text(item.name, limit) or text(item.sku, limit) or "item"


def notes(order: Order, item: Item) -> str:
    """The item's notes. The first item bears the order's too, where an order has no place for them."""
    whole = order.notes if item is order.items[0] else None
    return " / ".join(filter(None, (text(item.notes, 4096), text(whole, 4096))))


def unit_price(item: Item) -> int:
    """One of the item with all its modifiers, in minor units."""
    return item.unit_price + sum(each.quantity * each.unit_price for each in item.modifiers)


def refusal(order: Order) -> Outcome | None:
    """Our own rejection of an order that a POS would price otherwise than its backend did."""
    for item in order.items:
        if unit_price(item) < 0:
            problem = f"{name(item, 100)!r} costs less than nothing with its modifiers"
            return rejected(Rejection.PRICE_MISMATCH, problem)
    total = sum(item.quantity * unit_price(item) for item in order.items)
    if total != order.total:
        problem = f"the items come to {total}, the total is {order.total}"
        return rejected(Rejection.PRICE_MISMATCH, problem)
    return None
