"""Decides the consequences of an outcome: the ONLY place for the decision.

A decision is plain data: the entries for the ledger, with the events recorded with each entry, then the messages to
publish, all before the attempt's message is acknowledged. The pipeline publishes the events (``events/pipeline.py``).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from pos_gateway.adapters.steps import NOT_REFUNDED
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import UnreadMessage
from pos_gateway.attempt.doubt import CANCEL_IN_DOUBT, LOOK_AGAIN_AFTER, NEEDS_POS
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import InvalidFacts
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.retry import Backoff
from pos_gateway.domain.step_progress import StepProgress
from pos_gateway.events.event import dehydrated
from pos_gateway.events.repeating import Repeats
from pos_gateway.ledger.states import (
    RESOLVE_FOR,
    Action,
    AttemptHistory,
    Claim,
    Ended,
    Entry,
    Key,
    State,
    open_state,
)
from pos_gateway.telemetry import metrics

BACKOFF = Backoff()
#: Longest seconds between two look-ups of a pending order.
PENDING_FOR = 300.0
#: Seconds before ``deliver_by`` at which the last attempt begins, however long the delay would be.
LAST_ATTEMPT = 30.0


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event recorded alone: of a message without a row, or a terminal event repeated."""

    key: Key
    entry: Entry
    #: The message's body, in place of an order; None: the order is in a row.
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything to make durable, in this order, before the message is acknowledged."""

    #: The outcome behind the decision.
    outcome: Outcome
    #: The entries, each under its claim, a cancel request's after the order's: the last shows that all was done. After
    #: a lost claim, a different worker does the rest.
    entries: Sequence[tuple[Claim, Entry]] = ()
    #: Events without an entry.
    event_records: Sequence[EventRecord] = ()
    messages: Sequence[Message] = ()
    #: Nothing is decided yet: the request is to be attempted again, and may call the POS then.
    needs_pos: bool = False

    @property
    def again(self) -> Message | None:
        """The retry's message; None if there is no retry."""
        for message in self.messages:
            if message.delay:
                return message
        return None

    def repeating(self, repeats: Repeats) -> "Decision":
        """The same, with the terminal events to repeat."""
        event_records = [
            *self.event_records,
            *(EventRecord(key, entry) for key, entry in repeats.entries),
        ]
        return replace(
            self, event_records=event_records, messages=[*self.messages, *repeats.messages]
        )

    def without_again(self) -> "Decision":
        """The decision without the retry's message, for an order that waits in the worker."""
        return replace(self, messages=[each for each in self.messages if not each.delay])


class Follows(StrEnum):
    """Consequences of an attempt to deliver an order, in the words of ``docs/delivery.md``."""

    END = "the POS has decided: an event, and the order ends"
    DEAD_LETTER = "an event and a dead letter, and the order ends"
    PENDING = "the POS has it: an event, then it is asked until it has decided"
    DOUBT = "it is in doubt, and retried as its adapter allows"
    RETRY = "it is retried"


#: By an attempt's outcome: the consequence if the POS cannot have had the order from an earlier attempt, and if the
#: POS may have the order. A changed line is a changed promise.
FOLLOWS: Mapping[Kind, tuple[Follows, Follows]] = {
    Kind.ACCEPTED: (Follows.END, Follows.END),
    Kind.REJECTED: (Follows.END, Follows.END),
    Kind.CANCELLED: (Follows.END, Follows.END),
    Kind.PENDING: (Follows.PENDING, Follows.PENDING),
    Kind.RETRY: (Follows.RETRY, Follows.RETRY),
    Kind.IN_DOUBT: (Follows.DOUBT, Follows.DOUBT),
    Kind.FAILED: (Follows.DEAD_LETTER, Follows.DOUBT),
    Kind.EXPIRED: (Follows.DEAD_LETTER, Follows.DEAD_LETTER),
}


