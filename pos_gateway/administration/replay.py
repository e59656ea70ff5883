"""Replays dead letters: has their orders sent after all."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pos_gateway.administration.extend import BEING_UNDONE
from pos_gateway.administration.refusal import Refusal
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import Bundle
from pos_gateway.broker.dead_letter import TOO_LARGE, DeadLetter
from pos_gateway.broker.message import Message
from pos_gateway.client import home_of
from pos_gateway.domain.errors import AdminError, InvalidOrder, OrderChanged
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.split import Split
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.pruning import TOMBSTONE
from pos_gateway.ledger.states import FINAL, Action, Entry, Key, State
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, from_unix, shown

_REOPENED = (State.FAILED, State.EXPIRED)
_DECIDED = (State.ACCEPTED, State.REJECTED, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan for a letter."""

    message: Message
    key: Key
    #: The order, and its row if that is written: it is reopened, or its deadline extended.
    order: Order | None = None
    row: OrderStanding | None = None

    @property
    def reopens(self) -> bool:
        return self.row is not None and self.row.state in _REOPENED


class Replay:
    """Replays letters one by one.

    The order's row is reopened, its message published, and after the broker's confirm the letter
    acknowledged. Killed in between, the letter is still there. A second replay then finds an open
    order (or one in flight) and publishes its message once more, with the row's current deadline.
    The ledger makes that harmless: only one of two messages can claim an order, and the other finds
    its outcome. If the order has ended by then, the letter is refused as usual.
    """

    def __init__(
        self,
        ledger: OrderAdmin,
        *,
        publish: Callable[[Message], None],
        acknowledge: Callable[[DeadLetter], None],
        operator: str,
        split: Split,
        until: datetime | None,
        largest: int,
        dry_run: bool,
        clock: Clock = SYSTEM_CLOCK,
        note: str = "",
        reason: str | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._publish = publish
        self._acknowledge = acknowledge
        self._operator = operator
        self._split = split
        self._until = until
        self._largest = largest
        self._dry_run = dry_run
        self._note = note
        self._reason = reason

    def replay(self, letter: DeadLetter) -> Refusal | None:
        """Replay a letter, unless this is a dry run; returns why it was refused, or None."""
        try:
            plan = self._plan(letter)
            if not self._dry_run:
                self._do(letter, plan)
        except (AdminError, OrderChanged, InvalidOrder) as error:
            return Refusal.of(error)
        return None

    def _plan(self, letter: DeadLetter) -> _Plan:
        content, size = letter.content(), len(letter.body)
        if (
            size > self._largest
            and letter.code == TOO_LARGE
            and wire.ATTEMPTS not in letter.headers
        ):
            raise AdminError(
                f"it has {size} bytes; {self._largest} are allowed (POS_GATEWAY_MAX_ORDER_BYTES)",
                kind="it is larger than POS_GATEWAY_MAX_ORDER_BYTES allows",
            )
        match content:
            case Order() as order:
                return self._order(self._with_time(order), order, letter.body)
            case CancelRequest() as request:
                return self._cancel(request, letter.body)
            case Bundle() as bundle:
                if self._until is not None:
                    raise AdminError("parked orders are replayed as they are, without new time")
                bundle.routing_key = self._home(bundle.merchant_id)
                return _Plan(bundle.message(), Key(bundle.merchant_id, letter.id))

    def _with_time(self, order: Order) -> Order:
        try:
            return order.until(self._until)
        except InvalidOrder:
            placed_at = order.placed_at.isoformat()
            raise AdminError(
                f"it was placed at {placed_at}; give it time until after that",
                kind="it was placed after its new time",
            ) from None

    def _order(self, order: Order, came: Order, body: bytes) -> _Plan:
        key = Key(order.merchant_id, order.order_id)
        row = self._ledger.one(key)
        if row is not None:
            _require_replayable(row, has_new_time=self._until is not None)
            if row.was_undone:
                raise AdminError(
                    "it was made at its POS and undone there, and the POS keeps its id: have the "
                    "backend submit it with another order_id, and discard the letter",
                    kind="it was made at its POS and undone there; submit it with another order_id",
                )
            if row.state not in _REOPENED and self._until is None:
                order = order.until(_later(row.deliver_by, order.deliver_by))
        else:
            self._require_remembered(came.deliver_by)
        # An open order has had no terminal event: without time left it gets one at the worker.
        has_ended = row is not None and row.state in _REOPENED
        if has_ended and order.expired(self._clock.now()):
            raise AdminError(
                f"its deliver_by ({order.deliver_by.isoformat()}) is over; give it new time "
                "(--for 30m)",
                kind="its deliver_by is over; give it new time (--for 30m)",
            )
        body = body if order is came else wire.body_of(order.source)
        home = self._home(order.merchant_id)
        message = wire.asking(wire.SUBMIT_ORDER, order.order_id, body, home, wire.ONE_OF_OURS)
        is_written = has_ended or self._until is not None
        return _Plan(message, key, order, row if is_written else None)

    def _require_remembered(self, deliver_by: datetime) -> None:
        """The ledger has no row: the message was never claimed, or the row is removed by now.

        An order may have been accepted since, by a second letter.
        """
        ago = self._clock.now().timestamp() - deliver_by.timestamp()
        if self._until is not None and ago >= TOMBSTONE:
            raise AdminError(
                f"its deliver_by was {ago // 86_400:.0f} days ago, and the ledger may have forgotten it: "
                "discard the letter; an order that is still wanted needs another order_id",
                kind="the ledger may have forgotten it; discard it",
            )

    def _cancel(self, request: CancelRequest, body: bytes) -> _Plan:
        until = self._until or request.deliver_by
        if until <= self._clock.now():
            raise AdminError(
                f"it is a request to cancel an order until {until.isoformat()}, which is over; "
                "discard it, or ask again (pos-gateway cancel)",
                kind="it is a cancel request whose deliver_by is over; discard it",
            )
        row = self._ledger.one(Key(request.merchant_id, request.order_id, Action.CANCEL))
        if row is not None:
            _require_asks_for_more(row, until)
        else:
            self._require_remembered(request.deliver_by)
        if self._until is not None:
            body = wire.body_of(request.model_copy(update={"deliver_by": until}).to_json())
        home = self._home(request.merchant_id)
        message = wire.asking(wire.CANCEL_ORDER, request.order_id, body, home, wire.ONE_OF_OURS)
        return _Plan(message, Key(request.merchant_id, request.order_id))

    def _do(self, letter: DeadLetter, plan: _Plan) -> None:
        what, details = "dead.replay", f"{self._note}{letter.code}: {letter.reason}"
        if plan.order is not None and self._until is not None:
            details = f"deliver_by {plan.order.deliver_by.isoformat()}; {details}"
        if plan.row is not None and plan.order is not None:
            self._ledger.change(
                plan.row,
                _entry(plan.row, self._clock.now()),
                operator=self._operator,
                what=what,
                details=details,
                order_json=plan.order.source,
                deliver_by=plan.order.deliver_by.timestamp(),
                reopen=plan.reopens,
                reason=self._reason,
            )
        else:
            self._ledger.note(
                plan.key,
                operator=self._operator,
                what=what,
                details=details,
                reason=self._reason,
            )
        if plan.order is not None:
            self._require_wanted(plan.key)
        self._publish(plan.message.following(TraceContext.of(letter.headers)))
        self._acknowledge(letter)

    def _require_wanted(self, key: Key) -> None:
        """A cancel request may have come just before the order was reopened."""
        row = self._ledger.one(key)
        if row is None or row.cancellation is None or row.state is not State.NEW:
            return
        entry = Entry(
            State.CANCELLED,
            self._clock.now().timestamp(),
            row.attempts,
            event=dehydrated(key, Kind.CANCELLED, reopened=row.reopened),
        )
        details = "a request to cancel it came meanwhile"
        self._ledger.change(
            row, entry, operator=self._operator, what="dead.replay", details=details
        )
        raise AdminError(f"{details}: it is cancelled, and order.cancelled is published")

    def _home(self, merchant_id: str) -> str:
        return home_of(merchant_id, self._split)


def _entry(row: OrderStanding, now: datetime) -> Entry:
    """The row of an order that is reopened, or unchanged with a new deadline."""
    at = now.timestamp()
    if row.state in _REOPENED:
        return Entry(State.NEW, at, attempts=0)
    return Entry(row.state, at, row.attempts, row.doubt_since, row.pending, keeps_reason=True)


def _later(known: float | None, given: datetime) -> datetime | None:
    """The deadline to which an operator has extended the order since its letter, if any."""
    if known is None or known <= given.timestamp():
        return None
    return from_unix(known)


def _require_asks_for_more(request: OrderStanding, until: datetime) -> None:
    """A cancel request that has ended is queued only with more time: a queued one is tried."""
    if request.state in _DECIDED:
        raise AdminError(f"it is a cancel request, and {request.state.value}; discard the letter")
    if request.state in _REOPENED and until.timestamp() <= (request.deliver_by or 0.0):
        raise AdminError(
            f"it is a cancel request, has {request.state.value}, and is tried again only with "
            f"more time than until {shown(request.deliver_by)}; give it that (--deliver-by)",
            kind=f"it is a cancel request, and {request.state.value}; give it more time",
        )


def _require_replayable(order: OrderStanding, *, has_new_time: bool) -> None:
    if order.state in _DECIDED:
        raise AdminError(f"it is {order.state.value}; discard the letter")
    if order.is_in_doubt and order.last_event == Kind.IN_DOUBT:
        raise AdminError(
            "it is in doubt: ask the merchant, then resolve it (pos-gateway orders resolve "
            f"{order.order_id} --merchant {order.merchant_id} --accepted, or --not-sent)",
            kind="it is in doubt: ask the merchant, then resolve it (pos-gateway orders resolve)",
        )
    if order.is_being_undone and has_new_time:
        raise AdminError(BEING_UNDONE)
    # This letter may be its only message, and without one it would stay in doubt for ever.
    if order.is_in_doubt and has_new_time:
        raise AdminError(
            "it is in doubt, and cannot be given new time: replay it without, and it is looked up"
        )
    # The request has ended, and the order is reopened: by a replay that was killed just then.
    is_undone = order.state is State.NEW and order.cancellation in FINAL
    would_be_sent = order.state in (State.NEW, *_REOPENED) and not is_undone
    if order.cancellation is not None and would_be_sent:
        raise AdminError("it has a cancel request; discard the letter")
    if order.is_leased and has_new_time:
        raise AdminError(
            "a worker has it at this moment, so it cannot be given new time; try again"
        )
