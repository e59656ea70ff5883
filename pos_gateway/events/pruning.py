"""Prunes old published events, while workers record and publish."""

from collections.abc import Iterator

from sqlalchemy import Engine, func, select

from pos_gateway.database.schema import events, pipeline
from pos_gateway.events.outbox import Outbox

#: Events per transaction: workers wait for no more than that.
BATCH = 500


def countable(engine: Engine, before: float) -> int:
    """How many ``prune`` would remove."""
    published = select(pipeline.c.published).scalar_subquery()
    query = select(func.count()).where(
        events.c.position <= published, events.c.occurred_at < before
    )
    with engine.connect() as connection:
        return connection.execute(query).scalar_one()


def prune(engine: Engine, before: float, batch: int = BATCH) -> Iterator[int]:
    """Remove published events from before this moment (Unix time); yields how many in each batch.

    It ends at the first batch without any: an older event behind a batch of newer ones is left to
    the next time.

    Raises:
        LedgerUnavailable: the database went away.
    """
    outbox = Outbox(engine)
    try:
        while removed := outbox.prune(before, batch):
            yield removed
    finally:
        outbox.close()
