"""Rules of callbacks: a change of the order with its event, a note for an operator, or nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from pos_gateway.domain.callback import Callback
from pos_gateway.domain.outcome import Kind, Lifecycle, Reason, one_line
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import RESOLVE_FOR, EventRow, Key, State, StepMark, is_given_up

#: Seconds by which an event may be older than its callback: a POS repeats a callback for a day, and
#: an event of a date long ago would be pruned at once.
OLDEST = 86_400.0
#: Seconds for which a callback waits for its order's id: as long as an order is looked up after its
#: ``deliver_by``; the pause before the first retry; the longest pause.
WAIT, FIRST_WAIT, LONGEST_WAIT = RESOLVE_FOR, 1.0, 300.0
#: Maximum callbacks that wait for one account at a POS.
MAX_WAITING = 100


class CallbackResult(StrEnum):
    """The result of a callback. All but BUSY are answered with 200."""

    #: The order has changed, and there is an event.
    APPLIED = "applied"
    #: The ledger knows already what the callback says.
    KNOWN = "known"
    #: The order is in a later state.
    LATE = "late"
    #: The same callback was received before.
    DUPLICATE = "duplicate"
    #: The ledger has no such order of the merchant's.
    UNKNOWN = "unknown"
    #: The order was never sent: its POS cannot have it.
    UNSENT = "unsent"
    #: The order was sent to another POS than the merchant's record names now.
    MOVED = "moved"
    #: The order was reopened, and the callback is, or may be, about the order that the POS had before.
    EARLIER = "earlier"
    #: The callback is applied later: the POS may be about to send the id by which the order is named, or
    #: an attempt at the steps of the order, or of its cancel request, ends first.
    WAITING = "waiting"
    #: The POS has, or makes, an order with a contrary published end: for an operator.
    CONTRADICTION = "contradiction"
    #: Not stored: workers write the order all the time, or too many callbacks wait. The POS repeats.
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Received:
    """A callback as the server received it."""

    adapter: str
    #: The merchant of the URL; the callback's id is unique for this merchant.
    merchant_id: str
    callback: Callback
    #: The merchants whose order this may be, each with the fingerprints of the POS in the record.
    owners: Mapping[str, tuple[str, ...]]
    #: Of a callback that has waited: Unix time at which the ledger stored the row.
    waiting_since: float | None = None
    #: The steps in which the POS takes an order, each with whether a worker looks the step up: news of
    #: a single step ends no order. Empty: a single step.
    steps: Mapping[str, bool] = field(default_factory=dict)
    #: From a poll: never stored, since the next poll repeats the news.
    is_polled: bool = False

    @property
    def key(self) -> Key | None:
        """The order; None: the callback names the POS's id alone."""
        order_id, owners = self.callback.order_id, list(self.owners)
        return Key(owners[0], order_id) if order_id and owners else None

    @property
    def shop(self) -> str:
        """Owner of a count of ``MAX_WAITING``: the POS's account, or else the merchant of the URL."""
        account = self.callback.account
        shop = self.merchant_id if account is None else "=".join(account)
        return f"{self.adapter} {shop}"[:256]

    @property
    def identity(self) -> tuple[str, str, str]:
        """Adapter, merchant and event id: another callback with the same is a duplicate."""
        event_id = self.callback.event_id
        if identifier(event_id) is None:
            event_id = sha256(event_id.encode(errors="replace")).hexdigest()
        return self.adapter, self.merchant_id, event_id


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of a callback, its order, and the events recorded with the result."""

    result: CallbackResult
    key: Key | None = None
    events: tuple[Kind | Lifecycle, ...] = ()


#: Makes an event's row of the order's key, the kind of event, and how often the order was reopened.
Dehydrate = Callable[..., EventRow]


@dataclass(slots=True)
class Standing:
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
    #: The step at the POS; None: the first, or none.
    step: StepMark | None
    reason_code: str | None
    deliver_by: float | None

    def is_left(self, steps: Mapping[str, bool], now: float) -> bool:
        """Whether workers have left the order: its end is known to its POS, or an operator, alone."""
        if self.state is not State.IN_DOUBT:
            return False
        step = self.step
        is_blind = step is not None and not step.is_undo and not steps.get(step.name, True)
        return is_blind or is_given_up(self.reason_code, self.deliver_by, now)

    @property
    def is_undoing(self) -> bool:
        """Whether the order's steps are being undone, the last step first."""
        return self.step is not None and self.step.is_undo

    @property
    def is_within_step(self) -> bool:
        """Whether the POS may have a step behind the first, for which it may have been paid."""
        return self.step is not None and (self.in_doubt or self.state is State.SENDING)

    @property
    def may_be_sent(self) -> bool:
        """Whether the POS may have got the order, or the cancel request: SENDING was durable once."""
        may_be_there = self.state is State.SENDING or self.in_doubt or self.pending
        return may_be_there or self.endpoint is not None

    @property
    def is_asked(self) -> bool:
        """Of a cancel request: whether the request is open, and its POS may have got the request."""
        return not self.state.is_final and self.may_be_sent


