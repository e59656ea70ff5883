"""Events that have their positions, as long as they are kept: for those who look back."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, and_, func, select

from pos_gateway.broker.message import Message
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.schema import events, merchants, orders, pipeline
from pos_gateway.ledger.states import Action


@dataclass(frozen=True, slots=True)
class Extent:
    """Which positions there are."""

    #: The highest that the broker has confirmed, with all before it; 0: none.
    published: int
    #: The lowest that is kept of these; None: none is.
    first: int | None


class Archive:
    """Reads events, and makes them whole again. Safe from threads.

    An event is made whole of what there is now. One whose order was pruned says so.
    """

    def __init__(self, engine: Engine, hydration: Hydration) -> None:
        self._engine = engine
        self._hydration = hydration

    def extent(self) -> Extent:
        """Which positions there are."""
        published = func.coalesce(select(pipeline.c.published).scalar_subquery(), 0)
        with self._engine.connect() as connection:
            last = connection.scalar(select(published)) or 0
            query = select(func.min(events.c.position)).where(events.c.position <= last)
            return Extent(last, connection.scalar(query))

    def count(self, first: int, last: int) -> int:
        """How many of these positions are kept."""
        query = select(func.count()).where(events.c.position.between(first, last))
        with self._engine.connect() as connection:
            return connection.execute(query).scalar_one()

    def read(self, first: int, last: int, batch: int) -> Iterator[list[tuple[int, Message]]]:
        """What is kept of these positions, each with its own, in batches, in their order."""
        while rows := self._rows(
            _rows().where(events.c.position.between(first, last)).limit(batch)
        ):
            yield rows
            first = rows[-1][0] + 1

    def latest(
        self,
        most: int,
        *,
        since: float | None = None,
        types: Collection[str] = (),
        merchant_ids: Collection[str] = (),
        order_ids: Collection[str] = (),
    ) -> list[Message]:
        """The last ones that all of this is true of, in their order.

        Args:
            most: so many at most.
            since: they happened since then (Unix time).
            types: one of these, without ``order.``; none given is any. So are the others.
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
        return [message for _, message in self._rows(_rows().where(events.c.id.in_(last)))]

    def _rows(self, query: Select[Any]) -> list[tuple[int, Message]]:
        with self._engine.connect() as connection:
            rows = [Row(*each) for each in connection.execute(query)]
        return [(row.position or 0, self._hydration.message(row)) for row in rows]


def _rows() -> Select[Any]:
    """What ``Row`` is made of, as it is made for the leader."""
    submission = and_(
        orders.c.merchant_id == events.c.merchant_id,
        orders.c.order_id == events.c.order_id,
        orders.c.action == Action.SUBMIT,
    )
    return (
        select(
            events.c.id,
            events.c.position,
            events.c.event_id,
            events.c.type,
            events.c.merchant_id,
            events.c.order_id,
            events.c.occurred_at,
            events.c.external_id,
            events.c.reason_code,
            events.c.reason_message,
            events.c.attempts,
            events.c.body,
            func.coalesce(events.c.payload, orders.c.payload),
            merchants.c.provider,
            merchants.c.adapter,
        )
        .select_from(
            events.outerjoin(orders, submission).outerjoin(
                merchants, merchants.c.id == events.c.merchant_id
            )
        )
        .order_by(events.c.position)
    )
