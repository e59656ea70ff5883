"""The fields of an order that a POS gets as words in a note, for the event ``order.accepted``.

A note is made of ``Words``, each with a field, so that note and list cannot disagree.
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
    """The text with a field's words."""

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
    """A field, and the place of its words."""

    field: str
    as_: str


class AdaptsOrders(Protocol):
    """Optional for an adapter: fields are carried in notes."""

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        """The fields in notes. Pure; called before the order is sent. May raise Refused, as the adapter will then."""
        ...


def words(field: str, text: str | None) -> list[Words]:
    """A field's words; none without a text."""
    return [Words(field, text)] if text else []


def texts(parts: Iterable[Words]) -> list[str]:
    """The texts of a note's parts."""
    return [each.text for each in parts]


def carried(parts: Iterable[Words], as_: As) -> Iterator[Adapted]:
    """The fields of a note's parts, without fields whose place is the note."""
    return (Adapted(each.field, as_) for each in parts if each.field)


def summary(
    find: Callable[[Order, Merchant], Iterable[Adapted]], order: Order, merchant: Merchant
) -> str | None:
    """The event's fields ``adapted`` and ``adapted_more``, as JSON; None: nothing is adapted.

    At most ``NAMED`` paths, of names in the schema, and no text of the order: two kilobytes without personal data.

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


def adapted_in(text: str | None) -> tuple[list[Adapted], int]:
    """The fields in a ``summary``, and the number of further ones; none in a text changed by hand."""
    try:
        found = json.loads(text or "{}")
        fields = [Adapted(each["field"], each["as"]) for each in found.get("adapted", ())]
        return fields, int(found.get("adapted_more", 0))
    except (ValueError, TypeError, KeyError, AttributeError):
        return [], 0
