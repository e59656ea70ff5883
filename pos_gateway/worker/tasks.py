"""Message in, decision out: all that must be stored before the acknowledgement.

``attempt/decision.py`` alone decides about an outcome (event, retry, dead letter). ``deliver`` never waits
for the broker.
"""

from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Reject
from pydantic_core import to_json

from pos_gateway.attempt import gateway
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import read
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import BrokerUnavailable, LedgerUnavailable
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.states import Action
from pos_gateway.telemetry import stages
from pos_gateway.telemetry.stages import Stages
from pos_gateway.transport.deadline import CancelToken
from pos_gateway.worker.celery_internals import headers_of

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Span

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
    """Attempt once to do as a message asks, and decide about the outcome.

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
    content = read(record, source, action, message)
    passed = stages.begin(received)  # reading is no part of the claim's time
    attempt: Attempt[Any] = Attempt(
        content,
        message,
        expired=expired,
        may_call=may_call,
        token=cancel_token or CancelToken(),
        span=message.trace,
    )
    if gate.tracing is None:
        return gate.spine.decide(attempt)
    decided = None
    try:
        with gate.tracing.delivering(message.trace) as span:
            passed.trace_id = span.trace_id
            attempt.span = span.context
            decided = gate.spine.decide(attempt)
            _describe(span, gate, attempt, action, decided, passed)
    except BaseException:
        if decided is not None:  # no other worker takes over from a live one
            gate.abandon(decided)
        raise
    return decided


def _describe(
    span: "Span",
    gate: Gateway,
    attempt: Attempt[Any],
    action: Action,
    decided: Decision,
    passed: Stages,
) -> None:
    """Set an attempt's span attributes, as in its log line; also without a call."""
    content, outcome = attempt.content, decided.outcome
    claims = [claim for claim, _ in decided.entries if claim.key.action is action]
    reason = outcome.reason if outcome.kind is not Kind.REJECTED else None
    span.says(
        action=action,
        order_id=content.order_id,
        merchant_id=content.merchant_id,
        provider=content.merchant_id and gate.provider_of(content.merchant_id),
        attempt=claims[0].history.attempts + 1 if claims else None,
        outcome=outcome.kind,
        contact=outcome.contact,
        reason=reason and reason.code,
        waited_seconds=passed.waited,
        claim_seconds=passed.claim,
    )
    if outcome.kind in (Kind.FAILED, Kind.IN_DOUBT):
        span.failed(outcome.kind)