def on_submission(attempt: Attempt[Order], now: datetime) -> Decision:
    """Decide the consequences of an attempt to deliver an order."""
    outcome, order, message = attempt.outcome, attempt.content, attempt.message
    assert outcome is not None  # noqa: S101  (the attempt is over)
    if attempt.newer is not None:
        order = attempt.newer
        message = message._replace(body=wire.body_of(order.source))
    left = (order.deliver_by - now).total_seconds()
    key = Key(order.merchant_id, order.order_id)
    submission = _Submission(attempt, key, left, message, now.timestamp())
    if attempt.newer is not None:
        return submission.renewed(outcome, attempt.claims[0])
    if attempt.ended is not None:
        return submission.over(attempt.ended)
    if not attempt.claims:
        return submission.undone(outcome)
    return submission.done(outcome, attempt.claims[0], called=attempt.called)


class _Submission(NamedTuple):
    """The decisions about an order's submission."""

    attempt: Attempt[Any]
    key: Key
    #: Seconds until ``deliver_by``.
    left: float
    message: RawMessage
    #: Unix time.
    at: float

    def over(self, ended: Ended) -> Decision:
        """The order was terminal before; the worker may have died before the dead-lettering."""
        is_dead_letter = ended.state in (State.FAILED, State.EXPIRED)
        messages = [self._dead_letter(ended.outcome)] if is_dead_letter else []
        return Decision(ended.outcome, messages=messages)

    def undone(self, outcome: Outcome) -> Decision:
        """Not sent; outcome unknown: retry."""
        raw = self.message
        again = self._soon_again(outcome, resolve=raw.resolve, look_up=raw.look_up)
        return Decision(outcome, messages=[again])

    def renewed(self, outcome: Outcome, claim: Claim) -> Decision:
        """The deadline was extended by an operator; republish with the new one."""
        entries = [(claim, _unchanged(claim, self.at))]
        again = self._soon_again(outcome, resolve=False, look_up=claim.history.may_be_there)
        return Decision(outcome, entries, messages=[again])

    def _soon_again(self, outcome: Outcome, *, resolve: bool, look_up: bool) -> Message:
        delay = min(_delay(outcome, self.message.tries), max(1.0, self.left))
        return self._again(delay, resolve=resolve, look_up=look_up)

    def done(self, outcome: Outcome, claim: Claim, *, called: bool) -> Decision:
        """The entry under the claim, and the consequences."""
        history = claim.history
        attempts = history.attempts + called
        match FOLLOWS[outcome.kind][history.may_be_there]:
            case Follows.END:
                return self._end(outcome, claim, attempts)
            case Follows.DEAD_LETTER:
                return self._end(outcome, claim, attempts, dead_letter=True)
            case Follows.PENDING if history.step is None:  # the POS has the order: no doubt
                after = replace(history, pending=True, doubt_since=None)
            case Follows.DOUBT | Follows.PENDING:  # of a later step, pending speaks of the first
                since = history.doubt_since
                newly = since is None and (outcome.not_found or not history.pending)
                after = replace(history, doubt_since=self.at if newly or claim.sending else since)
            case Follows.RETRY:
                after = history
        return self._go_on(outcome, claim, replace(after, attempts=attempts))

    def _go_on(self, outcome: Outcome, claim: Claim, after: AttemptHistory) -> Decision:
        """Retry, or end now if the order would expire first."""
        delay, event_kind = _delay(outcome, self.message.tries), None
        if outcome.kind is Kind.PENDING:
            delay = max(delay, _rarely(self.message.tries, self.left))
        delay = _in_time(delay, self.left if self.left > 0 else self.left + RESOLVE_FOR)
        if delay >= self.left and not after.may_be_there:
            late = outcome.reason or Reason("too_late", "no decision before deliver_by")
            ended = Outcome(Kind.EXPIRED, late, outcome.external_id)
            return self._end(ended, claim, after.attempts, dead_letter=True)
        until = self.left + RESOLVE_FOR * after.may_be_there
        # An order between two steps is undone at ``deliver_by``, and in doubt only if that was in vain.
        is_undone_next = after.is_between_steps and 0 < self.left <= delay
        if is_undone_next:
            delay = max(1.0, self.left)
        if outcome.for_operator or (delay >= self.left and not is_undone_next):
            event_kind = Kind.IN_DOUBT
        elif outcome.kind is Kind.PENDING:
            event_kind = Kind.PENDING
        # After order.in_doubt, order.pending is not recorded any more: only a terminal event is.
        if event_kind is not None and after.last_event in (event_kind.value, Kind.IN_DOUBT.value):
            event_kind = None
        said = outcome if event_kind is None else replace(outcome, kind=event_kind)
        entry = self._entry(said, claim, after, event_kind)
        if after.step is not None and not after.step.is_undo:
            # The next look-up starts from the results of an open step.
            entry = self._with_progress(entry, after)
        messages = []
        if not outcome.for_operator and delay < until:
            look_up = after.may_be_there and not after.is_between_steps
            again = self._again(delay, resolve=delay >= self.left, look_up=look_up)
            messages.append(again)
        return Decision(outcome, [(claim, entry)], messages=messages)

    def _end(
        self, outcome: Outcome, claim: Claim, attempts: int, *, dead_letter: bool = False
    ) -> Decision:
        history = AttemptHistory(attempts=attempts, reopened=claim.history.reopened)
        entry = self._with_progress(self._entry(outcome, claim, history, outcome.kind), history)
        # Undelivered orders are dead-lettered for an operator.
        messages = [self._dead_letter(outcome)] if dead_letter else []
        return Decision(outcome, [(claim, entry)], messages=messages)

    def _with_progress(self, entry: Entry, after: AttemptHistory) -> Entry:
        """The entry with the facts of the order's steps."""
        if self.attempt.facts:
            # An adapter's mistake undoes no outcome: the row's facts stay.
            with suppress(InvalidFacts):
                progress = StepProgress(self.attempt.facts).to_json(after.reopened)
                return replace(entry, progress=progress)
        return entry

    def _entry(
        self, outcome: Outcome, claim: Claim, after: AttemptHistory, event_kind: Kind | None
    ) -> Entry:
        state = _ENDS.get(event_kind) or open_state(after, event_kind)
        event = None
        if event_kind is not None:
            reopened, trace = after.reopened, self.attempt.span
            event = dehydrated(self.key, event_kind, reopened=reopened, trace=trace)
        return Entry(
            state,
            self.at,
            after.attempts,
            after.doubt_since,
            after.pending,
            outcome.reason,
            outcome.external_id,
            event,
            outcome=outcome.kind,
            call=self.attempt.call,
        )

    def _again(self, delay: float, *, resolve: bool, look_up: bool) -> Message:
        metrics.retries.inc()
        headers = {wire.ATTEMPTS: self.message.tries + 1, wire.RESOLVE: resolve}
        if look_up:
            headers[wire.LOOK_UP] = True
        message = self.message.again(wire.SUBMIT_ORDER, self.key.order_id, headers)
        left = self.left if self.left > delay else self.left + RESOLVE_FOR
        return message.delayed(delay, before=_latest(delay, left))

    def _dead_letter(self, outcome: Outcome) -> Message:
        reason = outcome.reason or Reason(outcome.kind, "")
        return _dead_letter(self.key.order_id, self.message, reason)


