"""Message in, decision out: what must be stored before the message is acknowledged.

What an Outcome means (an event, a retry, a dead letter) is decided in ``attempt/decision.py``
alone; ``deliver`` never waits for the broker.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from celery import Task
from celery.exceptions import Reject
from pydantic_core import to_json
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.attempt import decision, gateway
from pos_gateway.attempt.call import UnderClaim
from pos_gateway.attempt.cancellation import CancelAttempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.delivery import LOOK_AGAIN_AFTER, Attempt
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    InvalidRecord,
    LedgerUnavailable,
    NotLoaded,
    Unfinished,
)
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.states import Action, Key
from pos_gateway.telemetry import stages
from pos_gateway.telemetry.stages import Stages
from pos_gateway.telemetry.trace import Trace
from pos_gateway.transport.deadline import CancelToken
from pos_gateway.worker.celery_internals import headers_of

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Span

log = structlog.get_logger(__name__)

#: Seconds that a synchronous worker's process waits to commit an outcome. Bounded, since it cannot
#: learn that the worker is stopping.
SYNCHRONOUS_TIMEOUT = 20.0


class _GatewayTask(Task):
    """The gateway's Celery task. ``run`` is for synchronous workers; a green one runs admission and
    ``deliver`` in its place."""

    Strategy = "pos_gateway.worker.strategy:admitted"
    ignore_result = True
    acks_late = True
    action: Action

    def run(self, *arguments: Any, **named: Any) -> None:
        """Handle one message; returns once its outcome is committed."""
        request = self.request
        if (body := request.get(wire.BODY)) is None:  # called by hand: there is no message
            body = wire.body_of(to_json(wire.order_in(arguments, named)))
        routing_key = (request.delivery_info or {}).get("routing_key")
        gate = gateway.current()
        try:
            decided = deliver(
                gate, RawMessage.of(body, headers_of(request), routing_key), self.action
            )
            settled = gate.commit_outcome(decided, timeout=SYNCHRONOUS_TIMEOUT)
        except (BrokerUnavailable, LedgerUnavailable) as error:
            # Requeued as it came; ledger and idempotency key prevent a second create.
            raise Reject(error, requeue=True) from error
        if not settled:
            raise Reject("another worker has taken the order over", requeue=True)


class OrderTask(_GatewayTask):
    """Delivers an order to its merchant."""

    name = wire.SUBMIT_ORDER
    action = Action.SUBMIT


class CancelTask(_GatewayTask):
    """Cancels an order."""

    name = wire.CANCEL_ORDER
    action = Action.CANCEL


def deliver(
    gate: Gateway,
    message: RawMessage,
    action: Action = Action.SUBMIT,
    *,
    order: Order | None = None,
    cancel_token: CancelToken | None = None,
    expired: bool = False,
    may_call: bool = True,
    received: float | None = None,
) -> Decision:
    """Attempt once what a message asks for, and decide what follows.

    Args:
        gate: what to deliver through.
        message: the message.
        action: the requested action.
        order: the order in the message, if it was read before.
        cancel_token: the attempt's part of the merchant's time limit; can end it early.
        expired: past its deadline; it is not attempted.
        may_call: whether a cancel request may call the POS; else ``needs_pos`` says that it has to.
        received: when the message arrived (``perf_counter``), if known.
    """
    passed = stages.begin(received)
    record, source = wire.read(message.body) if order is None else (order, order.source)
    cancel = partial(_cancel, may_call=may_call)
    attempted = cancel if action is Action.CANCEL else _submit
    decide = partial(attempted, gate, record, source, message, cancel_token, expired=expired)
    if gate.tracing is None:
        return decide(message.trace)
    decided = None
    try:
        with gate.tracing.delivering(message.trace) as span:
            passed.trace_id = span.trace_id
            decided = decide(span.context)
            _describe(span, gate, record, action, decided, passed)
    except BaseException:
        if decided is not None:  # no other worker takes over from a live one
            gate.abandon(decided)
        raise
    return decided


def _describe(
    span: "Span", gate: Gateway, record: Any, action: Action, decided: Decision, passed: Stages
) -> None:
    """Set an attempt's span attributes, as in its log line; also without a call."""
    named = vars(record) if isinstance(record, Order) else record
    named, outcome = named if isinstance(named, dict) else {}, decided.outcome
    order_id, merchant_id = (identifier(named.get(each)) for each in ("order_id", "merchant_id"))
    claims = [claim for claim, _ in decided.entries if claim.key.action is action]
    reason = outcome.reason if outcome.kind is not Kind.REJECTED else None
    span.says(
        action=action,
        order_id=order_id,
        merchant_id=merchant_id,
        provider=merchant_id and gate.provider_of(merchant_id),
        attempt=claims[0].history.attempts + 1 if claims else None,
        outcome=outcome.kind,
        contact=outcome.contact,
        reason=reason and reason.code,
        waited_seconds=passed.waited,
        claim_seconds=passed.claim,
    )
    if outcome.kind in (Kind.FAILED, Kind.IN_DOUBT):
        span.failed(outcome.kind)


