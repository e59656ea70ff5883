"""Callbacks in the ledger: what a POS says by itself of an order, its state and its event at once.

One transaction writes a group's state changes, their events and the callbacks' ids, before any of
them is answered. Orders are locked first, so nothing moves between what was read and what is
written; one that a worker is writing at that moment is tried again. The epoch rises: an attempt in
flight loses its claim, and its message finds how the order ended.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from hashlib import sha256
from typing import Any

from sqlalchemy import Engine, delete, select, tuple_
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.schema import callbacks, orders
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable, OrderChanged
from pos_gateway.domain.outcome import Kind, Lifecycle, Reason, one_line
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.event_ids import with_another_id
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, EventRow, Key, State
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

#: How often an order is tried that a worker is writing, and the seconds between two tries.
TRIES, PAUSE = 5, 0.02
#: Seconds by which an event may be older than its callback: a POS repeats one for a day, and a date
#: long ago would have the event pruned at once.
OLDEST = 86_400.0


class CallbackResult(StrEnum):
    """What followed from a callback. All of these are stored, and answered with 200."""

    #: The order has changed, and there is an event.
    APPLIED = "applied"
    #: It says what is known.
    KNOWN = "known"
    #: The order is further than that.
    LATE = "late"
    #: It came before.
    DUPLICATE = "duplicate"
    #: The ledger has no such order of the merchant's.
    UNKNOWN = "unknown"
    #: The order was never sent: its POS cannot have it.
    UNSENT = "unsent"
    #: The order was sent to another POS than the merchant's record names now.
    MOVED = "moved"
    #: The POS has an order that ended otherwise, and whose end was published: for an operator.
    CONTRADICTION = "contradiction"
    #: Not stored: workers write the order all the time. The POS sends it again.
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Received:
    """A callback, and where it came."""

    adapter: str
    #: Of the URL that it came to; the callback's id is one of this merchant's.
    merchant_id: str
    callback: Callback
    #: The order that it is about.
    key: Key
    #: The fingerprints of the POS that its merchant's record names.
    endpoints: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str]:
        """What another one with the same is a duplicate of."""
        event_id = self.callback.event_id
        if identifier(event_id) is None:
            event_id = sha256(event_id.encode(errors="replace")).hexdigest()
        return self.adapter, self.merchant_id, event_id


@dataclass(frozen=True, slots=True)
class Applied:
    """What followed from a callback, and the events that were recorded with it."""

    result: CallbackResult
    events: tuple[Kind | Lifecycle, ...] = ()


#: Makes an event's row of the order's key, what has happened, and how often it was reopened.
Dehydrate = Callable[..., EventRow]


class CallbackLedger:
    """Applies callbacks on one connection. For one caller at a time.

    Args:
        engine: the database.
        payloads: seals the POS's words.
        dehydrate: makes events.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        dehydrate: Dehydrate,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = engine
        self._writer = Writer(engine, session=_SESSION)
        self._say: _Statements = _SQLite() if engine.dialect.name == "sqlite" else _PostgreSQL()
        self._payloads = payloads
        self._dehydrate = dehydrate
        self._clock = clock

    def apply(self, received: Sequence[Received]) -> list[Applied]:
        """Write what follows from each, in order.

        Raises:
            LedgerUnavailable: the database is away; the same may be applied again.
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
        return [results.get(each, Applied(CallbackResult.BUSY)) for each in range(len(received))]

    def owners(self, external_id: str) -> list[Key]:
        """The orders that some POS knows by this id. Safe from threads.

        Raises:
            SQLAlchemyError: the database is away.
        """
        query = select(orders.c.merchant_id, orders.c.order_id).where(
            orders.c.external_id == external_id, orders.c.action == Action.SUBMIT
        )
        with self._engine.connect() as connection:
            return [Key(*row) for row in connection.execute(query)]

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def _transact(self, cursor: Any, received: dict[int, Received]) -> dict[int, Applied]:
        """What followed from each; those whose order is being written are left out."""
        keys = sorted({each.key for each in received.values()})
        busy, rows = self._say.lock(cursor, [_key(key) for key in keys])
        found = {(row.key.merchant_id, row.key.order_id, row.key.action): row for row in rows}
        present = {n: each for n, each in received.items() if _key(each.key) not in busy}
        seen = self._say.seen(cursor, sorted({each.identity for each in present.values()}))
        group = _Group(self._payloads, self._dehydrate, self._clock.now().timestamp())
        done = {}
        for place, each in present.items():
            if each.identity in seen:
                done[place] = Applied(CallbackResult.DUPLICATE)
                continue
            seen.add(each.identity)
            order, request = (found.get((*_key(each.key), action)) for action in _ACTIONS)
            done[place] = group.apply(each, order, request)
        self._say.write(cursor, group)
        return done


@dataclass(slots=True)
class _Standing:
    """A row of ``orders`` as it is locked, and as this transaction leaves it."""

    key: Key
    state: State
    epoch: int
    attempts: int
    in_doubt: bool
    pending: bool
    reopened: int
    endpoint: str | None
    external_id: str | None
    lifecycle: Lifecycle | None

    @property
    def may_be_sent(self) -> bool:
        """Whether its POS may have got it, or the request: SENDING was durable once."""
        may_be_there = self.state is State.SENDING or self.in_doubt or self.pending
        return may_be_there or self.endpoint is not None


@dataclass(slots=True)
class _Group:
    """Decides what follows from callbacks, and collects what is to be written."""

    payloads: Payloads
    dehydrate: Dehydrate
    now: float
    ends: list[dict[str, Any]] = field(default_factory=list)
    lifecycles: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)

    def apply(
        self, received: Received, order: _Standing | None, request: _Standing | None
    ) -> Applied:
        """Decide what follows, and have it written.

        Args:
            order: the order's row.
            request: its cancel request's.
        """
        before = len(self.events)
        result = self._apply(received, order, request)
        adapter, merchant_id, event_id = received.identity
        self.received.append(
            {
                "adapter": adapter,
                "merchant_id": merchant_id,
                "event_id": event_id,
                "result": result,
                "now": self.now,
            }
        )
        return Applied(result, tuple(each["said"] for each in self.events[before:]))

    def _apply(
        self, received: Received, order: _Standing | None, request: _Standing | None
    ) -> CallbackResult:
        if order is None:
            return CallbackResult.UNKNOWN
        meaning, endpoint = received.callback.meaning, order.endpoint
        if order.state is not State.ACCEPTED and not order.may_be_sent:
            result = CallbackResult.UNSENT
        elif endpoint is not None and endpoint not in received.endpoints:
            result = CallbackResult.MOVED
        elif order.state is State.ACCEPTED:
            result = self._go_on(received, order, request, _OF_ACCEPTED[meaning])
        elif order.state.is_final:
            result = self._compare(received, order)
        else:
            self._end(received, order, _OF_OPEN[meaning])
            if isinstance(meaning, Lifecycle) and meaning is not Lifecycle.CANCELLED_BY_POS:
                self._go_on(received, order, request, meaning)
            result = CallbackResult.APPLIED
        return result

    def _compare(self, received: Received, order: _Standing) -> CallbackResult:
        """The order has ended, and was not accepted."""
        if _OF_OPEN[received.callback.meaning] is not Kind.ACCEPTED:
            return CallbackResult.KNOWN
        self._note(received, order, "callback.contradiction")
        return CallbackResult.CONTRADICTION

    def _go_on(
        self,
        received: Received,
        order: _Standing,
        request: _Standing | None,
        to: Lifecycle | None,
    ) -> CallbackResult:
        """An accepted order goes on, and never back."""
        if to is None:
            return CallbackResult.KNOWN
        if request is not None and request.state is State.CANCELLED:
            return CallbackResult.KNOWN if to is Lifecycle.CANCELLED_BY_POS else CallbackResult.LATE
        is_asked = request is not None and not request.state.is_final and request.may_be_sent
        if to is Lifecycle.CANCELLED_BY_POS and request is not None and is_asked:
            # The POS may say this because it was asked to.
            request.external_id = order.external_id
            self._end(received, request, Kind.CANCELLED)
            return CallbackResult.APPLIED
        if not to.is_after(order.lifecycle):
            return CallbackResult.KNOWN if to is order.lifecycle else CallbackResult.LATE
        order.lifecycle = to
        self.lifecycles.append({**_row_key(order.key), "epoch": order.epoch, "lifecycle": to})
        said = received.callback.occurred_at
        at = self.now if said is None else min(max(said, self.now - OLDEST), self.now)
        self._record(received, order, to, at)
        return CallbackResult.APPLIED

    def _end(self, received: Received, row: _Standing, kind: Kind) -> None:
        """End an order, or a cancel request, as a look-up at this moment would."""
        reason = self._reason(received, row.key)
        said = received.callback.external_id
        row.external_id = one_line(said)[:256] if said else row.external_id
        self.ends.append(
            {
                **_row_key(row.key),
                "was": row.state,
                "epoch": row.epoch,
                "state": kind,
                "external_id": row.external_id,
                "reason_code": reason and reason.code,
                "reason_message": reason and reason.message,
                "now": self.now,
            }
        )
        row.state, row.epoch = State(kind.value), row.epoch + 1
        self._record(received, row, kind, self.now)
        self._note(received, row, f"callback.{kind}")

    def _record(
        self, received: Received, row: _Standing, kind: Kind | Lifecycle, at: float
    ) -> None:
        event = self.dehydrate(row.key, kind, reopened=row.reopened)
        reason = self._reason(received, row.key)
        self.events.append(
            {
                "n": len(self.events),
                "event": event,
                "said": kind,
                "key": row.key,
                "epoch": row.epoch,
                "type": event.kind,
                "merchant_id": row.key.merchant_id,
                "order_id": row.key.order_id,
                "now": at,
                "external_id": row.external_id,
                "reason_code": reason and reason.code,
                "reason_message": reason and reason.message,
                "attempts": row.attempts,
            }
        )

    def _note(self, received: Received, row: _Standing, what: str) -> None:
        adapter, merchant_id, event_id = received.identity
        self.audit.append(
            {
                "n": len(self.audit),
                "now": self.now,
                "operator": f"callback of {adapter}",
                "what": what,
                "merchant_id": row.key.merchant_id,
                "order_id": row.key.order_id,
                "details": f"{received.callback.meaning} as {event_id} to {merchant_id}",
            }
        )

    def _reason(self, received: Received, key: Key) -> Reason | None:
        reason = received.callback.reason
        if reason is None:
            return None
        return self.payloads.seal_reason(key, Reason.of(reason.code, reason.message))


#: What a callback makes of an open order: a POS prepares what it has accepted.
_OF_OPEN: dict[Kind | Lifecycle, Kind] = {
    Kind.ACCEPTED: Kind.ACCEPTED,
    Kind.REJECTED: Kind.REJECTED,
    Kind.CANCELLED: Kind.CANCELLED,
    Lifecycle.PREPARING: Kind.ACCEPTED,
    Lifecycle.READY: Kind.ACCEPTED,
    Lifecycle.COMPLETED: Kind.ACCEPTED,
    Lifecycle.CANCELLED_BY_POS: Kind.CANCELLED,
}
#: What it makes of an accepted one; None: nothing. A second terminal event is never published.
_OF_ACCEPTED: dict[Kind | Lifecycle, Lifecycle | None] = {
    Kind.ACCEPTED: None,
    Kind.REJECTED: Lifecycle.CANCELLED_BY_POS,
    Kind.CANCELLED: Lifecycle.CANCELLED_BY_POS,
    **{each: each for each in Lifecycle},
}


def prune_callbacks(engine: Engine, before: float, batch: int) -> Iterator[int]:
    """Remove the rows that are older (Unix time), ``batch`` at a time; yields how many.

    Raises:
        LedgerUnavailable: the database is away.
    """
    key = (callbacks.c.adapter, callbacks.c.merchant_id, callbacks.c.event_id)
    old = callbacks.c.received_at < before
    try:
        while True:
            with engine.begin() as connection:
                query = select(*key).where(old).order_by(callbacks.c.received_at).limit(batch)
                rows = [tuple(row) for row in connection.execute(query)]
                if rows:
                    connection.execute(delete(callbacks).where(tuple_(*key).in_(rows), old))
            if not rows:
                return
            yield len(rows)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(str(error)) from error


_ACTIONS = (Action.SUBMIT, Action.CANCEL)


def _key(key: Key) -> tuple[str, str]:
    return key.merchant_id, key.order_id


def _row_key(key: Key) -> dict[str, Any]:
    return {"merchant_id": key.merchant_id, "order_id": key.order_id, "action": key.action}


# The rows of orders are locked until the commit: a server that stops in between must not keep them.
_SESSION = "set statement_timeout = '2s'; set idle_in_transaction_session_timeout = '2s'"

_VALUES = {
    "n": "integer",
    "adapter": "text",
    "merchant_id": "text",
    "order_id": "text",
    "action": "text",
    "event_id": "text",
    "result": "text",
    "state": "text",
    "was": "text",
    "epoch": "bigint",
    "lifecycle": "text",
    "external_id": "text",
    "reason_code": "text",
    "reason_message": "text",
    "attempts": "integer",
    "type": "text",
    "operator": "text",
    "what": "text",
    "details": "text",
    "now": "double precision",
}

_FIND = """
select orders.merchant_id, orders.order_id, orders.action, orders.state, orders.epoch,
       orders.attempts, orders.doubt_since is not null, orders.pending, orders.reopened,
       orders.endpoint, orders.external_id, orders.lifecycle