def _rarely(tries: int, left: float) -> float:
    """Seconds until the next look-up of a pending order, growing.

    With the usual backoff, each pending order would cost the broker two messages a minute for
    hours. The look-ups become frequent again around ``deliver_by``, and around the last one.
    """
    nearest = min(abs(left), abs(left + RESOLVE_FOR))
    return replace(BACKOFF, longest=min(PENDING_FOR, nearest / 2)).delay(tries + 1)


def _in_time(delay: float, left: float) -> float:
    """The delay, shortened to leave time for a last attempt.

    A POS that asks for an hour (``Retry-After``) may recover in a minute.
    """
    return left - LAST_ATTEMPT if delay >= left > LAST_ATTEMPT + BACKOFF.floor else delay


def _latest(delay: float, left: float) -> float:
    """Seconds within which a message with this delay must return, however the delay is rounded."""
    return max(delay, left - LAST_ATTEMPT)


def _delay(outcome: Outcome, tries: int) -> float:
    """Seconds until the retry; without backoff if the time is known (``look_again``)."""
    if outcome.look_again is not None:
        return BACKOFF.delay(1, at_least=outcome.look_again)
    return BACKOFF.delay(tries + 1, at_least=outcome.retry_after)


#: The states of ended orders, by their last event.
_ENDS: Mapping[Kind | None, State] = {
    Kind.ACCEPTED: State.ACCEPTED,
    Kind.REJECTED: State.REJECTED,
    Kind.CANCELLED: State.CANCELLED,
    Kind.EXPIRED: State.EXPIRED,
    Kind.FAILED: State.FAILED,
}


