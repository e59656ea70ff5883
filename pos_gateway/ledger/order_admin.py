"""Order administration: operators' reads and changes of the ledger.

A change applies only if the order is unchanged since the operator's read. A change commits in one
transaction with its event and its audit row: operator, time and reason.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    and_,
    func,
    insert,
    select,
    tuple_,
    update,
)

from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.engine import changing
from pos_gateway.database.schema import audit, events, merchants, orders, workers
from pos_gateway.domain.errors import AdminError, OrderChanged
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger import attempts
from pos_gateway.ledger.attempts import RecordedAttempt
from pos_gateway.ledger.event_ids import with_another_id
from pos_gateway.ledger.order_search import Place, behind
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import FINAL, Action, Entry, Key, State, StepMark, is_given_up
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

#: The sequence of listed orders.
_PLACE = (orders.c.updated_at, orders.c.merchant_id, orders.c.order_id)
#: Maximum merchants named when several have an order's id.
_NAMED = 10


@dataclass(frozen=True, slots=True)
class OrderStanding:
    """The standing of an order or of its cancel request. Times are Unix time."""

    merchant_id: str
    order_id: str
    action: Action
    state: State
    owner: str | None
    epoch: int
    attempts: int
    deaths: int
    doubt_since: float | None
    pending: bool
    last_event: str | None
    reopened: int
    external_id: str | None
    reason_code: str | None
    reason_message: str | None
    deliver_by: float | None
    created_at: float
    updated_at: float
    #: The owner's lease, if its row still exists.
    lease: str | None
    #: The state of the order's cancel request, if any.
    cancellation: State | None
    #: As in the row; see ``first_doubt``.
    in_doubt_since: float | None = None
    #: As in the row; see ``step_mark``.
    step: str | None = None
    #: Whether a step was taken at the POS.
    was_made: bool = False

    @property
    def was_undone(self) -> bool:
        """Whether an undelivered order's steps were undone at the POS."""
        return self.was_made and self.state in {State.FAILED, State.EXPIRED}

    @property
    def step_mark(self) -> StepMark | None:
        """An open order's present step at the POS; None: the first."""
        return StepMark.parse(self.step, self.reopened)

    @property
    def is_being_undone(self) -> bool:
        """Whether steps are being undone at the POS, or could not be undone."""
        return self.step_mark is not None and self.step_mark.is_undo

    @property
    def key(self) -> Key:
        return Key(self.merchant_id, self.order_id, self.action)

    @property
    def first_doubt(self) -> float | None:
        """Start of the doubt, while ``doubt_since`` is the last send; None: not in doubt."""
        last = self.doubt_since
        return None if last is None else min(self.in_doubt_since or last, last)

    @property
    def is_leased(self) -> bool:
        """Whether a worker holds the order, or died holding it with the lease's row still there."""
        return self.state.is_leased and self.lease is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether the order is in doubt, and no worker is resolving the doubt."""
        if self.state.is_leased:
            sent = self.state is State.SENDING or self.doubt_since is not None
            return sent and not self.is_leased
        return self.state is State.IN_DOUBT

    def is_left(self, now: float) -> bool:
        """Whether workers have left the order in doubt to an operator, at this time (Unix time)."""
        return self.is_in_doubt and is_given_up(self.reason_code, self.deliver_by, now)


class OrderAdmin:
    """Reads and changes orders. Safe from threads.

    Args:
        engine: the database.
        payloads: opens and seals orders.
    """

    def __init__(self, engine: Engine, payloads: Payloads, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._payloads = payloads
        self._clock = clock

    def orders(
        self,
        *,
        states: Iterable[State] = (),
        merchant_id: str | None = None,
        order_id: str | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        limit: int | None = None,
    ) -> list[OrderStanding]:
        """The orders that match all filters, last changed first.

        Args:
            states: any of these; empty: all.
            merchant_id, order_id: exactly these ids.
            older_than, newer_than: seconds since the last change: at least, or less.
            limit: maximum number of orders.
        """
        wanted = list(states)
        now = self._clock.now().timestamp()
        conditions: list[ColumnElement[bool]] = [orders.c.action == Action.SUBMIT]
        if wanted:
            conditions.append(orders.c.state.in_(wanted))
        if merchant_id is not None:
            conditions.append(orders.c.merchant_id == merchant_id)
        if order_id is not None:
            conditions.append(orders.c.order_id == order_id)
        if older_than is not None:
            conditions.append(orders.c.updated_at <= now - older_than)
        if newer_than is not None:
            conditions.append(orders.c.updated_at > now - newer_than)
        in_order = [each.desc() for each in _PLACE]
        return self._read(_standing().where(*conditions).order_by(*in_order).limit(limit))

    def in_state(self, state: State, most: int) -> Iterator[OrderStanding]:
        """Every order in a state, longest unchanged first; reads ``most`` at once.

        Each page follows the page before along the index: a changing order may come again.
        """
        are_meant = orders.c.state == state, orders.c.action == Action.SUBMIT
        columns = [orders.c[name].label(name) for name in (*_COLUMNS, "facts")]
        after: list[ColumnElement[bool]] = []
        while True:
            # Joined last: a planner may read all cancel requests for a page of all orders.
            page = select(*columns).where(*are_meant, *after).order_by(*_PLACE).limit(most)
            row = (rows := page.subquery()).c
            in_order = row.updated_at, row.merchant_id, row.order_id
            found = self._read(_standing(rows).order_by(*in_order))
            yield from found
            if len(found) < most:
                return
            last = found[-1]
            place = Place(last.updated_at, last.merchant_id, last.order_id)
            after = behind(place, newest_first=False)

    def find(self, order_id: str, merchant_id: str | None) -> OrderStanding:
        """The order with this id. Raises AdminError for an unknown id, or of several merchants."""
        found = self.orders(order_id=order_id, merchant_id=merchant_id, limit=_NAMED + 1)
        if not found:
            whose = f" of merchant {merchant_id!r}" if merchant_id else ""
            raise AdminError(f"the ledger knows no order {order_id!r}{whose}")
        if len(found) > 1:
            whose = ", ".join(each.merchant_id for each in found[:_NAMED])
            more = ", …" if len(found) > _NAMED else ""
            raise AdminError(
                f"several merchants have an order {order_id!r}: {whose}{more}; "
                "say which with --merchant ID"
            )
        return found[0]

    def one(self, key: Key) -> OrderStanding | None:
        """The row's standing, if known."""
        found = self._read(_standing().where(_is(key)))
        return found[0] if found else None

    def some(self, keys: Iterable[Key]) -> dict[Key, OrderStanding | None]:
        """The standings of these orders and of their cancel requests; None: unknown row.

        For some hundreds at once.
        """
        found = self._read(_standing().where(_are(keys := list(keys))))
        rows: dict[Key, OrderStanding | None] = {
            Key(each.merchant_id, each.order_id, action): None for each in keys for action in Action
        }
        return rows | {each.key: each for each in found}

    def count(self, state: State, most: int | None = None) -> int:
        """Number of orders in this state; at most ``most``."""
        are_meant = orders.c.state == state, orders.c.action == Action.SUBMIT
        found = select(orders.c.order_id).where(*are_meant).limit(most).subquery()
        return self._scalar(select(func.count()).select_from(found)) or 0

    def unanswered_cancels(self, before: float) -> tuple[int, OrderStanding | None]:
        """Number of open cancel requests with an earlier ``deliver_by``, and the oldest of them."""
        unanswered = and_(
            orders.c.action == Action.CANCEL,
            orders.c.state.in_([state for state in State if state not in FINAL]),  # by the index
            orders.c.deliver_by < before,
        )
        count = self._scalar(select(func.count()).select_from(orders).where(unanswered)) or 0
        oldest = self._read(_standing().where(unanswered).order_by(orders.c.deliver_by).limit(1))
        return count, oldest[0] if oldest else None

    def order_json(self, key: Key) -> bytes | None:
        """The order's JSON, if kept. Raises CannotOpen."""
        return self.opened(key, self._scalar(select(orders.c.payload).where(_is(_submission(key)))))

    def adapted(self, key: Key) -> str | None:
        """The fields adapted for the POS at the last send, as JSON (``adapters/adapted.py``)."""
        return self._scalar(select(orders.c.adapted).where(_is(_submission(key))))

    def payloads_of(self, keys: Iterable[Key]) -> dict[Key, str | None]:
        """The stored content of each order, for ``opened``. For some hundreds at once."""
        columns = orders.c.merchant_id, orders.c.order_id, orders.c.payload
        query = select(*columns).where(_are(keys := list(keys)), orders.c.action == Action.SUBMIT)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return dict.fromkeys(keys) | {Key(*row[:2]): row.payload for row in rows}

    def opened(self, key: Key, payload: str | None) -> bytes | None:
        """The JSON of an order's stored content. Raises CannotOpen."""
        return self._payloads.open(key, payload) if payload else None

    def known_as(self, external_id: str, key: Key) -> str | None:
        """The id of a further order of the merchant with the same ``external_id``, if any."""
        row = orders.c
        others = and_(
            row.external_id == external_id,
            row.merchant_id == key.merchant_id,
            row.action == Action.SUBMIT,
            row.order_id != key.order_id,
        )
        return self._scalar(select(row.order_id).where(others).limit(1))

    def adapter_of(self, merchant_id: str) -> str | None:
        """The adapter in the merchant's record; None for an unknown merchant."""
        return self._scalar(select(merchants.c.adapter).where(merchants.c.id == merchant_id))

    def attempts(self, key: Key) -> list[RecordedAttempt]:
        """The last attempts of this row's action, oldest first, until the order is pruned.

        Releases before attempts were kept left none.
        """
        recorded = self._scalar(select(orders.c.attempt_history).where(_is(key)))
        return attempts.read(recorded, key, self._payloads)

    def events(self, key: Key) -> list[dict[str, Any]]:
        """The order's recorded events, oldest first."""
        return self._history(events, key)

    def audit(self, key: Key) -> list[dict[str, Any]]:
        """Operators' actions on the order, oldest first."""
        return self._history(audit, key)

    def change(
        self,
        seen: OrderStanding,
        entry: Entry,
        *,
        operator: str,
        what: str,
        details: str,
        order_json: bytes | None = None,
        deliver_by: float | None = None,
        reopen: bool = False,
        reason: str | None = None,
    ) -> None:
        """Write the entry, its event and an audit row; a worker's present claim loses the order.

        Args:
            seen: the order as read for this decision.
            entry: the new state and the event.
            operator, what, details, reason: for the audit; the last in the operator's own words.
            order_json, deliver_by: new values, if changed.
            reopen: start a terminal order again.

        Raises:
            OrderChanged: the order changed after the read; nothing is written.
        """
        values = _values(seen, entry, reopen=reopen)
        if order_json is not None:
            values["payload"] = self._payloads.seal(_submission(seen.key), order_json)
        if deliver_by is not None:
            values["deliver_by"] = deliver_by
        with changing(self._engine) as connection:
            unchanged = and_(
                _is(seen.key), orders.c.epoch == seen.epoch, orders.c.state == seen.state
            )
            if connection.execute(update(orders).where(unchanged).values(values)).rowcount != 1:
                raise OrderChanged(
                    f"something happened to order {seen.order_id!r} of merchant "
                    f"{seen.merchant_id!r} at this moment; look at it again"
                )
            _record(connection, seen, entry)
            self._note(connection, By(operator, reason), what, seen.key, details)

    def note(
        self, key: Key, *, operator: str, what: str, details: str, reason: str | None = None
    ) -> None:
        """Write an audit row for an action that changes no order."""
        with self._engine.begin() as connection:
            self._note(connection, By(operator, reason), what, key, details)

    def _note(self, connection: Connection, by: By, what: str, key: Key, details: str) -> None:
        note = Note(what, key.merchant_id, key.order_id, details)
        write(connection, [note], by=by, at=self._clock.now().timestamp())

    def _scalar(self, query: Select[T]) -> T | None:
        """The query's only value; None: no row."""
        with self._engine.connect() as connection:
            return connection.scalar(query)

    def _read(self, query: Select[Any]) -> list[OrderStanding]:
        with self._engine.connect() as connection:
            return [_found(self._opened(row)) for row in connection.execute(query).mappings()]

    def _history(self, table: Any, key: Key) -> list[dict[str, Any]]:
        of_it = and_(table.c.merchant_id == key.merchant_id, table.c.order_id == key.order_id)
        with self._engine.connect() as connection:
            rows = connection.execute(select(table).where(of_it).order_by(table.c.id)).mappings()
            return [self._opened(row) for row in rows]

    def _opened(self, row: Any) -> dict[str, Any]:
        """The row with an opened reason."""
        if not row.get("reason_code"):
            return dict(row)
        reason = Reason(row["reason_code"], row["reason_message"] or "")
        reason = self._payloads.open_reason(Key(row["merchant_id"], row["order_id"]), reason)
        return {**row, "reason_code": reason.code, "reason_message": reason.message}


