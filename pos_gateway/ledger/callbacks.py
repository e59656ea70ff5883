"""Callbacks in the ledger: a POS's own news of an order, with the order's state and event at once.

One transaction writes a group's state changes, their events and the callbacks' ids, before a POS
gets its answer. Orders are locked first, so nothing moves between reading and writing; an order
that a worker is writing at the moment is tried again. The epoch rises: an attempt in flight loses
its claim, and its message finds the order's end.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Engine, Executable, or_, select, tuple_, update

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import callbacks
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.callback_rules import (
    LONGEST_WAIT,
    WAIT,
    Applied,
    CallbackGroup,
    CallbackResult,
    Dehydrate,
    Received,
    waiting_callback,
)
from pos_gateway.ledger.callback_statements import SESSION, CallbackStatements
from pos_gateway.ledger.event_notices import EventNotices
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Tries of a callback while another session writes its row or order, and seconds between tries.
TRIES, PAUSE = 5, 0.02
#: Seconds after which a claimed callback without a result is due again.
CLAIMED_FOR = 10.0
#: Level and event of a result's line in the log.
_LINES = {
    CallbackResult.APPLIED: (logging.INFO, "callback.applied"),
    CallbackResult.CONTRADICTION: (logging.WARNING, "callback.contradiction"),
    CallbackResult.MOVED: (logging.WARNING, "callback.moved"),
}
_ACTIONS = (Action.SUBMIT, Action.CANCEL)
_ORDER = (callbacks.c.shop, callbacks.c.external_id)
_KEY = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)


@dataclass(frozen=True, slots=True)
class WaitingCallback:
    """A callback that waits for its order's id, and the path of its URL."""

    adapter: str
    merchant_id: str
    callback: Callback
    #: Arrival (Unix time, by the database's clock).
    since: float


