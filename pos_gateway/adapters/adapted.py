"""What of an order a POS gets elsewhere than in a field of its own: for the event ``order.accepted``.

A note is made of ``Words``, each with the field that they are of, so that a note and the list cannot disagree.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, Protocol

from pos_gateway.adapters.rejection import Refused
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order

#: Maximum fields that an event names: an order has thousands of modifiers.
NAMED = 20


class As(StrEnum):
    """Where a kitchen or a courier reads the field."""

    NOTE = "note"  # the order's, or the fulfillment's
    ITEM_NOTE = "item_note"
    SPECIAL_REQUEST = "special_request"
    TAB_NAME = "tab_name"
    DELIVERY_NOTE = "delivery_note"
    PAYMENT_NOTE = "payment_note"


class Words(NamedTuple):
    """A part of a text for the POS."""

    #: The field's path in the order; empty: the text is the field's place.
    field: str
    text: str


class Adapted(NamedTuple):
    """A field, and where the POS has it."""

    field: str
    as_: str


class AdaptsOrders(Protocol):
    """What an adapter has besides, if it carries fields elsewhere than in a place of their own."""

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        """The fields of the order that are carried so, in the order of the requests' texts. Pure.

        Called before the order is sent, if the order is new. May raise Refused: the order will be.
        """
        ...


def words(field: str, text: str | None) -> list[Words]:
    """The words of a field; none without a text."""
    return [Words(field, text)] if text else []


def texts(parts: Iterable[Words]) -> list[str]:
    """The texts of a note's parts."""
    return [each.text for each in parts]


def carried(parts: Iterable[Words], as_: As) -> Iterator[Adapted]:
    """The fields of a note's parts for which the note is not the place."""
    return (Adapted(each.field, as_) for each in parts if each.field)


def summary(
    find: Callable[[Order, Merchant], Iterable[Adapted]], order: Order, merchant: Merchant
) -> str | None:
    """The event's fields ``adapted`` and ``adapted_more``, as JSON; None: nothing is adapted.

    At most ``NAMED`` paths of the schema's own names, and no text of the order's: two kilobytes, and nothing personal.

    Args:
        find: an adapter's ``adapted``.
        order, merchant: its arguments.
    """
    try:
        found = iter(find(order, merchant))
        fields = [{"field": field, "as": str(as_)} for field, as_ in islice(found, NAMED)]
        more = sum(1 for _ in found)
    except Refused:
        return None
    if not fields:
        return None
    return json.dumps({"adapted": fields, **({"adapted_more": more} if more else {})})
