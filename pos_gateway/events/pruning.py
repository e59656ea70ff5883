"""Prunes old published events, while workers record and publish."""

from collections.abc import Iterator

from sqlalchemy import Engine, and_, delete, func, select

from pos_gateway.database.engine import changing
from pos_gateway.database.schema import events, pipeline

#: Events per transaction: the longest wait of workers.
BATCH = 500

_PUBLISHED = select(pipeline.c.published).scalar_subquery()


def countable(engine: Engine, before: float) -> int:
    """Number of events for ``prune`` to remove."""
    query = select(func.count()).where(
        events.c.position <= _PUBLISHED, events.c.occurred_at < before
    )
    with engine.connect() as connection:
        return connection.execute(query).scalar_one()


def prune(engine: Engine, before: float, batch: int = BATCH) -> Iterator[int]:
    """Remove published events from before this moment (Unix time); yields each batch's number.

    Also finds old events behind newer events, recorded by a machine with a fast clock.
    """
    last = 0
    while True:
        old = and_(
            events.c.position > last,
            events.c.position <= _PUBLISHED,
            events.c.occurred_at < before,
        )
        query = select(events.c.id, events.c.position).where(old).order_by(events.c.position)
        with changing(engine) as connection:
            free = query.limit(batch).with_for_update(skip_locked=True)
            rows = connection.execute(free).all()
            if rows:
                ids = [row.id for row in rows]
                connection.execute(delete(events).where(events.c.id.in_(ids)))
        if not rows:
            return
        last = rows[-1].position
        yield len(rows)
