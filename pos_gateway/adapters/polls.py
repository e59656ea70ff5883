"""Polls: a POS without callbacks is asked for changed orders. The ledger applies the reply as callbacks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome, Reason
from pos_gateway.transport.exchange import Send

#: A merchant's setting. Polls cost requests: an operator turns them on.
ON = "ON"
POLL = PosField(
    "ON: the POS is polled each minute for changes of accepted orders; OFF, the default: by callbacks alone",
    f"{ON}|OFF",
    required=False,
    names_pos=False,
)


class Window(NamedTuple):
    """Time of the changes that a poll asks for, by the POS's clock."""

    since: datetime
    until: datetime
    #: Least time at which the POS got an open order.
    made_since: datetime


#: A page of changes, or why the rest cannot be read.
Page = Sequence[Callback] | Outcome


@runtime_checkable
class ListsChanges(Protocol):
    """Optional for an adapter: the POS lists changed orders."""

    pos_fields: Mapping[str, PosField]

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        """The state of all changed orders, of any client's, a page at a time.

        An order may come twice, and with known changes. At most 25 requests. Lets TransportError pass.
        An adapter with ``lists_all`` lists all orders since ``made_since``, and no poll of it is behind.
        """
        ...


def is_polled(merchant: Merchant, adapter: object) -> bool:
    """Whether the merchant's POS is polled."""
    return isinstance(adapter, ListsChanges) and merchant.pos.get("poll") == ON


def said_in(
    pages: Iterable[list[dict[str, Any]] | Outcome],
    say: Callable[[dict[str, Any]], list[Callback]],
) -> Iterator[Page]:
    """The callbacks of each page's orders; an Outcome is passed on."""
    for page in pages:
        if isinstance(page, Outcome):
            yield page
        else:
            yield [each for found in page for each in say(found)]


def callbacks_of(
    known_as: str | None,
    meaning: Kind | Lifecycle | None,
    at: float | None = None,
    reason: Reason | None = None,
) -> list[Callback]:
    """The callback about the order with the POS's id ``known_as``; empty without an id or a meaning."""
    if known_as is None or meaning in (None, Kind.PENDING):
        return []
    event_id = f"poll {known_as} {meaning}"
    return [Callback(event_id, meaning, None, known_as, at, reason)]
