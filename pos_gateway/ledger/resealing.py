"""Re-seals stored orders with the current key, while workers read and write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    and_,
    false,
    func,
    or_,
    select,
    tuple_,
    update,
)

from pos_gateway.database.engine import changing
from pos_gateway.database.schema import callbacks, events, orders, pipeline
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger import attempts
from pos_gateway.ledger.payloads import SEALED, Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen

#: Orders per transaction: the longest wait of workers.
BATCH = 200
#: Orders sampled to find one stored in clear.
_SOME = 10_000
#: Sealed columns of orders.
_SEALED = (orders.c.payload, orders.c.reason_message, orders.c.attempt_history, orders.c.facts)


@dataclass(frozen=True, slots=True)
class Resealed:
    """The result of a batch."""

    looked_at: int
    sealed: int
    #: A sentence for each row that no key opens; the row stays unchanged.
    unopened: tuple[str, ...] = ()


def reseal(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal every text of orders in clear or under an earlier key; yields each batch's result.

    Texts are the payload, the reason, the reasons of the last attempts, and the facts of steps. A
    text written meanwhile stays as written, even under an earlier key: ``count_stale`` counts
    these. Safe to interrupt and restart at any time.
    """
    key = (orders.c.merchant_id, orders.c.order_id, orders.c.action)
    has_text = or_(*(column.is_not(None) for column in _SEALED))
    query = select(*key, orders.c.reason_code, *_SEALED).where(has_text)
    for rows in _pages(engine, query, key, batch):
        # Sealed before the transaction begins, to keep the transaction short.
        anew, unopened = _anew(rows, payloads)
        sealed = 0
        with changing(engine) as connection:
            for row, parts in anew:
                same_row = (column == getattr(row, column.name) for column in key)
                sealed += _write(connection, orders, and_(*same_row), row, parts)
        yield Resealed(len(rows), sealed, unopened)


def reseal_events(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal events: bodies of invalid messages, and reasons; remove stale hydrated bodies.

    A removed body is hydrated again when needed. Unpublished events keep their bodies, which are
    ignored if no key opens them.
    """
    some = (events.c.payload, events.c.body, events.c.reason_message)
    query = select(events).where(or_(*(column.is_not(None) for column in some)))
    for rows in _pages(engine, query, (events.c.id,), batch):
        anew, unopened = _anew(rows, payloads)
        sealed = 0
        # An event per transaction: the leader, with many locked rows, hardly waits.
        for row, parts in anew:
            with changing(engine) as connection:
                sealed += _write(connection, events, events.c.id == row.id, row, parts)
        hydrated = [row.id for row in rows if row.body is not None and payloads.is_stale(row.body)]
        if hydrated:
            these = and_(events.c.id.in_(hydrated), events.c.position <= _PUBLISHED)
            with changing(engine) as connection:
                sealed += connection.execute(update(events).where(these).values(body=None)).rowcount
        yield Resealed(len(rows), sealed, unopened)


def reseal_callbacks(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal callbacks waiting for their order's id."""
    key = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)
    query = select(*key, callbacks.c.waiting).where(callbacks.c.waiting.is_not(None))
    for rows in _pages(engine, query, key, batch):
        sealed, unopened = 0, []
        for row in rows:
            try:
                text = payloads.resealed(Key(row.merchant_id, row.event_id), row.waiting)
            except CannotOpen as error:
                unopened.append(
                    f"callback {row.event_id!r} to merchant {row.merchant_id!r} is {error}"
                )
                continue
            if text != row.waiting:  # a transaction each: no wait for a row while holding a lock
                same_row = (column == getattr(row, column.name) for column in key)
                with changing(engine) as connection:
                    part = {"waiting": text}
                    sealed += _write(connection, callbacks, and_(*same_row), row, [part])
        yield Resealed(len(rows), sealed, tuple(unopened))


def _pages(
    engine: Engine, query: Select[Any], key: Sequence[Column[Any]], most: int
) -> Iterator[Sequence[Any]]:
    """The rows of a query in the order of their key, ``most`` at a time."""
    page = query.order_by(*key).limit(most)
    while True:
        with engine.connect() as connection:
            rows = connection.execute(page).all()
        if not rows:
            return
        yield rows
        last = [getattr(rows[-1], column.name) for column in key]
        page = query.where(tuple_(*key) > tuple_(*last)).order_by(*key).limit(most)


def count_stale_callbacks(engine: Engine, payloads: Payloads) -> int:
    """Number of waiting callbacks in clear or under an earlier key."""
    return _count(engine, callbacks, _lacks(callbacks.c.waiting, payloads.prefix))


