"""Reads past events: published and still kept."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Engine, bindparam, func, select, text
from sqlalchemy import Row as SqlRow

from pos_gateway.broker.message import Message
from pos_gateway.database.schema import events, pipeline
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import BATCH_BYTES, ROWS, Row
from pos_gateway.ledger.states import Action, Key

#: Generations of an order, before the present, with events to look for.
_REOPENED = 20


@dataclass(frozen=True, slots=True)
class Extent:
    """The range of positions."""

    #: The highest position confirmed by the broker, with all before; 0: no position.
    published: int
    #: The lowest kept position among them; None: no event is kept.
    first: int | None


class Archive:
    """Reads events, hydrated again from the present rows. Safe from threads.

    An event of a pruned order says so.
    """

    def __init__(self, engine: Engine, hydration: Hydration) -> None:
        self._engine = engine
        self._hydration = hydration

    def extent(self) -> Extent:
        """The range of positions."""
        published = func.coalesce(select(pipeline.c.published).scalar_subquery(), 0)
        with self._engine.connect() as connection:
            last = connection.scalar(select(published)) or 0
            query = select(func.min(events.c.position)).where(events.c.position <= last)
            return Extent(last, connection.scalar(query))

    def count(self, first: int, last: int) -> int:
        """Number of kept events from ``first`` to ``last``."""
        query = select(func.count()).where(events.c.position.between(first, last))
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def read(self, first: int, last: int, batch: int) -> Iterator[list[tuple[int, Message]]]:
        """The kept events from ``first`` to ``last`` with their positions, in ordered batches."""
        while found := self._first(first - 1, min(batch, last - first + 1), BATCH_BYTES):
            first = found[-1].position + 1
            # All found events may have been pruned since, and later events not.
            if rows := self._hydrated([row.id for row in found if row.position <= last]):
                yield rows

    def after(self, position: int, most: int, size: int) -> list[tuple[int, Message]]:
        """The kept published events after this position, each with its position, in order.

        Args:
            most: maximum number of events.
            size: maximum stored bytes of two or more events.
        """
        ids = [row.id for row in self._first(position, most, size)]
        return self._hydrated(ids) if ids else []

    def _first(self, position: int, most: int, size: int) -> Sequence[SqlRow[Any]]:
        """Ids and positions of events, up to ``size`` bytes, but of at least an event."""
        found: list[SqlRow[Any]] = []
        for row in self._lengths(position, most):
            size -= row.length
            if found and size < 0:
                break
            found.append(row)
        return found

    def _lengths(self, position: int, most: int) -> Iterator[SqlRow[Any]]:
        """Ids and positions of events, with their stored bytes."""
        query = _LENGTHS[self._engine.dialect.name == "postgresql"]
        while most > 0:
            values = {"after": position, "most": min(most, _CHUNK)}
            with self._engine.connect() as connection:
                rows = connection.execute(query, values).all()
            yield from rows
            if len(rows) < _CHUNK:
                return
            position, most = rows[-1].position, most - _CHUNK

    def of_order(self, key: Key, reopened: int, requests_reopened: int) -> list[Message]:
        """The kept published events of an order and of its cancel request, in order.

        Found by ids derived from the order: an index by order would cost every event. An
        event whose id was taken is missing.

        Args:
            reopened, requests_reopened: reopenings of the order, and of its cancel request.
        """
        ids = [
            dehydrated(each, kind, reopened=number).id
            for each, last in (
                (key, reopened),
                (replace(key, action=Action.CANCEL), requests_reopened),
            )
            for number in range(max(0, last - _REOPENED), last + 1)
            for kind in (*Kind, *Lifecycle)
        ]
        return self.by_ids(ids)[1]

    def by_ids(self, event_ids: Collection[str]) -> tuple[set[str], list[Message]]:
        """The ids of kept events, and the published events, in order."""
        columns = select(events.c.event_id, events.c.id, events.c.position)
        with self._engine.connect() as connection:
            kept = connection.execute(columns.where(events.c.event_id.in_(event_ids))).all()
            published = connection.scalar(select(pipeline.c.published)) or 0
        ids = [row.id for row in kept if row.position is not None and row.position <= published]
        rows = self._hydrated(ids)
        return {row.event_id for row in kept}, [message for _, message in rows]

    def latest(
        self,
        most: int,
        *,
        since: float | None = None,
        types: Collection[str] = (),
        merchant_ids: Collection[str] = (),
        order_ids: Collection[str] = (),
    ) -> list[Message]:
        """The last events that match all filters, in order.

        Args:
            most: maximum number of events.
            since: minimum time of occurrence (Unix time).
            types: any of these, without ``order.``; empty: all.
            merchant_ids, order_ids: likewise.
        """
        conditions: list[ColumnElement[bool]] = [events.c.position.is_not(None)]
        if since is not None:
            conditions.append(events.c.occurred_at >= since)
        for column, wanted in (
            (events.c.type, types),
            (events.c.merchant_id, merchant_ids),
            (events.c.order_id, order_ids),
        ):
            if wanted:
                conditions.append(column.in_(list(wanted)))
        last = select(events.c.id).where(*conditions).order_by(events.c.position.desc()).limit(most)
        with self._engine.connect() as connection:
            ids = connection.scalars(last).all()
        return [message for _, message in self._hydrated(ids)]

    def _hydrated(self, ids: Sequence[int]) -> list[tuple[int, Message]]:
        """The kept events of ``ids``, in order."""
        with self._engine.connect() as connection:
            rows = [Row(*each) for each in connection.execute(_BY_ID, {"ids": ids})]
        return [(row.position or 0, self._hydration.message(row)) for row in rows]


_BY_ID = text(ROWS + "events where id in :ids order by position").bindparams(
    bindparam("ids", expanding=True)
)

#: Maximum events per reading of lengths.
_CHUNK = 100
_LENGTHS_OF = """
select id, position, 500 + coalesce(length(reason_message), 0) + coalesce(
    length(body), length(payload), (
        select length(payload) from orders
        where orders.merchant_id = events.merchant_id and orders.order_id = events.order_id
          and orders.action = 'submit'), 0) as length
from events where position > :after
  and position <= coalesce((select published from pipeline where id = 1), 0)
order by position limit :most"""
#: PostgreSQL (True) knows a text's bytes without reading the text.
_LENGTHS = {
    False: text(_LENGTHS_OF),
    True: text(_LENGTHS_OF.replace("length(", "octet_length(")),
}