def _submit(
    gate: Gateway,
    record: Any,
    source: bytes | None,
    message: RawMessage,
    cancel_token: CancelToken | None,
    span: TraceContext | None,
    *,
    expired: bool,
) -> Decision:
    try:
        order = Order.parse(record, source)
    except InvalidOrder as error:
        reason = Reason.of("invalid_order", _without_values(error))
        return _invalid(gate, record, source, reason, message, span)
    attempt = None
    try:
        attempt = gate.delivery.submit(order, cancel_token, expired=expired)
        decided = decision.on_submission(order, attempt, message, gate.clock.now(), span)
        if attempt.ended is None:
            return decided
        return decided.repeating(gate.repeating.ends(Key(order.merchant_id, order.order_id)))
    except Exception as error:  # noqa: BLE001  (ours: the order is neither lost nor left claimed)
        under = attempt.under if attempt is not None else _claimed(error, Action.SUBMIT)
        outcome = _crashed(Action.SUBMIT, error, under, order.order_id)
    if under is None and outcome.kind is Kind.FAILED:
        attempt = gate.delivery.failed(order, outcome)
    else:
        attempt = Attempt(outcome, under, called=under is not None and under.sent)
    with _given_up(gate, attempt.under):
        return decision.on_submission(order, attempt, message, gate.clock.now(), span)


def _invalid(
    gate: Gateway,
    record: Any,
    source: bytes | None,
    reason: Reason,
    message: RawMessage,
    span: TraceContext | None,
) -> Decision:
    """Decide about an invalid order; what the ledger knows of its id counts."""
    now, dead = gate.clock.now(), decision.invalid_letter(record, reason, message)
    received = message.again(wire.SUBMIT_ORDER, dead.message_id, dead.headers)
    known = _by_ledger(gate, record, reason, received, dead, message, now)
    if known is not None:
        return known
    decided = decision.on_no_order(record, source, dead, reason, now, span)
    with suppress(SQLAlchemyError):  # republishing the event is not worth waiting for
        for each in decided.event_records:
            if each.entry.event is not None:
                decided = decided.repeating(gate.repeating.event(each.entry.event))
    return decided


def unread(
    gate: Gateway,
    received: Message,
    dead: Message,
    named: Mapping[str, str],
    reason: Reason,
    raw: RawMessage,
) -> Decision:
    """Decide about a message that was not parsed; what the ledger knows of its id counts.

    Args:
        gate: what to decide with.
        received: the message.
        dead: its dead letter.
        named: what is known of its order.
        reason: why it was not parsed.
        raw: the message, with its headers parsed.
    """
    received, now = replace(received, routing_key=raw.home), gate.clock.now()
    known = _by_ledger(gate, named, reason, received, dead, raw, now)
    return decision.on_unread(dead, named, reason, now, raw.trace) if known is None else known


def _by_ledger(
    gate: Gateway,
    record: Any,
    reason: Reason,
    received: Message,
    dead: Message,
    raw: RawMessage,
    now: datetime,
) -> Decision | None:
    """What follows if the ledger knows the order, or cannot say; None: it does not know it."""
    key = _key_in(record)
    if key is None:
        return None
    try:
        return gate.unreadable.decide(key, reason, received, dead, raw, now)
    except (SQLAlchemyError, LedgerUnavailable) as error:
        again = received.delayed(LOOK_AGAIN_AFTER)
        return Decision(Outcome(Kind.RETRY, Reason.of("database", error)), messages=[again])