from orders{and_rows}
where orders.merchant_id = {merchant_id} and orders.order_id = {order_id}"""

_SEEN = """
select callbacks.adapter, callbacks.merchant_id, callbacks.event_id from callbacks{and_rows}
where callbacks.adapter = {adapter} and callbacks.merchant_id = {merchant_id}
  and callbacks.event_id = {event_id}"""

_TAKEN = "select events.event_id from events{and_rows} where events.event_id = {event_id}"

_THIS = """
where orders.merchant_id = {merchant_id} and orders.order_id = {order_id}
  and orders.action = {action}"""

# The state as an expression: PostgreSQL would look through all orders of a state, by its index.
_END = (
    """
update orders
set state = {state}, owner = null, epoch = orders.epoch + 1, deaths = 0, taken_from = null,
    doubt_since = null, settling = null, pending = false, told = {state},
    external_id = {external_id}, reason_code = {reason_code}, reason_message = {reason_message},
    updated_at = {now}
{from_rows}"""
    + _THIS
    + " and orders.epoch = {epoch} and orders.state || '' = {was} returning orders.epoch"
)

_LIFECYCLE = (
    "update orders set lifecycle = {lifecycle} {from_rows}" + _THIS + " and orders.epoch = {epoch}"
)

_EVENT = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, reason_code,
                    reason_message, attempts)
select {event_id}, {type}, {merchant_id}, {order_id}, {now}, {external_id}, {reason_code},
       {reason_message}, {attempts} {from_rows} order by {n}"""

