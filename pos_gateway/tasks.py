"""Message in, decision out: an event, another attempt later, or a dead letter.

This is the only place that decides what an Outcome means for the message. Nothing returns from
here (and so nothing is acknowledged) before what follows is stored by the broker.
"""

import json
from collections.abc import Mapping
from typing import Any, assert_never

import structlog
from celery import Task
from celery.exceptions import Reject
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway import gateway
from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message, undelayed
from pos_gateway.delivery import History
from pos_gateway.errors import BrokerUnavailable, InvalidOrder, PublishError
from pos_gateway.events.event import status_event
from pos_gateway.gateway import Gateway
from pos_gateway.order import Order
from pos_gateway.outcome import Kind, Outcome, Reason
from pos_gateway.retry import Backoff
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

BACKOFF = Backoff()


class OrderTask(Task):
    """The Celery task for an order. ``worker/`` puts admission before it."""

    name = wire.SUBMIT_ORDER
    Strategy = "pos_gateway.worker.strategy:admitted"
    ignore_result = True
    acks_late = True

    def run(self, *arguments: Any, **named: Any) -> None:
        """Send one order to its merchant; return only when what came of it is stored."""
        record = arguments[0] if arguments else named.get("order")
        context = self.request
        handler = _Handler(
            gateway.current(),
            routing_key=undelayed((context.delivery_info or {}).get("routing_key") or ""),
            headers=context.__dict__,
        )
        try:
            handler.handle(record)
        except BrokerUnavailable as error:
            # Only when this process is going down: the message goes back as it came.
            raise Reject(error, requeue=True) from error


class _Handler:
    """One message's way to a decision."""

    def __init__(self, gateway: Gateway, *, routing_key: str, headers: Mapping[str, Any]) -> None:
        self._gateway = gateway
        self._key = routing_key if routing_key == topology.CANARY_KEY else topology.ORDERS_KEY
        self._history = _history(headers)

    def handle(self, record: Any) -> None:
        try:
            order = Order.parse(record)
        except InvalidOrder as error:
            self._refuse(record, Reason.of("invalid_order", error))
            return
        try:
            outcome = self._gateway.delivery.attempt(order, self._history)
        except SQLAlchemyError as error:
            outcome = Outcome(Kind.RETRY, Reason.of("database", error))
        except Exception as error:  # a mistake of ours: the order is set aside, not lost
            log.exception("delivery.crashed", order_id=order.order_id)
            outcome = Outcome(Kind.FAILED, Reason.of("internal_error", repr(error)))
        self._decide(order, outcome)

    def _decide(self, order: Order, outcome: Outcome) -> None:
        match outcome.kind:
            case Kind.ACCEPTED | Kind.REJECTED | Kind.CANCELLED:
                self._tell(order, outcome)
            case Kind.FAILED | Kind.EXPIRED:
                self._set_aside(order, outcome)
            case Kind.PENDING:
                if not self._history.pending:
                    self._tell(order, outcome)
                self._again(order, outcome)
            case Kind.RETRY | Kind.IN_DOUBT:
                self._again(order, outcome)
            case _:
                assert_never(outcome.kind)

    def _again(self, order: Order, outcome: Outcome) -> None:
        """Try again later, or end now if later would be too late."""
        before = self._history
        after = History(
            attempts=before.attempts + 1,
            in_doubt=before.in_doubt or outcome.kind is Kind.IN_DOUBT,
            pending=before.pending or outcome.kind is Kind.PENDING,
        )
        delay = BACKOFF.delay(after.attempts, at_least=outcome.retry_after)
        left = (order.deliver_by - self._gateway.clock.now()).total_seconds()
        if delay >= left:
            doubtful = after.in_doubt or after.pending
            kind = Kind.IN_DOUBT if doubtful else Kind.EXPIRED
            self._set_aside(order, Outcome(kind, outcome.reason, outcome.external_id))
            return
        metrics.retries.inc()
        message = wire.submit_message(order.order_id, order.to_json(), routing_key=self._key)
        headers = {**message.headers, **_headers(after)}
        self._publish(
            Message(message.exchange, self._key, message.body, order.order_id, headers).delayed(
                delay
            )
        )

    def _set_aside(self, order: Order, outcome: Outcome) -> None:
        """What the gateway could not get done: told to the backend, kept for an operator."""
        reason = outcome.reason or Reason(outcome.kind, "")
        self._dead_letter(order.order_id, order.to_json(), reason)
        self._tell(order, outcome)

    def _refuse(self, record: Any, reason: Reason) -> None:
        """Not an order at all; the backend hears of it if it says whose it is."""
        body = json.dumps(record).encode()
        order_id, merchant_id = _text(record, "order_id"), _text(record, "merchant_id")
        self._dead_letter(order_id or "unknown", body, reason)
        if order_id and merchant_id:
            self._publish_event(Outcome(Kind.FAILED, reason), order_id, merchant_id, body)

    def _tell(self, order: Order, outcome: Outcome) -> None:
        self._publish_event(outcome, order.order_id, order.merchant_id, order.to_json())

    def _publish_event(
        self, outcome: Outcome, order_id: str, merchant_id: str, order_json: bytes
    ) -> None:
        event = status_event(
            outcome,
            order_id=order_id,
            merchant_id=merchant_id,
            order_json=order_json,
            attempts=self._history.attempts + 1,
            occurred_at=self._gateway.clock.now(),
        )
        self._publish(event)
        metrics.orders.labels(outcome.kind).inc()

    def _dead_letter(self, order_id: str, order_json: bytes, reason: Reason) -> None:
        message = wire.submit_message(order_id, order_json, routing_key=self._key)
        self._publish(wire.dead_letter(message, code=reason.code, reason=reason.message))
        metrics.dead_letters.labels(reason.code).inc()

    def _publish(self, message: Message) -> None:
        def trouble(error: PublishError) -> None:
            metrics.publish_trouble.inc()
            log.warning("publish.delayed", message_id=message.message_id, error=str(error))

        self._gateway.publisher.publish_patiently(message, on_trouble=trouble)


#: Headers in which the history travels with the message.
_ATTEMPTS, _IN_DOUBT, _PENDING = "x-attempts", "x-in-doubt", "x-pending"


def _history(headers: Mapping[str, Any]) -> History:
    attempts = headers.get(_ATTEMPTS)
    return History(
        attempts=attempts if isinstance(attempts, int) and attempts > 0 else 0,
        in_doubt=headers.get(_IN_DOUBT) is True,
        pending=headers.get(_PENDING) is True,
    )


def _headers(history: History) -> dict[str, Any]:
    return {
        _ATTEMPTS: history.attempts,
        _IN_DOUBT: history.in_doubt,
        _PENDING: history.pending,
    }


def _text(record: Any, field: str) -> str | None:
    value = record.get(field) if isinstance(record, dict) else None
    return value if isinstance(value, str) and 0 < len(value) <= 128 else None