def _key_in(record: Any) -> Key | None:
    """The order that an invalid record names; None: it names none."""
    named = record if isinstance(record, dict) else {}
    merchant_id, order_id = (identifier(named.get(each)) for each in ("merchant_id", "order_id"))
    return Key(merchant_id, order_id) if merchant_id and order_id else None


def _cancel(
    gate: Gateway,
    record: Any,
    source: bytes | None,
    message: RawMessage,
    cancel_token: CancelToken | None,
    span: TraceContext | None,
    *,
    expired: bool,
    may_call: bool,
) -> Decision:
    try:
        request = CancelRequest.parse(record, source)
    except InvalidOrder as error:
        reason = Reason.of("invalid_cancel", _without_values(error))
        return decision.on_no_request(message, reason)
    attempt = None
    try:
        attempt = gate.cancellation.attempt(
            request, cancel_token, expired=expired, may_call=may_call
        )
        decided = decision.on_cancellation(request, attempt, message, gate.clock.now(), span)
        if not attempt.republishes_event:
            return decided
        with _given_up(gate, attempt.under, on_error=False):
            key = Key(request.merchant_id, request.order_id)
            return decided.repeating(gate.repeating.ends(key))
    except Exception as error:
        if attempt is None:
            under, submission = _claimed(error, Action.CANCEL), _claimed(error, Action.SUBMIT)
            attempt = CancelAttempt(Outcome(Kind.FAILED), under, submission)
        outcome = _crashed(Action.CANCEL, error, attempt.under, request.order_id)
        if attempt.under is None and outcome.kind is Kind.FAILED:
            raise  # the order's state is not known: the request is requeued
    # Its end could not be republished: the request stays open.
    attempt = replace(attempt, outcome=outcome, over=False)
    with _given_up(gate, attempt.under, attempt.submission):
        if outcome.kind is Kind.FAILED:
            attempt = gate.cancellation.crashed(request, attempt)
        return decision.on_cancellation(request, attempt, message, gate.clock.now(), span)


def _claimed(error: Exception, action: Action) -> UnderClaim | None:
    """The record of an unfinished attempt under the claim for this action."""
    claims = error.claims if isinstance(error, Unfinished) else ()
    return next((under for under in claims if under.claim.key.action is action), None)


def _crashed(action: Action, error: Exception, under: UnderClaim | None, order_id: str) -> Outcome:
    """An exception's outcome: in doubt once a byte of the order may have left."""
    cause = error.__cause__ if isinstance(error, Unfinished) else error
    is_sent = under is not None and under.sent
    if isinstance(cause, SQLAlchemyError | LedgerUnavailable | NotLoaded):
        kind = Kind.IN_DOUBT if is_sent else Kind.RETRY
        return Outcome(kind, Reason.of("database", cause))
    trace = Trace.of(cause or error, messages=False)
    if action is Action.CANCEL:
        log.error("cancellation.crashed", order_id=order_id, trace=trace)
    else:
        log.error("delivery.crashed", order_id=order_id, trace=trace)
    kind = Kind.IN_DOUBT if is_sent else Kind.FAILED
    return Outcome(kind, Reason.of("internal_error", type(cause).__name__))


@contextmanager
def _given_up(gate: Gateway, *claims: UnderClaim | None, on_error: bool = True) -> Iterator[None]:
    """Abandon the claims if there is no decision, so that the redelivered message takes them.

    Args:
        gate: has the ledger of the claims.
        claims: the attempt's records.
        on_error: also after an exception; else only when this green thread is killed.
    """
    try:
        yield
    except BaseException as error:
        if on_error or not isinstance(error, Exception):
            for under in filter(None, claims):
                gate.ledger.abandon(under.claim, sent=under.sent)
        raise


def _without_values(error: InvalidRecord) -> str:
    """The invalid fields and their problems, without values, which may be personal data."""
    return "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