def _unchanged(claim: Claim, at: float) -> Entry:
    """The entry with the order's state before the claim."""
    history = claim.history
    state = open_state(history)
    return Entry(
        state, at, history.attempts, history.doubt_since, history.pending, keeps_reason=True
    )


def on_cancellation(attempt: Attempt[CancelRequest], now: datetime) -> Decision:
    """Decide the consequences of an attempt to cancel an order.

    An uncancelled order is recorded as accepted, with the reason.
    """
    cancelling, ended = _Cancelling(attempt, now), attempt.ended
    if not attempt.claims and ended is not None:
        return Decision(ended.outcome)
    if attempt.claims and cancelling.outcome.for_operator:
        return cancelling.crashed(attempt.claims[0])
    if not attempt.claims or cancelling.is_open(attempt.claims[0]):
        return cancelling.again()
    if attempt.claims[1:]:
        return cancelling.decided(*attempt.claims)
    if ended is not None:
        return cancelling.ended(attempt.claims[0], ended)
    return cancelling.crashed(attempt.claims[0])


class _Cancelling:
    """The decisions about a cancel request."""

    def __init__(self, attempt: Attempt[CancelRequest], now: datetime) -> None:
        assert attempt.outcome is not None  # noqa: S101  (the attempt is over)
        self.outcome = attempt.outcome
        self._attempt = attempt
        self._request, self._message = attempt.content, attempt.message
        if attempt.newer is not None:  # the message has the older deadline
            self._request = attempt.newer
            body = wire.body_of(self._request.to_json())
            self._message = self._message._replace(body=body)
        self._order = Key(self._request.merchant_id, self._request.order_id)
        self._now, self._at = now, now.timestamp()
        self._span = attempt.span

    def is_open(self, claim: Claim) -> bool:
        """Whether the request is retried. A cancellation in doubt always is."""
        kind = self.outcome.kind
        in_doubt = kind is Kind.FAILED and claim.history.in_doubt
        return in_doubt or kind in (Kind.RETRY, Kind.IN_DOUBT, Kind.PENDING)

    def _undone(self, claim: Claim) -> Decision:
        """Leave the request and the order unchanged."""
        history = claim.history
        entry = Entry(
            State.NEW,
            self._at,
            history.attempts,
            doubt_since=history.doubt_since,
            keeps_reason=True,
        )
        return Decision(
            self.outcome, [*self._released_submission(), (claim, entry)], needs_pos=True
        )

    def again(self) -> Decision:
        """Retry; the order itself is released until then."""
        claim = self._attempt.claims[0] if self._attempt.claims else None
        if claim is not None and self.outcome is NEEDS_POS:
            return self._undone(claim)
        since = None if claim is None else claim.history.doubt_since
        if self.outcome.kind is Kind.IN_DOUBT and since is None:
            since = self._at
        left = in_time = (self._request.deliver_by - self._now).total_seconds()
        if since is not None and in_time <= 0:
            left += RESOLVE_FOR
        delay = _in_time(_delay(self.outcome, self._message.tries), left)
        delay = min(delay, max(1.0, left))
        metrics.retries.inc()
        look_up = self._message.look_up if claim is None else since is not None
        resolve = self._message.resolve if claim is None else look_up and delay >= in_time
        message = self._message.again(
            wire.CANCEL_ORDER,
            self._request.order_id,
            {
                wire.ATTEMPTS: self._message.tries + 1,
                wire.RESOLVE: resolve,
                wire.LOOK_UP: look_up,
            },
        ).delayed(delay, before=_latest(delay, left))
        entries = self._released_submission()
        if claim is not None:
            entry = replace(self._entry(State.NEW, claim), doubt_since=since)
            last = claim.history.reason
            if last is not None and last.code == NOT_REFUNDED:  # true whatever fails later
                entry = replace(entry, keeps_reason=True)
            if self._attempt.waits:  # each look would displace an attempt in the row
                entry = replace(entry, attempts=claim.history.attempts)
            entries.append((claim, entry))
        return Decision(self.outcome, entries, messages=[message])

    def crashed(self, claim: Claim) -> Decision:
        """A bug of ours, or poison: dead-letter the request for an operator.

        An accepted order is still recorded as accepted.
        """
        reason = self.outcome.reason or Reason(self.outcome.kind, "")
        dead = _dead_letter(self._request.order_id, self._message, reason, task=wire.CANCEL_ORDER)
        if self._attempt.ended is not None:
            decided = self.ended(claim, self._attempt.ended)
        else:
            since = claim.history.doubt_since
            entry = replace(self._entry(State.FAILED, claim), doubt_since=since)
            order = self._released_submission()
            if since is not None:
                order = [(each, self._in_doubt(each.history)) for each, _ in order]
            decided = Decision(self.outcome, [*order, (claim, entry)])
        return replace(decided, messages=[dead])

    def decided(self, claim: Claim, submission: Claim) -> Decision:
        """The order was not terminal; a cancelled order is.

        An order that the POS may have cancelled is not sent again: a second order would result.
        """
        entry = self._entry(State(self.outcome.kind.value), claim)
        if self.outcome.kind in (Kind.EXPIRED, Kind.FAILED):  # for a request with more time
            entry = replace(entry, doubt_since=claim.history.doubt_since)
        history, trace = submission.history, self._span
        order = self._released_submission()
        if self.outcome.reason == CANCEL_IN_DOUBT:
            order = [(submission, self._in_doubt(history))]
        elif self.outcome.kind is Kind.CANCELLED:
            event = dehydrated(self._order, Kind.CANCELLED, reopened=history.reopened, trace=trace)
            end = self._entry(State.CANCELLED, submission)
            order = [(submission, replace(end, attempts=history.attempts, event=event))]
        return Decision(self.outcome, [*order, (claim, entry)])

    def ended(self, claim: Claim, ended: Ended) -> Decision:
        """The order was terminal before."""
        outcome = self.outcome
        entry = self._entry(State(outcome.kind.value), claim)
        if outcome.kind in (Kind.EXPIRED, Kind.FAILED):  # for a request with a later deadline
            entry = replace(entry, doubt_since=claim.history.doubt_since)
        if ended.state is not State.ACCEPTED:
            return Decision(outcome, [(claim, entry)])
        said = replace(outcome, external_id=outcome.external_id or ended.external_id)
        if outcome.kind is not Kind.CANCELLED:
            why = outcome.reason or Reason(outcome.kind, "")
            reason = Reason.of("not_cancelled", f"{why.code}: {why.message}")
            said = Outcome(Kind.ACCEPTED, reason, ended.external_id)
        reopened, trace = claim.history.reopened, self._span
        key = replace(self._order, action=Action.CANCEL)
        event = dehydrated(key, said.kind, reopened=reopened, trace=trace)
        entry = replace(entry, external_id=said.external_id, reason=said.reason, event=event)
        return Decision(outcome, [(claim, entry)])

    def _in_doubt(self, history: AttemptHistory) -> Entry:
        """The entry of an order in doubt, with an event unless the event was recorded before."""
        since, trace = history.doubt_since or self._at, self._span
        entry = Entry(State.IN_DOUBT, self._at, history.attempts, since, reason=self.outcome.reason)
        if history.last_event == Kind.IN_DOUBT:
            return entry
        event = dehydrated(self._order, Kind.IN_DOUBT, reopened=history.reopened, trace=trace)
        return replace(entry, event=event)

    def _entry(self, state: State, claim: Claim) -> Entry:
        outcome = self.outcome
        attempts = claim.history.attempts + 1
        return Entry(
            state,
            self._at,
            attempts,
            reason=outcome.reason,
            external_id=outcome.external_id,
            outcome=outcome.kind,
            call=self._attempt.call,
        )

    def _released_submission(self) -> list[tuple[Claim, Entry]]:
        """Release the order with the state before the claim; the order's own attempt records an outcome."""
        released = []
        for submission in self._attempt.claims[1:]:
            entry = _unchanged(submission, self._at)
            if (
                self.outcome.not_found and not submission.history.in_doubt
            ):  # the POS had it, pending
                entry = replace(entry, state=State.IN_DOUBT, doubt_since=self._at)
            released.append((submission, entry))
        return released


