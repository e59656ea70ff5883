"""Message in, decision out: all that must be stored before the acknowledgement.

``attempt/decision.py`` alone decides about an outcome (event, retry, dead letter). ``deliver`` never waits
for the broker.
"""

from collections.abc import Mapping
from contextlib import suppress
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
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import LOOK_AGAIN_AFTER
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    LedgerUnavailable,
)
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.states import Action, Key
from pos_gateway.telemetry import stages
from pos_gateway.telemetry.stages import Stages
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
    """Attempt a message's order, or cancel request, once, and decide about the outcome.

    Args:
        gate: the components.
        message: the message.
        action: the requested action.
        order: the order in the message, if it was read before.
        cancel_token: the attempt's part of the merchant's time limit; can end the attempt early.
        expired: past the deadline: the order is not sent.
        may_call: whether a cancel request may call the POS; else ``Decision.needs_pos`` asks for that.
        received: when the message arrived (``perf_counter``), if known.
    """
    record, source = wire.read(message.body) if order is None else (order, order.source)
    passed = stages.begin(received)  # reading is no part of the claim's time
    token = cancel_token or CancelToken()
    decide = partial(
        _decided,
        *(gate, action, record, source, message),
        expired=expired,
        may_call=may_call,
        token=token,
    )
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


def _decided(
    gate: Gateway,
    action: Action,
    record: Any,
    source: bytes | None,
    message: RawMessage,
    span: TraceContext | None,
    **start: Any,
) -> Decision:
    content: Order | CancelRequest
    try:
        if action is Action.SUBMIT:
            content = Order.parse(record, source)
        else:
            content = CancelRequest.parse(record, source)
    except InvalidOrder as error:
        why = "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
        if action is Action.SUBMIT:
            reason = Reason.of("invalid_order", why)
            return _invalid(gate, record, source, reason, message, span)
        return decision.on_no_request(message, Reason.of("invalid_cancel", why))
    return gate.spine.decide(Attempt(content, message, span=span, **start))


def _invalid(
    gate: Gateway,
    record: Any,
    source: bytes | None,
    reason: Reason,
    message: RawMessage,
    span: TraceContext | None,
) -> Decision:
    """Decide about an invalid order; the ledger's order with this id counts."""
    now, dead = gate.clock.now(), decision.invalid_letter(record, reason, message)
    received = message.again(wire.SUBMIT_ORDER, dead.message_id, dead.headers)
    known = _by_ledger(gate, record, reason, received, dead, message, now, span)
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
    """Decide about a message that was not parsed; the ledger's order with this id counts.

    Args:
        gate: the components.
        received: the message.
        dead: the dead letter.
        named: order_id and merchant_id, as far as known.
        reason: why the message was not parsed.
        raw: the message, with parsed headers.
    """
    received, now = replace(received, routing_key=raw.home), gate.clock.now()
    known = _by_ledger(gate, named, reason, received, dead, raw, now, raw.trace)
    return decision.on_unread(dead, named, reason, now, raw.trace) if known is None else known


def _by_ledger(
    gate: Gateway,
    record: Any,
    reason: Reason,
    received: Message,
    dead: Message,
    raw: RawMessage,
    now: datetime,
    span: TraceContext | None,
) -> Decision | None:
    """The decision if the ledger knows the order, or cannot say; None: the order is unknown."""
    key = _key_in(record)
    if key is None:
        return None
    try:
        return gate.unreadable.decide(key, reason, received, dead, raw, now, span)
    except (SQLAlchemyError, LedgerUnavailable) as error:
        again = received.delayed(LOOK_AGAIN_AFTER)
        return Decision(Outcome(Kind.RETRY, Reason.of("database", error)), messages=[again])


def _key_in(record: Any) -> Key | None:
    """The order that an invalid record names; None: there is no name."""
    named = record if isinstance(record, dict) else {}
    merchant_id, order_id = (identifier(named.get(each)) for each in ("merchant_id", "order_id"))
    return Key(merchant_id, order_id) if merchant_id and order_id else None