@dataclass(slots=True)
class CallbackGroup:
    """Decides the results of callbacks, and collects the rows to write."""

    payloads: Payloads
    dehydrate: Dehydrate
    now: float
    #: Of a shop: how many of its callbacks wait.
    count_waiting: Callable[[str], int]
    waiting: dict[str, int] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)
    lifecycles: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    audit: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)

    def apply(
        self, received: Received, order: Standing | None, request: Standing | None
    ) -> Applied:
        """Decide a callback's result, and collect its rows.

        Args:
            order: the order's row.
            request: the row of the order's cancel request.
        """
        before = len(self.events)
        result = self._apply(received, order, request)
        if result is CallbackResult.WAITING:
            return self.wait(received, is_known=order is not None)
        self._put(received, result)
        key = None if order is None else order.key
        return Applied(result, key, tuple(each["said"] for each in self.events[before:]))

    def wait(self, received: Received, *, is_known: bool = False) -> Applied:
        """Store a callback, whose next retry comes after as long as the wait so far, or ``LONGEST_WAIT``.

        Above ``MAX_WAITING``, and of an order still unknown after ``WAIT``, a callback is not stored.
        """
        if received.is_polled:
            return Applied(CallbackResult.WAITING)
        since, shop = received.waiting_since, received.shop
        waited = 0.0 if since is None else max(0.0, self.now - since)
        if since is None:  # a waiting callback keeps its place
            self.waiting[shop] = 1 + (self.waiting.get(shop) or self.count_waiting(shop))
        is_one_too_many = since is None and self.waiting[shop] > MAX_WAITING
        if is_known and is_one_too_many:
            return Applied(CallbackResult.BUSY)
        if not is_known and (waited > WAIT or is_one_too_many):
            return self.drop(received)
        # Servers of an earlier release ignore ``only_accepted``, and leave a text without an event id to servers of this one.
        left_out = {"event_id"} if received.callback.only_accepted else None
        said = _CALLBACK.dump_json(received.callback, exclude=left_out)
        text = self.payloads.seal(_place(received.identity), said)
        again_at = self.now + min(max(FIRST_WAIT, waited), LONGEST_WAIT)
        self._put(
            received,
            CallbackResult.WAITING,
            waiting=text,
            shop=shop,
            external_id=str(received.callback.external_id)[:256],
            again_at=again_at,
        )
        return Applied(CallbackResult.WAITING)

    def drop(self, received: Received) -> Applied:
        """Find no order. Recorded only of a callback that was stored as waiting."""
        if received.waiting_since is not None:
            self._put(received, CallbackResult.UNKNOWN)
        return Applied(CallbackResult.UNKNOWN)

    def _put(self, received: Received, result: CallbackResult, **waiting: Any) -> None:
        if not received.is_polled:
            self.received.append({**self._row(received.identity, result), **waiting})

    def _row(self, identity: tuple[str, str, str], result: CallbackResult) -> dict[str, Any]:
        adapter, merchant_id, event_id = identity
        return {
            "adapter": adapter,
            "merchant_id": merchant_id,
            "event_id": event_id,
            "result": result,
            "now": self.now,
        }

    def _apply(
        self, received: Received, order: Standing | None, request: Standing | None
    ) -> CallbackResult:
        if order is None:
            return CallbackResult.UNKNOWN
        meaning, endpoint = received.callback.meaning, order.endpoint
        is_left = order.is_left(received.steps, self.now)
        if order.state is not State.ACCEPTED and not order.may_be_sent:
            result = CallbackResult.UNSENT
        elif received.callback.only_accepted and not order.state.is_final:
            result = CallbackResult.KNOWN if is_left else CallbackResult.WAITING  # for the look-up
        elif endpoint is not None and endpoint not in received.owners[order.key.merchant_id]:
            result = CallbackResult.MOVED
        elif order.reopened and received.callback.external_id != (order.external_id or ""):
            result = self._by_external_id(received, order, is_left=is_left)
        elif order.state is State.ACCEPTED:
            result = self._advance(received, order, request, _OF_ACCEPTED[meaning])
        elif order.state.is_final:
            result = self._compare(received, order)
        elif received.steps and meaning is Kind.ACCEPTED:
            result = CallbackResult.KNOWN  # an attempt accepts the order after its last step
        elif (
            received.steps
            and not is_left
            and (
                _OF_OPEN[meaning] is Kind.ACCEPTED
                or order.is_within_step
                or order.is_undoing  # the gateway asked the POS for this
                or (request is not None and request.is_asked)
            )
        ):
            result = CallbackResult.WAITING  # an attempt ends the order, with steps done or undone
        else:
            self._end(received, order, _OF_OPEN[meaning])
            if isinstance(meaning, Lifecycle) and meaning is not Lifecycle.CANCELLED_BY_POS:
                self._advance(received, order, request, meaning)
            result = CallbackResult.APPLIED
        return result

    def _by_external_id(
        self, received: Received, order: Standing, *, is_left: bool
    ) -> CallbackResult:
        """Of a reopened order: the POS's id alone names the generation that a callback is about."""
        if received.callback.external_id is None:
            return CallbackResult.EARLIER
        if order.external_id is None and not order.state.is_final:
            return CallbackResult.EARLIER if is_left else CallbackResult.WAITING
        if order.external_id is None and order.state is State.ACCEPTED:
            return CallbackResult.EARLIER  # or of this generation: the POS sent no id
        if _OF_OPEN[received.callback.meaning] is not Kind.ACCEPTED:
            return CallbackResult.EARLIER
        return self._contradiction(received, order)

    def _compare(self, received: Received, order: Standing) -> CallbackResult:
        """Compare the callback with an order that ended, and was not accepted."""
        callback = received.callback
        # Stored before the order's end: a look-up has judged since.
        is_judged = callback.only_accepted and received.waiting_since is not None
        if is_judged or _OF_OPEN[callback.meaning] is not Kind.ACCEPTED:
            return CallbackResult.KNOWN
        return self._contradiction(received, order)

    def _contradiction(self, received: Received, order: Standing) -> CallbackResult:
        self._note(received, order, "callback.contradiction")
        return CallbackResult.CONTRADICTION

    def _advance(
        self,
        received: Received,
        order: Standing,
        request: Standing | None,
        to: Lifecycle | None,
    ) -> CallbackResult:
        """Advance an accepted order's lifecycle, which never goes back."""
        is_cancelled = request is not None and request.state is State.CANCELLED
        if to is None or (is_cancelled and to is Lifecycle.CANCELLED_BY_POS):
            return CallbackResult.KNOWN
        if to is Lifecycle.CANCELLED_BY_POS and request is not None and request.is_asked:
            # The gateway may have asked for this, with more steps left to undo.
            if received.steps:
                return CallbackResult.WAITING
            request.external_id = order.external_id
            self._end(received, request, Kind.CANCELLED)
            return CallbackResult.APPLIED
        # Stored before the order was accepted, and hence before the cancellation.
        is_earlier = is_cancelled and received.waiting_since is not None
        if is_earlier or not to.is_after(order.lifecycle):
            return CallbackResult.KNOWN if to is order.lifecycle else CallbackResult.LATE
        order.lifecycle = to
        self.lifecycles.append({**order.key.columns, "epoch": order.epoch, "lifecycle": to})
        if is_cancelled:  # no event follows ``order.cancelled``; a stored stage is noted once
            return self._contradiction(received, order)
        said = received.callback.occurred_at
        at = self.now if said is None else min(max(said, self.now - OLDEST), self.now)
        self._record(received, order, to, at)
        if to is Lifecycle.CANCELLED_BY_POS and request is not None and not request.state.is_final:
            self._end(received, request, Kind.CANCELLED, is_published=False)
        return CallbackResult.APPLIED

    def _end(
        self, received: Received, row: Standing, kind: Kind, *, is_published: bool = True
    ) -> None:
        """End an order, or a cancel request, as a look-up at this moment would.

        Args:
            is_published: by an event of the row's own. No event follows ``order.cancelled_by_pos``.
        """
        reason = self._reason(received, row.key)
        said = received.callback.external_id
        row.external_id = one_line(said)[:256] if said else row.external_id
        self.ends.append(
            {
                **row.key.columns,
                "was": row.state,
                "epoch": row.epoch,
                "state": kind,
                "last_event": kind if is_published else None,
                "external_id": row.external_id,
                "reason_code": reason and reason.code,
                "reason_message": reason and reason.message,
                "now": self.now,
            }
        )
        row.state, row.epoch = State(kind.value), row.epoch + 1
        if is_published:
            self._record(received, row, kind, self.now)
        self._note(received, row, f"callback.{kind}")

    def _record(self, received: Received, row: Standing, kind: Kind | Lifecycle, at: float) -> None:
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

    def _note(self, received: Received, row: Standing, what: str) -> None:
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


