"""Prunes terminal orders: first their content, later their rows, and their events.

An order's row outlives its content by a month, as a tombstone: a late message finds the order's
end, as does a late cancel request when the POS cannot be asked any more. An unpublished event
stays, and is published without its order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Engine,
    FromClause,
    Table,
    and_,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.engine import changing
from pos_gateway.database.schema import (
    audit,
    bulk_items,
    bulk_runs,
    callbacks,
    events,
    orders,
    pipeline,
    submissions,
)
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.states import FINAL, State

#: Rows per transaction: the longest wait of workers.
BATCH = 500
#: Seconds of an order's row as a tombstone, without its content.
TOMBSTONE = 30 * 86_400.0
#: Seconds of the row of an order cancelled before its arrival: the order may still come.
UNSEEN = 366 * 86_400.0

_THEIR_TIME = text("select extract(epoch from now())::float8")

_KEY = (orders.c.merchant_id, orders.c.order_id, orders.c.action)
_PLACE = (orders.c.updated_at, *_KEY)
#: The columns that may contain personal data.
_CONTENT = {
    "payload": None,
    "reason_code": None,
    "reason_message": None,
    "attempt_history": None,
    "step": None,
    "facts": None,
}


def present(engine: Engine, now: float) -> float:
    """The time of day for judging rows' age: this machine's, or PostgreSQL's if earlier.

    A machine whose clock is ahead would remove the rows of orders that have just ended. SQLite is
    on this machine, with the same clock.

    Raises:
        LedgerUnavailable: the database is away.
    """
    if engine.dialect.name == "sqlite":
        return now
    try:
        with engine.connect() as connection:
            theirs: float = connection.execute(_THEIR_TIME).scalar_one()
    except SQLAlchemyError as error:
        raise LedgerUnavailable(str(error)) from error
    return min(now, theirs)


def countable(engine: Engine, before: float) -> tuple[int, int, int]:
    """Numbers of orders for ``prune`` to empty, and of rows and events to remove."""
    emptied = select(func.count()).where(_over(before), _has_content(), ~_is_forgotten(before))
    removed = select(func.count()).where(_is_forgotten(before))
    events_only = select(func.count()).where(_is_old(before), ~_of_open(before))
    with engine.connect() as connection:
        emptied_rows, rows, old_events = (
            connection.execute(each).scalar_one() for each in (emptied, removed, events_only)
        )
    return emptied_rows, rows, old_events


def prune(engine: Engine, before: float, batch: int = BATCH) -> Iterator[tuple[int, int, int]]:
    """Prune orders and events from before this moment (Unix time), beside running workers.

    Yields the numbers of emptied orders, removed rows and removed events of each batch.
    """
    for emptied, removed in prune_orders(engine, before, batch):
        yield emptied, removed, 0
    last = 0
    while True:
        # An open order keeps its events.
        old = and_(events.c.id > last, _is_old(before))
        query = select(events.c.id).where(old, ~_of_open(before))
        with changing(engine) as connection:
            free = query.order_by(events.c.id).limit(batch).with_for_update(skip_locked=True)
            ids = connection.scalars(free).all()
            if ids:
                connection.execute(delete(events).where(events.c.id.in_(ids)))
        if not ids:
            return
        last = ids[-1]
        yield 0, 0, len(ids)


def prune_orders(engine: Engine, before: float, batch: int = BATCH) -> Iterator[tuple[int, int]]:
    """Empty orders that ended before this moment (Unix time), and remove rows long empty.

    An order has ended once its ``deliver_by`` has passed too, and its cancel request is terminal or
    unanswered past its own ``deliver_by``, with a lost message. Each batch reads a bounded number
    of rows; yields the numbers of emptied orders and removed rows. Also prunes, uncounted,
    submissions, callbacks, programs' lines in the audit, and bulk runs. Rows locked by another
    session stay for a later pass.

    Raises:
        LedgerUnavailable: the database is away, or a table is locked; the rest is pruned.
    """
    failure: LedgerUnavailable | None = None
    others = (prune_submissions, prune_callbacks, _prune_audit, _prune_runs)
    uncounted = [((0, 0) for _ in prune_others(engine, before, batch)) for prune_others in others]
    for each in (_prune_rows(engine, before, batch), *uncounted):
        try:
            yield from each
        except LedgerUnavailable as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _prune_rows(engine: Engine, before: float, batch: int) -> Iterator[tuple[int, int]]:
    try:
        for keys in _ended_before(engine, before, batch):
            free = select(*_KEY).where(tuple_(*_KEY).in_(keys)).with_for_update(skip_locked=True)
            with changing(engine) as connection:
                these = tuple_(*_KEY).in_([tuple(each) for each in connection.execute(free)])
                # Checked in the same statement: an operator may have reopened an order meanwhile.
                empty = update(orders).where(these, _over(before), _has_content()).values(_CONTENT)
                removed = connection.execute(delete(orders).where(these, _is_forgotten(before)))
                emptied = connection.execute(empty)
            yield emptied.rowcount, removed.rowcount
    except SQLAlchemyError as error:
        raise LedgerUnavailable(f"the table {orders.name}: {error}") from error


def prune_submissions(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove submissions older than ``before`` (Unix time); as ``remove_old``."""
    key, at = (submissions.c.merchant_id, submissions.c.order_id), submissions.c.submitted_at
    return remove_old(engine, submissions, key, at < before, at, batch)