_cancellations = orders.alias("cancellations")
_COLUMNS = [name for name in OrderStanding.__dataclass_fields__ if name in orders.c]


def _standing(rows: FromClause = orders) -> Select[Any]:
    """Query for ``_found``, of all orders or of a page of orders."""
    row = rows.c
    of_the_same = and_(
        _cancellations.c.merchant_id == row.merchant_id,
        _cancellations.c.order_id == row.order_id,
        _cancellations.c.action == Action.CANCEL,
    )
    others = (
        workers.c.id.label("lease"),
        _cancellations.c.state.label("cancellation"),
        row.facts.is_not(None).label("was_made"),
    )
    return select(*(row[name].label(name) for name in _COLUMNS), *others).select_from(
        rows.outerjoin(workers, workers.c.id == row.owner).outerjoin(_cancellations, of_the_same)
    )


def _found(row: Any) -> OrderStanding:
    cancellation = row["cancellation"]
    return OrderStanding(
        **{
            **row,
            "action": Action(row["action"]),
            "state": State(row["state"]),
            "cancellation": None if cancellation is None else State(cancellation),
            "was_made": bool(row["was_made"]),
        }
    )


def _is(key: Key) -> ColumnElement[bool]:
    return and_(
        orders.c.merchant_id == key.merchant_id,
        orders.c.order_id == key.order_id,
        orders.c.action == key.action,
    )


