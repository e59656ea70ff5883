"""Republishes a terminal event, under the same id, when its order's message comes again.

A published event is published once more, at its position. An unpublished event waits for its turn.
An event with a pruned row is recorded again, and gets a new position.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.archive import Archive
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.ledger.ledger import Ledger, Run, here
from pos_gateway.ledger.states import Ended, Entry, EventRow, Key


@dataclass(frozen=True, slots=True)
class Repeats:
    """The terminal events to publish again."""

    #: Events with pruned rows, to record again.
    entries: Sequence[tuple[Key, Entry]] = ()
    #: Events already published.
    messages: Sequence[Message] = ()


class Repeating:
    """Finds terminal events. Safe from green threads. Raises SQLAlchemyError, LedgerUnavailable."""

    def __init__(
        self, engine: Engine, ledger: Ledger, hydration: Hydration, *, run: Run = here
    ) -> None:
        self._ledger = ledger
        self._archive = Archive(engine, hydration)
        self._run = run

    def ends(self, key: Key) -> Repeats:
        """The terminal events of this order and of its cancel request."""
        entries = [(each, _entry(each, ended)) for each, ended in self._ledger.ends(key)]
        known, messages = self._found([entry.event for _, entry in entries if entry.event])
        pruned = [(k, entry) for k, entry in entries if entry.event and entry.event.id not in known]
        return Repeats(pruned, messages)

    def event(self, event: EventRow) -> Repeats:
        """This event, if published."""
        return Repeats(messages=self._found([event])[1])

    def _found(self, wanted: Sequence[EventRow]) -> tuple[set[str], list[Message]]:
        found: tuple[set[str], list[Message]]
        found = self._run(lambda: self._archive.by_ids([each.id for each in wanted]))
        return found


def _entry(key: Key, ended: Ended) -> Entry:
    """The entry written with the end."""
    history = ended.history
    event = dehydrated(
        key, Kind(history.last_event or ended.state.value), reopened=history.reopened
    )
    return Entry(
        ended.state,
        ended.at,
        history.attempts,
        reason=ended.reason,
        external_id=ended.external_id,
        event=event,
    )