def count_stale(engine: Engine, payloads: Payloads) -> int:
    """Number of orders with a payload, reason or facts in clear or under an earlier key."""
    facts = _lacks(orders.c.facts, payloads.prefix)
    stale = or_(_is_stale(orders, payloads), _has_stale_attempts(payloads), facts)
    return _count(engine, orders, stale)


def count_stale_events(engine: Engine, payloads: Payloads) -> int:
    """Number of events in clear or under an earlier key; stale bodies count once published."""
    body = _lacks(events.c.body, payloads.prefix)
    stale = or_(_is_stale(events, payloads), and_(body, events.c.position <= _PUBLISHED))
    return _count(engine, events, stale)


_PUBLISHED = select(pipeline.c.published).scalar_subquery()


def _count(engine: Engine, table: Table, which: ColumnElement[bool]) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table).where(which)) or 0


def _is_stale(table: Table, payloads: Payloads) -> ColumnElement[bool]:
    sealed_reason = None if payloads.prefix is None else SEALED + payloads.prefix
    return or_(
        _lacks(table.c.payload, payloads.prefix), _lacks(table.c.reason_message, sealed_reason)
    )


def _has_stale_attempts(payloads: Payloads) -> ColumnElement[bool]:
    patterns = attempts.stale_patterns(payloads)
    if patterns is None:
        return false()
    current, others = patterns
    rest = func.replace(orders.c.attempt_history, current, "")
    return or_(*(rest.contains(each, autoescape=True) for each in others))


def _lacks(column: ColumnElement[Any], prefix: str | None) -> ColumnElement[bool]:
    return false() if prefix is None else ~column.startswith(prefix)


#: Columns to write together: a payload, a reason, or the attempts.
_Part = dict[str, str]


def _write(
    connection: Connection, table: Table, same: ColumnElement[bool], row: Any, parts: list[_Part]
) -> bool:
    """Write each part unchanged since the read; returns whether any was written."""
    written = False
    for part in parts:
        unchanged = (table.c[name] == getattr(row, name) for name in part)
        change = update(table).where(same, *unchanged).values(part)
        written |= connection.execute(change).rowcount > 0
    return written


def _anew(
    rows: Sequence[Any], payloads: Payloads
) -> tuple[list[tuple[Any, list[_Part]]], tuple[str, ...]]:
    """Each row's parts to write, sealed again; and a sentence for each row that no key opens."""
    anew, unopened = [], []
    for row in rows:
        parts: list[_Part] = []
        problem = None
        for part in _PARTS:  # if no key opens a part, seal the rest
            try:
                sealed = part(row, payloads)
            except CannotOpen as error:
                problem = str(error)
            except (ValueError, TypeError):
                problem = "changed since it was sealed"
            else:
                if any(text != getattr(row, name) for name, text in sealed.items()):
                    parts.append(sealed)
        if problem is not None:
            unopened.append(f"order {row.order_id!r} of merchant {row.merchant_id!r} is {problem}")
        if parts:
            anew.append((row, parts))
    return anew, tuple(unopened)


def _text(name: str, row: Any, payloads: Payloads) -> dict[str, str]:
    text = getattr(row, name, None)  # events have no facts
    if text is None:
        return {}
    return {name: payloads.resealed(Key(row.merchant_id, row.order_id), text)}


def _reason(row: Any, payloads: Payloads) -> dict[str, str]:
    if row.reason_message is None:
        return {}
    reason = Reason(row.reason_code or "", row.reason_message)
    reason = payloads.resealed_reason(Key(row.merchant_id, row.order_id), reason)
    return {"reason_code": reason.code, "reason_message": reason.message}


def _attempts(row: Any, payloads: Payloads) -> dict[str, str]:
    recorded = getattr(row, "attempt_history", None)  # events have no attempts
    if recorded is None:
        return {}
    key = Key(row.merchant_id, row.order_id)
    return {"attempt_history": attempts.resealed(recorded, key, payloads)}


_PARTS = (partial(_text, "payload"), _reason, _attempts, partial(_text, "facts"))


def any_in_clear(engine: Engine) -> bool:
    """Whether an order is stored in clear, in a bounded sample."""
    some = select(orders.c.payload).where(orders.c.payload.is_not(None)).limit(_SOME).subquery()
    in_clear = select(some.c.payload).where(some.c.payload.startswith("{")).limit(1)
    with engine.connect() as connection:
        return connection.execute(in_clear).first() is not None