def on_unread(attempt: Attempt[UnreadMessage], now: datetime) -> Decision:
    """Decide the consequences of an unreadable message."""
    outcome, content, message = attempt.outcome, attempt.content, attempt.message
    assert outcome is not None  # noqa: S101  (the attempt is over)
    entries = [(claim, _unchanged(claim, now.timestamp())) for claim in attempt.claims]
    if outcome.kind is Kind.RETRY:
        again = content.original
        if attempt.kept is not None:
            [claim] = attempt.claims
            may_be_there = claim.history.may_be_there
            headers = {  # a message of the gateway's own may be of any length
                wire.ATTEMPTS: message.tries + 1,
                wire.RESOLVE: may_be_there,
                wire.LOOK_UP: may_be_there,
            }
            own = message._replace(body=wire.body_of(attempt.kept))
            again = own.again(wire.SUBMIT_ORDER, claim.key.order_id, headers)
        return Decision(outcome, entries, messages=[again.delayed(LOOK_AGAIN_AFTER)])
    code, why = content.reason.code, content.reason.message
    dead = [wire.dead_letter(content.original, code=code, reason=why)]
    metrics.dead_lettered(code)
    if not attempt.claims:
        event_records = [] if attempt.ended is not None else _invalid(attempt, now)
        return Decision(outcome, event_records=event_records, messages=dead)
    if not outcome.for_operator:
        return Decision(outcome, entries, messages=dead)
    # Neither the message nor the ledger's order can be read: the order ends, or is left to an operator.
    [claim] = attempt.claims
    left = (claim.history.deliver_by or now.timestamp()) - now.timestamp()
    submission = _Submission(attempt, claim.key, left, message, now.timestamp())
    return replace(submission.done(outcome, claim, called=False), messages=dead)


def _invalid(attempt: Attempt[UnreadMessage], now: datetime) -> list[EventRecord]:
    """The event of an invalid order; None: the message does not name order and merchant."""
    content = attempt.content
    if not (content.merchant_id and content.order_id):
        return []
    key = Key(content.merchant_id, content.order_id)
    # A second invalid order with these ids has its own event.
    distinctive = content.reason.code.encode() + b"\n" + content.distinctive
    event = dehydrated(key, Kind.FAILED, content=distinctive, trace=attempt.span)
    entry = Entry(State.FAILED, now.timestamp(), 1, reason=content.reason, event=event)
    return [EventRecord(key, entry, content.text)]


def _dead_letter(
    order_id: str, message: RawMessage, reason: Reason, *, task: str = wire.SUBMIT_ORDER
) -> Message:
    metrics.dead_lettered(reason.code)
    return wire.dead_letter(message.again(task, order_id), code=reason.code, reason=reason.message)
