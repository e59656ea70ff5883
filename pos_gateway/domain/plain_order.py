"""Reads what a server needs of an order that it passes on, at two thirds of an ``Order``'s cost."""

from datetime import datetime
from functools import cache
from typing import NamedTuple

from pos_gateway.domain.json_text import is_finite
from pos_gateway.domain.order import RARE, Order, may_have_too_many
from pos_gateway.domain.quick_order import QuickFields

#: Orders after one that is not plain that are not tried: a backend whose orders have fields of its own
#: would pay for two readers.
LEFT_OUT = 8


class PlainOrder(NamedTuple):
    """A valid order whose fields are those that most orders have, with its times in UTC."""

    merchant_id: str
    order_id: str
    deliver_by: datetime
    #: As ``Order.to_json`` has it.
    written: bytes


def plain_order(text: bytes) -> PlainOrder | None:
    """The order with this JSON; None: ``Order`` is to read it, and says what is wrong if anything is."""
    if may_have_too_many(text):
        return None
    quick = _quick()
    fields = quick(text)
    if fields is None:
        return None
    placed_at, deliver_by = fields["placed_at"], fields["deliver_by"]
    if deliver_by <= placed_at or placed_at.utcoffset() or deliver_by.utcoffset():
        return None
    if type(fields["fulfillment"]) is dict or not is_finite(text):
        return None
    return PlainOrder(fields["merchant_id"], fields["order_id"], deliver_by, quick.written(fields))


class PlainReader:
    """Reads plain orders where most are. For one thread."""

    def __init__(self) -> None:
        self._left_out = 0

    def __call__(self, text: bytes) -> PlainOrder | None:
        """As ``plain_order``, or None at once."""
        if self._left_out:
            self._left_out -= 1
            return None
        found = plain_order(text)
        if found is None:
            self._left_out = LEFT_OUT
        return found


@cache
def _quick() -> QuickFields:
    return QuickFields(Order, RARE)