#: End of an open order by a callback's meaning: a POS prepares accepted orders alone.
_OF_OPEN: dict[Kind | Lifecycle, Kind] = {
    Kind.ACCEPTED: Kind.ACCEPTED,
    Kind.REJECTED: Kind.REJECTED,
    Kind.CANCELLED: Kind.CANCELLED,
    Lifecycle.PREPARING: Kind.ACCEPTED,
    Lifecycle.READY: Kind.ACCEPTED,
    Lifecycle.COMPLETED: Kind.ACCEPTED,
    Lifecycle.CANCELLED_BY_POS: Kind.CANCELLED,
}
#: Change of an accepted order by a callback's meaning; None: no change. A second terminal event is
#: never published.
_OF_ACCEPTED: dict[Kind | Lifecycle, Lifecycle | None] = {
    Kind.ACCEPTED: None,
    Kind.REJECTED: Lifecycle.CANCELLED_BY_POS,
    Kind.CANCELLED: Lifecycle.CANCELLED_BY_POS,
    **{each: each for each in Lifecycle},
}


def is_news(meaning: Kind | Lifecycle, lifecycle: Lifecycle | None) -> bool:
    """Whether ``meaning`` advances an accepted order."""
    to = _OF_ACCEPTED[meaning]
    return to is not None and to.is_after(lifecycle)


_CALLBACK: TypeAdapter[Callback] = TypeAdapter(Callback)


def waiting_callback(payloads: Payloads, identity: Sequence[str], text: str) -> Callback:
    """Open a stored callback. Raises CannotOpen or ValueError."""
    said = from_json(payloads.open(_place(identity), text))
    return _CALLBACK.validate_python({"event_id": identity[2], **said})


def _place(identity: Sequence[str]) -> Key:
    """The key to which a stored callback's text is sealed."""
    _, merchant_id, event_id = identity
    return Key(merchant_id, event_id)
