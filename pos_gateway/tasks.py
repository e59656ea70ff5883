"""Message in, decision out: what must be stored by the broker before the message is acknowledged.

This is the only place that decides what an Outcome means: an event, another attempt later, a
dead letter. The decision is plain data (messages to publish); nothing here waits for the broker.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

import structlog
from celery import Task
from celery.exceptions import Reject
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway import gateway
from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message, undelayed
from pos_gateway.delivery import History, too_late
from pos_gateway.errors import BrokerUnavailable, InvalidOrder
from pos_gateway.events.event import status_event
from pos_gateway.gateway import Gateway
from pos_gateway.order import Order
from pos_gateway.outcome import Kind, Outcome, Reason
from pos_gateway.record import identifier
from pos_gateway.retry import Backoff
from pos_gateway.telemetry import metrics
from pos_gateway.transport.deadline import Patience

log = structlog.get_logger(__name__)

BACKOFF = Backoff()
#: Seconds that a synchronous worker's process waits for the broker to store an outcome. It must
#: end: nobody can tell it that the worker is to stop.
SYNCHRONOUS_PATIENCE = 20.0


class OrderTask(Task):
    """The Celery task for an order. In a green worker ``worker/`` puts admission before it."""

    name = wire.SUBMIT_ORDER
    Strategy = "pos_gateway.worker.strategy:admitted"
    ignore_result = True
    acks_late = True

    def run(self, *arguments: Any, **named: Any) -> None:
        """Send one order to its merchant; return only when what came of it is stored."""
        record = arguments[0] if arguments else named.get("order")
        context = self.request
        routing_key = (context.delivery_info or {}).get("routing_key")
        gate = gateway.current()
        following, _ = deliver(gate, record, headers=context.__dict__, routing_key=routing_key)
        try:
            gate.store(following, patience=SYNCHRONOUS_PATIENCE)
        except BrokerUnavailable as error:
            # The message goes back as it came; the merchant knows the order by its key.
            raise Reject(error, requeue=True) from error


def deliver(
    gate: Gateway,
    record: Any,
    *,
    headers: Mapping[str, Any],
    routing_key: str | None,
    patience: Patience | None = None,
    hopeless: bool = False,
) -> tuple[list[Message], Outcome]:
    """Try once to deliver the order in a message, and decide.

    Args:
        gate: what to deliver through.
        record: what the message has for an order, whatever that is.
        headers: the message's headers.
        routing_key: the key that the message came by.
        patience: how much of the merchant's time limit it has; lets others end it before.
        hopeless: it cannot be delivered in time any more, and is not to be tried.

    Returns:
        What is to be published, in this order, before the message is acknowledged; and the
        outcome that it follows from.
    """
    key = undelayed(routing_key or "")
    decision = _Decision(
        gate,
        routing_key=key if key == topology.CANARY_KEY else topology.ORDERS_KEY,
        history=_history(headers),
    )
    try:
        order = Order.parse(record)
    except InvalidOrder as error:
        outcome = Outcome(Kind.FAILED, Reason.of("invalid_order", _without_values(error)))
        return decision.on_no_order(record, outcome), outcome
    try:
        if hopeless:
            outcome = too_late(decision.history)
        else:
            outcome = gate.delivery.attempt(order, decision.history, patience)
    except SQLAlchemyError as error:
        outcome = Outcome(Kind.RETRY, Reason.of("database", error))
    except Exception as error:  # a mistake of ours: the order is set aside, not lost
        log.exception("delivery.crashed", order_id=order.order_id)
        outcome = Outcome(Kind.FAILED, Reason.of("internal_error", type(error).__name__))
    return decision.on(order, outcome), outcome


def _without_values(error: InvalidOrder) -> str:
    """The fields that are wrong, and how. What stands there is in the order, and may be personal."""
    return "; ".join(f"{each.field}: {each.problem}" for each in error.errors)


def _written(record: Any) -> bytes:
    """As JSON. Numbers that Python reads and JSON does not have (NaN, 1e999) become text."""
    text = json.dumps(record, default=str)
    return json.dumps(json.loads(text, parse_constant=str)).encode()


class _Decision:
    """What follows from an outcome."""

    def __init__(self, gate: Gateway, *, routing_key: str, history: History) -> None:
        self._clock = gate.clock
        self._key = routing_key
        self._attempt = history.attempts + 1
        self.history = history

    def on(self, order: Order, outcome: Outcome) -> list[Message]:
        match outcome.kind:
            case Kind.ACCEPTED | Kind.REJECTED | Kind.CANCELLED:
                return [self._event(order, outcome)]
            case Kind.FAILED | Kind.EXPIRED:
                return self._set_aside(order, self._doubted(outcome))
            case Kind.PENDING:
                told = [] if self.history.pending else [self._event(order, outcome)]
                return told + self._again(order, outcome)
            case Kind.RETRY | Kind.IN_DOUBT:
                return self._again(order, outcome)
            case _:
                assert_never(outcome.kind)

    def on_no_order(self, record: Any, outcome: Outcome) -> list[Message]:
        """Not an order at all; the backend hears of it if it says whose it is."""
        body = _written(record)
        named = record if isinstance(record, dict) else {}
        order_id = identifier(named.get("order_id"))
        merchant_id = identifier(named.get("merchant_id"))
        reason = outcome.reason or Reason(outcome.kind, "")
        following = [self._dead_letter(order_id or "unknown", body, reason)]
        if order_id and merchant_id:
            following.append(self._event_of(outcome, order_id, merchant_id, body))
        return following

    def _again(self, order: Order, outcome: Outcome) -> list[Message]:
        """Try again later, or end now if later would be too late."""
        before = self.history
        after = History(
            attempts=before.attempts + 1,
            in_doubt=before.in_doubt or outcome.kind is Kind.IN_DOUBT,
            pending=before.pending or outcome.kind is Kind.PENDING,
        )
        delay = BACKOFF.delay(after.attempts, at_least=outcome.retry_after)
        left = (order.deliver_by - self._clock.now()).total_seconds()
        if delay >= left:
            self.history = after
            late = outcome.reason or Reason("too_late", "no decision before deliver_by")
            ended = Outcome(Kind.EXPIRED, late, outcome.external_id)
            return self._set_aside(order, self._doubted(ended))
        metrics.retries.inc()
        message = wire.submit_message(
            order.order_id, order.to_json(), routing_key=self._key, headers=_headers(after)
        )
        return [message.delayed(delay, before=left)]

    def _doubted(self, outcome: Outcome) -> Outcome:
        """The outcome, unless the POS may have the order all the same from an attempt before."""
        if not (self.history.in_doubt or self.history.pending):
            return outcome
        return replace(outcome, kind=Kind.IN_DOUBT)

    def _set_aside(self, order: Order, outcome: Outcome) -> list[Message]:
        """What the gateway could not get done: kept for an operator, told to the backend."""
        reason = outcome.reason or Reason(outcome.kind, "")
        dead = self._dead_letter(order.order_id, order.to_json(), reason)
        return [dead, self._event(order, outcome)]

    def _event(self, order: Order, outcome: Outcome) -> Message:
        return self._event_of(outcome, order.order_id, order.merchant_id, order.to_json())

    def _event_of(
        self, outcome: Outcome, order_id: str, merchant_id: str, order_json: bytes
    ) -> Message:
        metrics.orders.labels(outcome.kind).inc()
        return status_event(
            outcome,
            order_id=order_id,
            merchant_id=merchant_id,
            order_json=order_json,
            attempts=self._attempt,
            occurred_at=self._clock.now(),
        )

    def _dead_letter(self, order_id: str, order_json: bytes, reason: Reason) -> Message:
        metrics.dead_letters.labels(reason.code).inc()
        message = wire.submit_message(order_id, order_json, routing_key=self._key)
        return wire.dead_letter(message, code=reason.code, reason=reason.message)


#: Headers in which the history travels with the message.
HISTORY = ATTEMPTS, _IN_DOUBT, _PENDING = "x-attempts", "x-in-doubt", "x-pending"


def _history(headers: Mapping[str, Any]) -> History:
    attempts = headers.get(ATTEMPTS)
    return History(
        attempts=attempts if isinstance(attempts, int) and attempts > 0 else 0,
        in_doubt=headers.get(_IN_DOUBT) is True,
        pending=headers.get(_PENDING) is True,
    )


def _headers(history: History) -> dict[str, Any]:
    return {
        ATTEMPTS: history.attempts,
        _IN_DOUBT: history.in_doubt,
        _PENDING: history.pending,
    }