def prune_callbacks(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove callbacks received before a Unix time; as ``remove_old``."""
    key = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)
    at = callbacks.c.received_at
    return remove_old(engine, callbacks, key, at < before, at, batch)


def _prune_audit(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove programs' lines, up to a line per order or page; operators' lines stay."""
    what = audit.c.what
    by_program = or_(what.in_(("orders.cancel", "events.reveal")), what.startswith("callback."))
    old = and_(by_program, audit.c.at < before)
    return remove_old(engine, audit, (audit.c.id,), old, audit.c.id, batch)


def _prune_runs(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove bulk runs with their items, except running ones."""
    old = and_(bulk_runs.c.created_at < before, bulk_runs.c.state != "running")
    of_old = bulk_items.c.run.in_(select(bulk_runs.c.id).where(old))
    key = (bulk_items.c.run, bulk_items.c.number)
    yield from remove_old(engine, bulk_items, key, of_old, bulk_items.c.run, batch)
    # A run that an operator has just resumed would have no items.
    is_empty = ~exists().where(bulk_items.c.run == bulk_runs.c.id)
    yield from remove_old(
        engine, bulk_runs, (bulk_runs.c.id,), and_(old, is_empty), bulk_runs.c.id, batch
    )


def remove_old(
    engine: Engine,
    table: Table,
    key: Sequence[Column[Any]],
    old: ColumnElement[bool],
    oldest_first: Column[Any],
    batch: int,
) -> Iterator[int]:
    """Remove old rows, ``batch`` at a time, except locked rows; yields the number of each batch.

    Raises:
        LedgerUnavailable: the database is away.
    """
    try:
        while True:
            with changing(engine) as connection:
                query = select(*key).where(old).order_by(oldest_first).limit(batch)
                free = query.with_for_update(skip_locked=True)
                rows = [tuple(row) for row in connection.execute(free)]
                if rows:
                    connection.execute(delete(table).where(tuple_(*key).in_(rows), old))
            if not rows:
                return
            yield len(rows)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(f"the table {table.name}: {error}") from error


def _ended_before(engine: Engine, before: float, batch: int) -> Iterator[Sequence[Any]]:
    """Keys of unchanged rows by state, oldest first: along the index, a batch at a time."""
    for state in State:
        last: Any = (0.0, "", "", "")
        while True:
            here = and_(orders.c.state == state, orders.c.updated_at >= last[0])
            query = select(*_PLACE).where(
                here, orders.c.updated_at < before, tuple_(*_PLACE) > tuple_(*last)
            )
            with engine.connect() as connection:
                rows = connection.execute(query.order_by(*_PLACE).limit(batch)).all()
            if not rows:
                break
            yield [tuple(key) for _, *key in rows]
            last = tuple(rows[-1])


def _over(before: float) -> ColumnElement[bool]:
    """Whether an order and its cancel request, if any, ended before."""
    other = orders.alias("other")
    open_part = exists().where(_same(other, orders), ~_ended(other, before))
    return and_(_ended(orders, before), ~open_part)


def _is_forgotten(before: float) -> ColumnElement[bool]:
    """Whether the row is a tombstone past its time."""
    other = orders.alias("other")
    kept_part = exists().where(_same(other, orders), ~_ended(other, before - TOMBSTONE, UNSEEN))
    return and_(_ended(orders, before - TOMBSTONE, UNSEEN), ~kept_part)


def _ended(rows: FromClause, before: float, unseen: float = 0.0) -> ColumnElement[bool]:
    never_came = and_(rows.c.action == "submit", rows.c.deliver_by.is_(None))
    ended_at = rows.c.updated_at + case((never_came, unseen), else_=0.0)
    in_the_past = or_(rows.c.deliver_by.is_(None), rows.c.deliver_by < before)
    is_lost = and_(rows.c.action == "cancel", rows.c.deliver_by < before)
    return and_(or_(rows.c.state.in_(FINAL), is_lost), ended_at < before, in_the_past)


def _has_content() -> ColumnElement[bool]:
    return or_(*(orders.c[name].is_not(None) for name in _CONTENT))


def _is_old(before: float) -> ColumnElement[bool]:
    """Whether an event is old and published."""
    published = select(pipeline.c.published).scalar_subquery()
    return and_(events.c.occurred_at < before, events.c.position <= published)


def _of_open(before: float) -> ColumnElement[bool]:
    """Whether an event's order has not ended."""
    row = orders.alias("row")
    return exists().where(_same(row, events), ~_ended(row, before))


def _same(rows: FromClause, others: FromClause) -> ColumnElement[bool]:
    return and_(rows.c.merchant_id == others.c.merchant_id, rows.c.order_id == others.c.order_id)
