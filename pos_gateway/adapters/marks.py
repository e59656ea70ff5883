"""What marks an order at a POS: merchants that share one there may have orders with the same id."""

import hashlib
from collections.abc import Callable, Collection
from typing import TypeVar

from pos_gateway.adapters.replies import in_doubt
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome

T = TypeVar("T")


def merchant_digest(order: Order) -> str:
    """The merchant in a mark that has no room for its id, or none that is safe."""
    return hashlib.sha256(order.merchant_id.encode()).hexdigest()[:12]


def the_only(unmarked: Collection[T], is_like: Callable[[T], bool]) -> T | Outcome:
    """The order as the release before has marked it: with the order id, and no merchant.

    Args:
        unmarked: all orders with that mark, at least one.
        is_like: whether such an order has what ours has; another merchant's may be meant.
    """
    found = next(iter(unmarked))
    if len(unmarked) == 1 and is_like(found):
        return found
    return in_doubt("an order with this id names no merchant, and may be another's")
