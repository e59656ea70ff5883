"""An order's message in a worker, from its arrival to its acknowledgement."""

from collections.abc import Callable
from typing import Any

import structlog
from pydantic_core import from_json

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.order import Order, timestamp
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.worker.request_state import RequestState, TrackedRequest

log = structlog.get_logger(__name__)

#: Bytes up to which a message counts as one among others, and is read as an order at once: a longer one
#: takes longer than its arrival may.
ORDINARY = 16 * 1024
#: Copies of a large one while it is attempted: the message, the order in it, its texts parsed, the ledger's
#: payload, the POS's request twice. And the bytes of a list or an object, parsed.
COPIES, PART = 6, 400


class OrderRequest(TrackedRequest):
    """The request that a message makes: to submit an order, or to cancel it.

    Thousands wait in a worker. Each keeps the message's bytes and what admission needs: parsed, an
    order takes seven times as much memory. It is parsed again when it starts.

    Replaces Celery's own request, and serves ``celery inspect active``.

    Args:
        message: as delivered.
        payload: its parsed body, not kept; or the ``Order`` in it, kept until it is read.
        ack, reject: acknowledge or reject the message.
        task: the Celery task that it names.
        consumer: the consumer that delivered it.
        received: when it arrived (``perf_counter``).
    """

    __slots__ = (
        "__weakref__",
        "_ack",
        "_consumer",
        "_reject",
        "acknowledged",
        "action",
        "attempt",
        "deliver_by",
        "eventer",
        "is_stale",
        "kept",
        "key",
        "merchant_id",
        "message",
        "order",
        "order_id",
        "placed_at",
        "raw",
        "received",
        "redeliveries",
        "routing_key",
        "size",
        "task",
    )

    #: Its attempt, while it is in flight.
    attempt: Attempt[Any]

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
        super().__init__()
        self.message = message
        self.task, self.action = task, task.action
        self.routing_key: str = message.delivery_info["routing_key"]
        self._ack, self._reject, self._consumer = ack, reject, consumer
        self.eventer = consumer.event_dispatcher  # Celery sets another one on reconnecting
        self.acknowledged = False
        #: Bytes of memory that it takes at most; 0: it is of an ordinary size. And how often the broker
        #: has had a large one back.
        self.size, self.redeliveries = _size_of(message.body), 0
        #: How often it has waited here for a retry.
        self.kept = 0
        #: A stale delivery: its connection is gone, and the broker redelivers the message.
        self.is_stale = False
        raw = RawMessage.of(body_of(message), message.headers, self.routing_key)
        self._begin(raw, payload, received)

    def become(self, again: Message, received: float) -> None:
        """Become the retry, as if its message had been published and delivered at that moment.

        ``acknowledge`` and ``reject`` still concern the message that was delivered.
        """
        # The id stays: Celery knows the request by it.
        headers = {**again.headers, "id": self.id}
        self.start_over()
        self.message.body = again.body  # not both texts
        raw = RawMessage.of(again.body, headers, self.routing_key)
        self._begin(raw, from_json(again.body), received)

    def _begin(self, raw: RawMessage, payload: Any, received: float) -> None:
        self.raw, self.received = raw, received
        #: The order, where it was read on its arrival; for an attempt that begins at once.
        self.order = payload if isinstance(payload, Order) else None
        #: Its merchant and order; empty or None if the message does not say.
        self.merchant_id: str = ""
        self.order_id: str | None = None
        #: When it was placed and when it expires (Unix time, by the backend's clock); None if the
        #: message does not say, or if the order is looked up even after it has expired. For how long
        #: it is looked up whether a late request has cancelled it is bounded: no event is recorded yet.
        self.placed_at: float | None = None
        until: float | None = None
        if (order := self.order) is not None:
            self.merchant_id, self.order_id = order.merchant_id, order.order_id
            self.placed_at, until = order.placed_at.timestamp(), order.deliver_by.timestamp()
        elif isinstance(said := wire.order_in(*payload[:2]), dict):
            self.merchant_id = identifier(said.get("merchant_id")) or ""
            self.order_id = identifier(said.get("order_id"))
            self.placed_at = timestamp(said.get("placed_at"))
            until = timestamp(said.get("deliver_by"))
        if until is not None and raw.resolve:
            until = until + RESOLVE_FOR if self.action is Action.CANCEL else None
        self.deliver_by = until
        #: Identifies duplicates; None if the message lacks an id.
        self.key: tuple[str, str, Action] | None = None
        if self.merchant_id and self.order_id:
            self.key = self.merchant_id, self.order_id, self.action

    def take_order(self) -> Order | None:
        """The order, if it was read on its arrival; not a second time."""
        order, self.order = self.order, None
        return order

    def drop_body(self) -> None:
        """Keep nothing of the message but its place: the broker has it."""
        self.message.body, self.raw = b"", self.raw._replace(body=b"")

    def is_copy_of(self, other: "OrderRequest") -> bool:
        """Whether it is the same message as ``other``, or one of an earlier attempt.

        A corrected order is no copy, nor is a cancel request with a later deadline. A message with
        more attempts is the other's retry: its delay can be over before the publish is confirmed.
        """
        return self.raw.body == other.raw.body and self.raw.tries <= other.raw.tries

    def acknowledge(self) -> None:
        """Acknowledge the message, once its outcome is committed. Idempotent.

        Does nothing to a stale delivery: the redelivered message finds the outcome in the ledger.
        """
        if self._ends(RequestState.ACKNOWLEDGED):
            self._ack(log, self._consumer.connection_errors)

    def reject(self, requeue: bool = False) -> None:
        """Reject or requeue the message. Idempotent; nothing after ``acknowledge``, or if stale."""
        if self._ends(RequestState.REQUEUED):
            self._reject(log, self._consumer.connection_errors, requeue)

    def _ends(self, state: RequestState) -> bool:
        """Whether the broker must get a message about this end."""
        if self.is_over:
            return False
        self.enter(state)
        self.acknowledged = not self.is_stale
        return self.acknowledged

    # Celery's interface of a request.

    @property
    def id(self) -> str:
        """The message's id."""
        number: str = self.raw.headers["id"]
        return number

    @property
    def name(self) -> str:
        """The task's name."""
        name: str = self.task.name
        return name

    def info(self, safe: bool = False) -> dict[str, Any]:
        """What ``celery inspect`` shows: merchant and order, and nothing of its content."""
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
        """Do nothing: ``celery control`` cannot recall an order in flight."""

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing: at a cold shutdown, ``Drain`` deals with the orders."""


def _size_of(body: bytes | str) -> int:
    """The bytes of memory of a large message in flight; 0: it is not large."""
    if len(body) <= ORDINARY:
        return 0
    braces = body.count(b"{") + body.count(b"[") if isinstance(body, bytes) else 0
    return COPIES * len(body) + PART * braces


def body_of(message: Any) -> bytes:
    """A message's raw body (the in-memory broker has text)."""
    body = message.body
    return body.encode() if isinstance(body, str) else bytes(body)
