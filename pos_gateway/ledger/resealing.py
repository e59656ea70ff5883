"""Re-seals stored orders with the current key, while workers read and write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, and_, or_, select, tuple_, update

from pos_gateway.database.schema import events, orders, pipeline
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen

#: Orders per transaction: workers wait for no more than that.
BATCH = 200
#: Orders sampled to find one stored in clear.
_SOME = 10_000


@dataclass(frozen=True, slots=True)
class Resealed:
    """The result of a batch."""

    looked_at: int
    sealed: int
    #: Rows that no key opens, and why, a sentence each. They stay as they are.
    unopened: tuple[str, ...] = ()


def reseal(engine: Engine, payloads: Payloads, batch: int = BATCH) -> Iterator[Resealed]:
    """Seal every order and reason in clear or under an earlier key; yields each batch's result.

    An order written meanwhile is left as written. Safe to interrupt and restart at any time.
    """
    key = (orders.c.merchant_id, orders.c.order_id, orders.c.action)
    last = ("", "", "")
    while True:
        query = (
            select(*key, orders.c.payload, orders.c.reason_code, orders.c.reason_message)
            .where(
                tuple_(*key) > tuple_(*last),
                or_(orders.c.payload.is_not(None), orders.c.reason_message.is_not(None)),
            )
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
        with engine.begin() as connection:
            for row, changes in anew:
                same_row = (column == getattr(row, column.name) for column in key)
                unchanged = (orders.c[name] == getattr(row, name) for name in changes)
                change = update(orders).where(*same_row, *unchanged).values(changes)
                sealed += connection.execute(change).rowcount
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
        # One per transaction: the leader, which locks many rows, hardly waits.
        for row, changes in anew:
            with engine.begin() as connection:
                connection.execute(update(events).where(events.c.id == row.id).values(changes))
        sealed = len(anew)
        hydrated = [row.id for row in rows if row.body is not None and payloads.is_stale(row.body)]
        if hydrated:
            published = select(pipeline.c.published).scalar_subquery()
            these = and_(events.c.id.in_(hydrated), events.c.position <= published)
            with engine.begin() as connection:
                sealed += connection.execute(update(events).where(these).values(body=None)).rowcount
        yield Resealed(len(rows), sealed, unopened)


def _anew(
    rows: Sequence[Any], payloads: Payloads
) -> tuple[list[tuple[Any, dict[str, str]]], tuple[str, ...]]:
    """The columns to write for each row, sealed again; and the rows that no key opens."""
    anew, unopened = [], []
    for row in rows:
        changes: dict[str, str] = {}
        problem = None
        for part in (_payload, _reason):  # if no key opens one, seal the other
            try:
                changes |= part(row, payloads)
            except CannotOpen as error:
                problem = str(error)
            except (ValueError, TypeError):
                problem = "changed since it was sealed"
        if problem is not None:
            unopened.append(f"order {row.order_id!r} of merchant {row.merchant_id!r} is {problem}")
        changed = {name: text for name, text in changes.items() if text != getattr(row, name)}
        if changed:
            anew.append((row, changed))
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


def any_in_clear(engine: Engine) -> bool:
    """Whether an order is stored in clear, in a bounded sample."""
    some = select(orders.c.payload).where(orders.c.payload.is_not(None)).limit(_SOME).subquery()
    in_clear = select(some.c.payload).where(some.c.payload.startswith("{")).limit(1)
    with engine.connect() as connection:
        return connection.execute(in_clear).first() is not None
