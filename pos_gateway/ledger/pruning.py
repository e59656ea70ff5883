"""Removing what is long over: orders that have ended, and the events that told of them.

An event that is not published stays, and is published without its order.
"""

from collections.abc import Iterator

from sqlalchemy import (
    ColumnElement,
    Engine,
    FromClause,
    and_,
    delete,
    exists,
    func,
    or_,
    select,
    tuple_,
)

from pos_gateway.ledger.schema import events, orders, pipeline
from pos_gateway.ledger.states import State

#: Rows a transaction: workers wait for no more than that.
BATCH = 500

_FINAL = [state for state in State if state.is_final]
_KEY = (orders.c.merchant_id, orders.c.order_id, orders.c.action)


def countable(engine: Engine, before: float) -> tuple[int, int]:
    """How many orders and cancellations, and how many events, ``prune`` would remove."""
    with engine.connect() as connection:
        rows = connection.execute(select(func.count()).where(_over(before))).scalar_one()
        of_open = exists().where(_same(orders, events), ~_over(before))
        told = connection.execute(select(func.count()).where(_told(before), ~of_open)).scalar_one()
    return rows, told


def prune(engine: Engine, before: float, batch: int = BATCH) -> Iterator[tuple[int, int]]:
    """Remove what ended before this moment (Unix time), while others read and write.

    An order goes once its ``deliver_by`` is over too, since a message that comes late is then not
    sent although nobody remembers it. Yields how many orders and cancellations, and how many
    events, each batch had.
    """
    while True:
        with engine.begin() as connection:
            keys = connection.execute(select(*_KEY).where(_over(before)).limit(batch)).all()
            # Asked again: an operator may have reopened one meanwhile.
            of_these = and_(tuple_(*_KEY).in_([tuple(key) for key in keys]), _over(before))
            removed = connection.execute(delete(orders).where(of_these)).rowcount if keys else 0
        if not keys:
            break
        yield removed, 0
    last = 0
    while True:
        # One of an order that is not over stays, with all that is in the ledger of it.
        old = and_(events.c.id > last, _told(before))
        query = select(events.c.id).where(old, ~exists().where(_same(orders, events)))
        with engine.begin() as connection:
            ids = connection.scalars(query.order_by(events.c.id).limit(batch)).all()
            if ids:
                connection.execute(delete(events).where(events.c.id.in_(ids)))
        if not ids:
            return
        last = ids[-1]
        yield 0, len(ids)


def _over(before: float) -> ColumnElement[bool]:
    """Whether an order ended before, and its cancellation, if there is one."""
    other = orders.alias("other")
    open_part = exists().where(_same(other, orders), ~_ended(other, before))
    return and_(_ended(orders, before), ~open_part)


def _ended(rows: FromClause, before: float) -> ColumnElement[bool]:
    in_the_past = or_(rows.c.deliver_by.is_(None), rows.c.deliver_by < before)
    return and_(rows.c.state.in_(_FINAL), rows.c.updated_at < before, in_the_past)


def _told(before: float) -> ColumnElement[bool]:
    """Whether an event is old, and the backend has it."""
    published = select(pipeline.c.published).scalar_subquery()
    return and_(events.c.occurred_at < before, events.c.position <= published)


def _same(rows: FromClause, others: FromClause) -> ColumnElement[bool]:
    return and_(rows.c.merchant_id == others.c.merchant_id, rows.c.order_id == others.c.order_id)
