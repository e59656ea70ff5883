"""The gateway's Celery tasks. A synchronous worker's process runs them; a green worker has a dispatcher."""

from typing import Any

from celery import Task
from celery.exceptions import Reject
from pydantic_core import to_json

from pos_gateway.attempt import gateway
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.broker import wire
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import BrokerUnavailable, LedgerUnavailable
from pos_gateway.ledger.states import Action
from pos_gateway.worker.celery_internals import headers_of

#: Seconds for which a synchronous worker's process waits to commit an outcome. Bounded, since the process cannot learn
#: of a stop of the worker.
SYNCHRONOUS_TIMEOUT = 20.0


class _GatewayTask(Task):
    """A task for messages. Only a synchronous worker runs it."""

    ignore_result = True
    acks_late = True
    action: Action

    def run(self, *arguments: Any, **named: Any) -> None:
        """Handle one message; returns once the outcome is committed."""
        request = self.request
        if (body := request.get(wire.BODY)) is None:  # called by hand: there is no message
            body = wire.body_of(to_json(wire.order_in(arguments, named)))
        routing_key = (request.delivery_info or {}).get("routing_key")
        message = RawMessage.of(body, headers_of(request), routing_key)
        attempt: Attempt[Any] = Attempt(None, message, self.action)
        try:
            decision = gateway.current().spine.attempt(attempt, timeout=SYNCHRONOUS_TIMEOUT)
        except (BrokerUnavailable, LedgerUnavailable) as error:
            # Requeued unchanged; ledger and idempotency key prevent a second create.
            raise Reject(error, requeue=True) from error
        if decision is None:
            raise Reject("another worker has taken the order over", requeue=True)


class OrderTask(_GatewayTask):
    """Delivers an order to its merchant."""

    name = wire.SUBMIT_ORDER
    action = Action.SUBMIT


class CancelTask(_GatewayTask):
    """Cancels an order."""

    name = wire.CANCEL_ORDER
    action = Action.CANCEL