class CallbackLedger:
    """Applies callbacks on one connection. For one caller at a time.

    Args:
        engine: the database.
        payloads: seals the POS's words.
        dehydrate: makes events.
        clock: a simulation's. None: the database's, since servers compare times.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        dehydrate: Dehydrate,
        clock: Clock | None = None,
    ) -> None:
        self._engine = engine
        self._writer = Writer(engine, session=SESSION)
        self._say = CallbackStatements(is_sqlite=engine.dialect.name == "sqlite")
        self._payloads = payloads
        self._dehydrate = dehydrate
        self._clock = clock
        self._notices = EventNotices(engine, clock or SYSTEM_CLOCK)
        self._read_clock = str(select(Now()).compile(dialect=engine.dialect))

    def apply(self, received: Sequence[Received]) -> list[Applied]:
        """Write the results of callbacks, in their order.

        Raises:
            LedgerUnavailable: the database is away; the caller may repeat the call.
        """
        results: dict[int, Applied] = {}
        left = dict(enumerate(received))
        for number in range(TRIES):
            if number:
                time.sleep(PAUSE)
            done = self._writer.write(partial(self._transact, received=left))
            results |= done
            left = {place: each for place, each in left.items() if place not in done}
            if not left:
                break
        if any(each.events for each in results.values()):
            with suppress(LedgerUnavailable):  # written already, and the leader polls
                self._writer.read(self._notices.recorded)
        return [results.get(each, Applied(CallbackResult.BUSY)) for each in range(len(received))]

    def due(self, limit: int) -> list[WaitingCallback]:
        """Callbacks to apply again, in order of arrival: due ones, and others of the same orders.

        Other servers get a returned callback only after ``CLAIMED_FOR`` seconds. Safe from threads.

        Args:
            limit: maximum of due callbacks.

        Raises:
            SQLAlchemyError: the database is away.
        """
        found, unreadable = [], []
        with self._engine.begin() as connection:
            now = self._now(connection.exec_driver_sql)
            for *identity, since, text in connection.execute(_claim(now, limit)).all():
                try:
                    callback = waiting_callback(self._payloads, identity, text)
                except (CannotOpen, ValueError):  # another server may have the key
                    if now - since > WAIT:
                        unreadable.append(tuple(identity))
                else:
                    found.append(WaitingCallback(identity[0], identity[1], callback, since))
            if unreadable:
                end = update(callbacks).where(tuple_(*_KEY).in_(unreadable))
                connection.execute(end.values(result=CallbackResult.UNKNOWN, again_at=None))
        return sorted(found, key=lambda each: (each.since, each.callback.occurred_at or 0.0))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def _transact(self, cursor: Any, received: dict[int, Received]) -> dict[int, Applied]:
        """Results; callbacks are left out whose row, or order, another session is writing."""
        keys, nameless = self._keys(cursor, received)
        busy, rows = self._say.lock(cursor, map(_key, sorted(set(keys.values()))))
        found = {(row.key.merchant_id, row.key.order_id, row.key.action): row for row in rows}
        present = {
            n: each for n, each in received.items() if n not in keys or _key(keys[n]) not in busy
        }
        ids = sorted({each.identity for each in present.values() if not each.is_polled})
        being_written, seen = self._say.lock_seen(cursor, ids)
        now, count = self._now(cursor.execute), partial(self._say.waiting, cursor)
        group = CallbackGroup(self._payloads, self._dehydrate, now, count)
        done = {}
        for place, each in present.items():
            if each.identity in being_written:
                continue
            is_waiting = seen.get(each.identity)
            if is_waiting is not None and not (is_waiting and each.waiting_since is not None):
                done[place] = Applied(CallbackResult.DUPLICATE)
                continue
            seen[each.identity] = False
            if place in keys:
                order, request = (found.get((*_key(keys[place]), action)) for action in _ACTIONS)
                done[place] = group.apply(each, order, request)
            else:
                done[place] = group.wait(each) if place in nameless else group.drop(each)
        self._say.write(cursor, group)
        return done

    def _now(self, execute: Callable[[str], Any]) -> float:
        """Unix time."""
        if self._clock is not None:
            return self._clock.now().timestamp()
        return float(execute(self._read_clock).fetchone()[0])

    def _keys(self, cursor: Any, received: dict[int, Received]) -> tuple[dict[int, Key], set[int]]:
        """The callbacks' orders; and the callbacks whose order may have an id not known yet."""
        keys, ids = dict[int, Key](), dict[int, str]()
        for n, each in received.items():
            if (key := each.key) is not None:
                keys[n] = key
            elif (external_id := each.callback.external_id) is not None:
                ids[n] = external_id
        places = {(owner, known_as) for n, known_as in ids.items() for owner in received[n].owners}
        named, nameless = self._say.owned(cursor, sorted(places))
        waiting = set()
        for n, known_as in ids.items():
            owners = received[n].owners
            its = [Key(o, order_id) for o in owners for order_id in named.get((o, known_as), ())]
            if len(its) == 1:
                keys[n] = its[0]
            elif not its and not nameless.isdisjoint(owners):
                waiting.add(n)
        return keys, waiting


def _claim(now: float, limit: int) -> Executable:
    """Due callbacks, and others of the same orders, which all become due again later.

    The statement holds locks and so waits for none: another server may wait the other way round.
    """
    again_at = callbacks.c.again_at
    # Further ahead than any wait: the database's clock was set back.
    is_due = or_(again_at <= now, again_at > now + 2 * LONGEST_WAIT)
    due = select(*_ORDER).where(again_at.is_not(None), is_due).order_by(again_at)
    due_now = due.limit(limit).with_for_update(skip_locked=True).cte("due")
    of_them = tuple_(*_ORDER).in_(select(due_now))
    these = select(*_KEY).where(of_them, again_at.is_not(None))
    free = these.with_for_update(skip_locked=True).cte("free")
    claim = update(callbacks).where(tuple_(*_KEY).in_(select(free)))
    claim = claim.values(again_at=now + CLAIMED_FOR)
    return claim.returning(*_KEY, callbacks.c.received_at, callbacks.c.waiting)


def report(received: Received, applied: Applied, provider: str | None) -> None:
    """Log and count the result of a callback about an order of a merchant of ``provider``."""
    key = applied.key
    if key is None:
        return
    if applied.result in _LINES:
        level, event = _LINES[applied.result]
        log.log(
            level,
            event,
            adapter=received.adapter,
            merchant_id=key.merchant_id,
            order_id=key.order_id,
            meaning=received.callback.meaning.value,
        )
    for each in applied.events:
        if isinstance(each, Kind):
            metrics.outcome_recorded(each.value, provider)


def _key(key: Key) -> tuple[str, str]:
    return key.merchant_id, key.order_id