def _are(keys: Sequence[Key]) -> ColumnElement[bool]:
    """Rows of these orders, of either action."""
    ids = [(key.merchant_id, key.order_id) for key in keys]
    # SQLite uses no index for pairs.
    by_index = orders.c.order_id.in_({key.order_id for key in keys})
    return and_(by_index, tuple_(orders.c.merchant_id, orders.c.order_id).in_(ids))


def _submission(key: Key) -> Key:
    return Key(key.merchant_id, key.order_id)


def _values(seen: OrderStanding, entry: Entry, *, reopen: bool) -> dict[str, Any]:
    """The order's columns after an entry, except its content."""
    values: dict[str, Any] = {
        "state": entry.state,
        "owner": None,
        "epoch": seen.epoch + 1,
        "attempts": entry.attempts,
        "deaths": 0,
        "taken_from": None,
        "doubt_since": entry.doubt_since,
        "in_doubt_since": seen.first_doubt if entry.doubt_since is not None else None,
        "settling": None,
        "pending": entry.pending,
        "external_id": entry.external_id or seen.external_id,
        "updated_at": entry.at,
    }
    if not entry.keeps_reason:
        values["reason_code"] = entry.reason.code if entry.reason else None
        values["reason_message"] = entry.reason.message if entry.reason else None
    if reopen:
        values |= {"reopened": seen.reopened + 1, "last_event": None, "external_id": None}
        values |= {"lifecycle": None, "facts": None}
    if reopen or entry.state.is_final:
        values["step"] = None
    if entry.event is not None:
        values["last_event"] = entry.event.kind
    return values


def _record(connection: Connection, seen: OrderStanding, entry: Entry) -> None:
    key, event = seen.key, entry.event
    if event is None:
        return
    # The order's row is locked by now: no other transaction is recording the same event.
    if connection.scalar(select(events.c.id).where(events.c.event_id == event.id)):
        event = with_another_id(key, event, seen.epoch)
    row = {
        "event_id": event.id,
        "type": event.kind,
        "merchant_id": key.merchant_id,
        "order_id": key.order_id,
        "occurred_at": entry.at,
        "external_id": entry.external_id,
        "reason_code": entry.reason.code if entry.reason else None,
        "reason_message": entry.reason.message if entry.reason else None,
        "attempts": entry.attempts,
    }
    connection.execute(insert(events).values(row))
