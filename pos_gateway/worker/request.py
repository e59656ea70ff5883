"""An order's message in a worker, and whose order it is."""

from collections.abc import Callable
from typing import Any

import structlog
from pydantic_core import from_json

from pos_gateway.admission.lane import Call
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.domain.order import timestamp
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import Action
from pos_gateway.processing.decision import Decision
from pos_gateway.transport.deadline import CancelToken

log = structlog.get_logger(__name__)


class OrderRequest:
    """A message that is an order's, from its arrival to its acknowledgement.

    Thousands wait in a worker. Each keeps the message's bytes and what admission goes by: read
    into objects, an order takes seven times as much memory. It is read anew when it starts.

    In place of Celery's own request it says to Celery what that does (``celery inspect active``).

    Args:
        message: as it came.
        payload: what its body says; nothing of it is kept.
        ack, reject: tell the broker.
        task: Celery's, of what is asked for.
        consumer: the consumer that it came by.
        received: when it came (``perf_counter``).
    """

    __slots__ = (
        "__weakref__",
        "_ack",
        "_consumer",
        "_reject",
        "acknowledged",
        "again",
        "call",
        "came_late",
        "cancel_token",
        "decision",
        "deliver_by",
        "eventer",
        "expired",
        "is_stale",
        "kept",
        "key",
        "merchant_id",
        "message",
        "order_id",
        "placed_at",
        "received",
        "settled",
        "task",
    )

    #: How long its attempt may take, once it has started; lets it be ended before.
    cancel_token: CancelToken

    def __init__(
        self,
        message: Any,
        payload: Any,
        *,
        ack: Callable[..., None],
        reject: Callable[..., None],
        task: Any,
        consumer: Any,
        received: float,
    ) -> None:
        self.message = message
        self.task = task
        self._ack, self._reject, self._consumer = ack, reject, consumer
        self.eventer = consumer.event_dispatcher  # Celery sets another one on reconnecting
        self.acknowledged = False
        #: How often it has waited here for its next attempt.
        self.kept = 0
        #: Whether the connection is gone that it came by: the broker has the message back.
        self.is_stale = False
        self._begin(payload, received)

    def become(self, again: Message, received: float) -> None:
        """Be what that message asks for, as if it had been published and had come at that moment.

        It is acknowledged, or given back, as the message that came.
        """
        # Its id stays, by which Celery knows it.
        self.message.body, self.message.headers = again.body, {**again.headers, "id": self.id}
        self._begin(from_json(again.body), received)

    def _begin(self, payload: Any, received: float) -> None:
        self.received = received
        record = wire.order_in(*payload[:2])
        said = record if isinstance(record, dict) else {}
        #: Whose order it is, and which; empty or None when the message does not say.
        self.merchant_id = identifier(said.get("merchant_id")) or ""
        self.order_id = identifier(said.get("order_id"))
        #: When it was placed (Unix time, by the backend's clock), and when it is worthless; None
        #: when the message does not say, or what became of the order is to be found out anyhow.
        self.placed_at = timestamp(said.get("placed_at"))
        is_late_allowed = self.headers.get(wire.RESOLVE) is True
        self.deliver_by = None if is_late_allowed else timestamp(said.get("deliver_by"))
        #: What tells two messages that ask for the same; None when it does not say for what.
        self.key: tuple[str, str, Action] | None = None
        if self.merchant_id and self.order_id:
            self.key = self.merchant_id, self.order_id, self.action
        #: The slot that it holds; None while it waits, and again once its merchant has answered.
        self.call: Call[OrderRequest] | None = None
        #: It cannot be delivered in time any more.
        self.expired = False
        #: What was decided about it; None until then.
        self.decision: Decision | None = None
        #: It joined another one for its order when that one's outcome was decided already.
        self.came_late = False
        #: Whether what follows from its outcome is stored.
        self.settled = False
        #: The part of it that is not: the order itself is to wait for its next attempt.
        self.again: Message | None = None

    def read(self) -> tuple[Any, wire.Came]:
        """What the message has for an order, read anew, and its body as it came."""
        return wire.read(body_of(self.message))

    @property
    def headers(self) -> dict[str, Any]:
        """The message's headers, as far as they mean something here."""
        headers: dict[str, Any] = self.message.headers
        return headers

    @property
    def routing_key(self) -> str:
        """The key that the message came by."""
        key: str = self.message.delivery_info["routing_key"]
        return key

    @property
    def attempts(self) -> int:
        """Attempts that were made before this message was published."""
        value = self.headers.get(wire.ATTEMPTS)
        return value if isinstance(value, int) else 0

    @property
    def action(self) -> Action:
        """What it asks for."""
        action: Action = self.task.action
        return action

    def is_copy_of(self, other: "OrderRequest") -> bool:
        """Whether it is the same message as another one for its order, or one from before that.

        A mended order is none, nor is a request to cancel with more time. One with more attempts
        behind it follows from that one: its delay can be over before the confirm is here.
        """
        is_same = body_of(self.message) == body_of(other.message)
        return is_same and self.attempts <= other.attempts

    def acknowledge(self) -> None:
        """What came of it is stored: the broker may forget the message. Idempotent.

        Nothing happens to a message that the broker has back; whoever gets it next finds out.
        """
        if not (self.acknowledged or self.is_stale):
            self._ack(log, self._consumer.connection_errors)
            self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        """Give the message back. Idempotent, and nothing after ``acknowledge``."""
        if not (self.acknowledged or self.is_stale):
            self._reject(log, self._consumer.connection_errors, requeue)
            self.acknowledged = True

    # What Celery asks of a request.

    @property
    def id(self) -> str:
        """The message's id."""
        number: str = self.headers["id"]
        return number

    @property
    def name(self) -> str:
        """The task's name."""
        name: str = self.task.name
        return name

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What ``celery inspect`` shows: whose order it is, and nothing that is in it."""
        return {
            "id": self.id,
            "name": self.name,
            "type": self.name,
            "args": [{"merchant_id": self.merchant_id, "order_id": self.order_id}],
            "kwargs": {},
            "hostname": self._consumer.hostname,
            "time_start": None,
            "acknowledged": self.acknowledged,
            "delivery_info": {"routing_key": self.routing_key},
            "worker_pid": None,
        }

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Do nothing: what is at a merchant cannot be taken back by ``celery control``."""

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing: when a worker is shut down cold, ``Drain`` says what becomes of its orders."""


def body_of(message: Any) -> bytes:
    """A message's body as it came (the in-memory broker has text)."""
    body = message.body
    return body.encode() if isinstance(body, str) else bytes(body)
