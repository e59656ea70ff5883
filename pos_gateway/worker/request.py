"""An order's Celery request, and whose order it is."""

from typing import Any

from celery.worker.request import Request

from pos_gateway.admission.lane import Call
from pos_gateway.broker.wire import ATTEMPTS
from pos_gateway.ledger.states import Action
from pos_gateway.transport.deadline import Patience


class OrderRequest(Request):
    """A message that is an order's, from its arrival to its acknowledgement."""

    #: What the message has for an order.
    record: Any = None
    #: Whose order it is, and which; empty or None when the message does not say.
    merchant_id: str = ""
    order_id: str | None = None
    #: When it is worthless (Unix time); None when the message does not say.
    deliver_by: float | None = None
    #: When it came (``perf_counter``).
    received: float | None = None
    #: When it was placed (Unix time, by the backend's clock); None when the message does not say.
    placed_at: float | None = None
    #: The slot that it holds; None while it waits, and again once its merchant has answered.
    call: Call["OrderRequest"] | None = None
    #: How long its attempt may take, once it has started; lets it be ended before.
    patience: Patience
    #: It cannot be delivered in time any more.
    hopeless = False
    #: Whether what follows from its outcome is stored.
    settled = False

    @property
    def attempts(self) -> int:
        """Attempts that were made before this message was published."""
        value = self.request_dict.get(ATTEMPTS)
        return value if isinstance(value, int) else 0

    @property
    def action(self) -> Action:
        """What it asks for."""
        action: Action = self.task.action
        return action

    @property
    def key(self) -> tuple[str, str, Action] | None:
        """What tells two messages that ask for the same; None when it does not say for what."""
        if self.merchant_id and self.order_id:
            return self.merchant_id, self.order_id, self.action
        return None


def body_of(message: Any) -> bytes:
    """A message's body as it came (the in-memory broker has text)."""
    body = message.body
    return body.encode() if isinstance(body, str) else bytes(body)
