"""Re-seals stored orders with the current key, while workers read and write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
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

#: Orders per transaction: workers wait for no more than that.
BATCH = 200
#: Orders sampled to find one stored in clear.
_SOME = 10_000


#: The columns of orders that have something to seal.
_SEALED = (orders.c.payload, orders.c.reason_message, orders.c.attempt_history, orders.c.facts)


@dataclass(frozen=True, slots=True)
class Resealed:
    """The result of a batch."""

    looked_at: int
    sealed: int
    #: Rows that no key opens, and why, a sentence each. They stay as they are.
    unopened: tuple[str, ...] = ()


def reseal(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal every order and reason in clear or under an earlier key; yields each batch's result.

    So are the reasons of an order's last attempts, and the facts of its steps. A payload or reason written meanwhile is left as written, be it under an earlier key:
    ``count_stale`` has those. Safe to interrupt and restart at any time.
    """
    key = (orders.c.merchant_id, orders.c.order_id, orders.c.action)
    last = ("", "", "")
    while True:
        query = (
            select(*key, orders.c.reason_code, *_SEALED)
            .where(tuple_(*key) > tuple_(*last), or_(*(column.is_not(None) for column in _SEALED)))
            .order_by(*key)
            .limit(batch)
        )
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        last = (rows[-1].merchant_id, rows[-1].order_id, rows[-1].action)
        # Sealed before the transaction begins, to keep it short.
        anew, unopened = _anew(rows, payloads)
        sealed = 0
        with changing(engine) as connection:
            for row, parts in anew:
                same_row = (column == getattr(row, column.name) for column in key)
                sealed += _write(connection, orders, and_(*same_row), row, parts)
        yield Resealed(len(rows), sealed, unopened)


def reseal_events(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """The same for events: bodies of messages that were no order, reasons, and hydrated bodies.

    The first two are sealed again. Stale hydrated bodies are removed, since they can be hydrated
    again; unpublished events keep theirs, which are ignored if no key opens them.
    """
    last = 0
    while True:
        some = (events.c.payload, events.c.body, events.c.reason_message)
        query = (
            select(events)
            .where(events.c.id > last, or_(*(column.is_not(None) for column in some)))
            .order_by(events.c.id)
            .limit(batch)
        )
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        last = rows[-1].id
        anew, unopened = _anew(rows, payloads)
        sealed = 0
        # One per transaction: the leader, which locks many rows, hardly waits.
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
    """The same for callbacks that wait for their order's id."""
    key = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)
    last = ("", "", "")
    while True:
        waiting = and_(tuple_(*key) > tuple_(*last), callbacks.c.waiting.is_not(None))
        query = select(*key, callbacks.c.waiting).where(waiting).order_by(*key).limit(batch)
        with engine.connect() as connection:
            rows = connection.execute(query).all()
        if not rows:
            return
        last = (rows[-1].adapter, rows[-1].merchant_id, rows[-1].event_id)
        sealed, unopened = 0, []
        for row in rows:
            try:
                text = payloads.resealed(Key(row.merchant_id, row.event_id), row.waiting)
            except CannotOpen as error:
                unopened.append(
                    f"callback {row.event_id!r} to merchant {row.merchant_id!r} is {error}"
                )
                continue
            if text != row.waiting:  # one per transaction: it waits for no row while it has one
                same_row = (column == getattr(row, column.name) for column in key)
                with changing(engine) as connection:
                    part = {"waiting": text}
                    sealed += _write(connection, callbacks, and_(*same_row), row, [part])
        yield Resealed(len(rows), sealed, tuple(unopened))


def count_stale_callbacks(engine: Engine, payloads: Payloads) -> int:
    """How many waiting callbacks are in clear or under an earlier key."""
    return _count(engine, callbacks, _lacks(callbacks.c.waiting, payloads.prefix))


def count_stale(engine: Engine, payloads: Payloads) -> int:
    """How many orders have a payload, reason or facts in clear or under an earlier key."""
    facts = _lacks(orders.c.facts, payloads.prefix)
    stale = or_(_is_stale(orders, payloads), _has_stale_attempts(payloads), facts)
    return _count(engine, orders, stale)


def count_stale_events(engine: Engine, payloads: Payloads) -> int:
    """The same for events; stale bodies count once they are published."""
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
    """Write each part that is still as it was read; whether there was any."""
    written = False
    for part in parts:
        unchanged = (table.c[name] == getattr(row, name) for name in part)
        change = update(table).where(same, *unchanged).values(part)
        written |= connection.execute(change).rowcount > 0
    return written


def _anew(
    rows: Sequence[Any], payloads: Payloads
) -> tuple[list[tuple[Any, list[_Part]]], tuple[str, ...]]:
    """The parts to write of each row, sealed again; and the rows that no key opens."""
    anew, unopened = [], []
    for row in rows:
        parts: list[_Part] = []
        problem = None
        for part in (_payload, _reason, _attempts, _facts):  # if no key opens one, seal the others
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


def _payload(row: Any, payloads: Payloads) -> dict[str, str]:
    if row.payload is None:
        return {}
    return {"payload": payloads.resealed(Key(row.merchant_id, row.order_id), row.payload)}


def _reason(row: Any, payloads: Payloads) -> dict[str, str]:
    if row.reason_message is None:
        return {}
    reason = Reason(row.reason_code or "", row.reason_message)
    reason = payloads.resealed_reason(Key(row.merchant_id, row.order_id), reason)
    return {"reason_code": reason.code, "reason_message": reason.message}


def _attempts(row: Any, payloads: Payloads) -> dict[str, str]:
    recorded = getattr(row, "attempt_history", None)  # events have none
    if recorded is None:
        return {}
    key = Key(row.merchant_id, row.order_id)
    return {"attempt_history": attempts.resealed(recorded, key, payloads)}


def _facts(row: Any, payloads: Payloads) -> dict[str, str]:
    facts = getattr(row, "facts", None)  # events have none
    if facts is None:
        return {}
    return {"facts": payloads.resealed(Key(row.merchant_id, row.order_id), facts)}


def any_in_clear(engine: Engine) -> bool:
    """Whether an order is stored in clear, in a bounded sample."""
    some = select(orders.c.payload).where(orders.c.payload.is_not(None)).limit(_SOME).subquery()
    in_clear = select(some.c.payload).where(some.c.payload.startswith("{")).limit(1)
    with engine.connect() as connection:
        return connection.execute(in_clear).first() is not None