_NOTE = """
insert into audit (at, operator, what, merchant_id, order_id, details)
select {now}, {operator}, {what}, {merchant_id}, {order_id}, {details} {from_rows} order by {n}"""

_PUT = """
insert into callbacks (adapter, merchant_id, event_id, received_at, result)
select {adapter}, {merchant_id}, {event_id}, {now}, {result} {from_rows} where true
on conflict (adapter, merchant_id, event_id) do nothing"""


class _Statements:
    """The statements, in one database's dialect."""

    def _run(self, cursor: Any, text: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """Run for all these rows; returns what it finds."""
        raise NotImplementedError

    def lock(
        self, cursor: Any, keys: Sequence[tuple[str, str]]
    ) -> tuple[set[tuple[str, str]], list[_Standing]]:
        """Lock the rows of these orders; returns the keys of those that are being written, too."""
        raise NotImplementedError

    def seen(self, cursor: Any, ids: Iterable[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
        """Which of these callbacks came before."""
        names = ("adapter", "merchant_id", "event_id")
        rows = [dict(zip(names, each, strict=True)) for each in ids]
        return {tuple(row) for row in self._run(cursor, _SEEN, rows)} if rows else set()

    def write(self, cursor: Any, group: _Group) -> None:
        """Write what was decided."""
        if len(self._run(cursor, _END, group.ends)) < len(group.ends):
            raise OrderChanged("an order that was locked has changed")
        last = {_row_key_of(each): each for each in group.lifecycles}
        self._run(cursor, _LIFECYCLE, list(last.values()))
        self._run(cursor, _EVENT, self._events(cursor, group.events))
        self._run(cursor, _NOTE, group.audit)
        # In one order, so that two servers with the same callbacks never deadlock.
        self._run(cursor, _PUT, sorted(group.received, key=_put_order))

    def _events(self, cursor: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = [{"event_id": each["event"].id} for each in events]
        taken = {row[0] for row in self._run(cursor, _TAKEN, wanted)}
        written = []
        for each in events:
            event = each["event"]
            if event.id in taken:  # no event is lost
                event = with_another_id(each["key"], event, each["epoch"])
            row = {name: value for name, value in each.items() if name in _VALUES}
            written.append({**row, "event_id": event.id})
        return written


class _PostgreSQL(_Statements):
    """Each statement is for all rows."""

    _rows = f"json_to_recordset(%s) as r({', '.join(f'{n} {t}' for n, t in _VALUES.items())})"

    def lock(
        self, cursor: Any, keys: Sequence[tuple[str, str]]
    ) -> tuple[set[tuple[str, str]], list[_Standing]]:
        rows = [
            {"merchant_id": merchant_id, "order_id": order_id} for merchant_id, order_id in keys
        ]
        cursor.execute("begin")
        there = {tuple(row[:3]) for row in self._run(cursor, _FIND, rows)}
        # Workers may wait for these locks, and these never wait for a worker's: no deadlock.
        locked = self._run(cursor, _FIND + " for update of orders skip locked", rows)
        busy = {row[:2] for row in there - {tuple(row[:3]) for row in locked}}
        return busy, [_standing(row) for row in locked]

    def write(self, cursor: Any, group: _Group) -> None:
        super().write(cursor, group)
        cursor.execute("commit")

    def _run(self, cursor: Any, text: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
        if not rows:
            return []
        places = {name: f"r.{name}" for name in _VALUES}
        said = text.format(**places, from_rows=f"from {self._rows}", and_rows=f", {self._rows}")
        cursor.execute(said, (json.dumps(list(rows)),))
        found: list[Any] = cursor.fetchall() if cursor.description else []
        return found


class _SQLite(_Statements):
    """Each statement is for one row. The transaction has the whole database to itself."""

    _nothing = dict.fromkeys(_VALUES)

    def lock(
        self, cursor: Any, keys: Sequence[tuple[str, str]]
    ) -> tuple[set[tuple[str, str]], list[_Standing]]:
        rows = [
            {"merchant_id": merchant_id, "order_id": order_id} for merchant_id, order_id in keys
        ]
        return set(), [_standing(row) for row in self._run(cursor, _FIND, rows)]

    def _run(self, cursor: Any, text: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
        said = text.format(**{name: f":{name}" for name in _VALUES}, from_rows="", and_rows="")
        found = []
        for row in rows:
            found += cursor.execute(said, {**self._nothing, **row}).fetchall()
        return found


def _standing(row: Sequence[Any]) -> _Standing:
    merchant_id, order_id, action, state, epoch, attempts, in_doubt, pending, reopened, *others = (
        row
    )
    endpoint, external_id, lifecycle = others
    return _Standing(
        Key(merchant_id, order_id, Action(action)),
        State(state),
        epoch,
        attempts,
        bool(in_doubt),
        bool(pending),
        reopened,
        endpoint,
        external_id,
        None if lifecycle is None else Lifecycle(lifecycle),
    )


def _row_key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["merchant_id"], row["order_id"], row["action"]


def _put_order(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["adapter"], row["merchant_id"], row["event_id"]
