"""An order's message in a worker, from its arrival to its acknowledgement, and the states in between."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import structlog
from pydantic_core import from_json

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.order import Order, timestamp
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.worker import celery_internals as celery

log = structlog.get_logger(__name__)

#: Bytes up to which a message counts as one among others, and is read as an order at once: a longer one
#: takes longer than its arrival may.
ORDINARY = 16 * 1024
#: Copies of a large one while it is attempted: the message, the order in it, its texts parsed, the ledger's
#: payload, the POS's request twice. And the bytes of a list or an object, parsed.
COPIES, PART = 6, 400


class RequestState(StrEnum):
    """Where a request is. ``docs/architecture.md`` draws the transitions."""

    #: To be taken in: by the consumer, or again.
    ARRIVED = "arrived"
    #: In admission: for a slot, or for its merchant. Or for a green thread, without a slot.
    WAITING = "waiting"
    #: For the outcome of another request for its order, which is in flight.
    JOINED = "joined"
    #: Attempted on a green thread, until the outcome is committed.
    IN_FLIGHT = "in_flight"
    #: Its outcome is committed, but its message is not acknowledged yet.
    COMMITTED = "committed"
    #: In this worker, for its retry.
    RETRY_WAITING = "retry_waiting"
    #: Being stored in the broker, for later.
    PARKING = "parking"
    #: Its message is acknowledged.
    ACKNOWLEDGED = "acknowledged"
    #: The broker has its message back.
    REQUEUED = "requeued"


_S = RequestState

#: The states that may follow each. Any other transition is a bug.
NEXT: dict[RequestState, set[RequestState]] = {
    _S.ARRIVED: {_S.WAITING, _S.JOINED, _S.IN_FLIGHT, _S.PARKING, _S.REQUEUED},
    _S.WAITING: {_S.JOINED, _S.IN_FLIGHT, _S.PARKING, _S.REQUEUED},
    _S.JOINED: {_S.ARRIVED, _S.RETRY_WAITING, _S.ACKNOWLEDGED, _S.REQUEUED},
    _S.IN_FLIGHT: {_S.ARRIVED, _S.COMMITTED, _S.RETRY_WAITING, _S.REQUEUED},
    _S.COMMITTED: {_S.ACKNOWLEDGED},
    _S.RETRY_WAITING: {_S.ARRIVED, _S.REQUEUED},
    _S.PARKING: {_S.ACKNOWLEDGED, _S.REQUEUED},
    _S.ACKNOWLEDGED: set(),
    _S.REQUEUED: set(),
}
#: What ``celery inspect`` shows as reserved, and as active.
_RESERVED = {_S.WAITING, _S.JOINED, _S.RETRY_WAITING}
_ACTIVE = {_S.IN_FLIGHT, _S.COMMITTED}
_OVER = {_S.ACKNOWLEDGED, _S.REQUEUED}


class IllegalTransition(RuntimeError):
    """Raised where a request would come to a state that cannot follow its present one."""


class TrackedRequest:
    """A request with its state, and with what was decided in it."""

    __slots__ = ("again", "decision", "joined_late", "needs_pos", "on_over", "state")

    def __init__(self) -> None:
        self.state = RequestState.ARRIVED
        #: Its decision; None until its attempt is over.
        self.decision: Decision | None = None
        #: The message of the retry that this worker is to make, once all else is committed.
        self.again: Message | None = None
        #: Whether the outcome was decided before the request joined.
        self.joined_late = False
        #: A cancel request whose order its POS may have: the next attempt may call the POS.
        self.needs_pos = False
        #: Called once it is over; None: nothing is counted until then.
        self.on_over: Callable[[], None] | None = None

    @property
    def is_committed(self) -> bool:
        """Whether its outcome is committed, but perhaps for its retry."""
        return self.again is not None or self.state in (_S.COMMITTED, _S.ACKNOWLEDGED)

    def enter(self, state: RequestState) -> None:
        """Come to this state, and let Celery know.

        Raises:
            IllegalTransition: it cannot follow the present one.
        """
        before = self.state
        is_next = state in NEXT[before]
        if before is RequestState.IN_FLIGHT and state is not RequestState.REQUEUED:
            is_next = state is self._after_attempt
        if not is_next:
            raise IllegalTransition(f"a request came from {before} to {state}")
        if before in _ACTIVE and state not in _ACTIVE:
            celery.task_ready(self)
        if state in _RESERVED:
            celery.task_reserved(self)
        elif state is RequestState.IN_FLIGHT:
            celery.task_accepted(self)
        elif before in _RESERVED:
            celery.task_ready(self)
        self.state = state
        if self.on_over is not None and state in _OVER:
            self.count_no_more()

    def count_no_more(self) -> None:
        """End what is counted until it is over."""
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    @property
    def _after_attempt(self) -> RequestState | None:
        """The state that follows a decided attempt, if the request is not requeued."""
        if self.state is not RequestState.IN_FLIGHT or self.decision is None:
            return None
        if self.again is not None:
            return RequestState.RETRY_WAITING
        return RequestState.ARRIVED if self.decision.needs_pos else RequestState.COMMITTED

    def decide(self, decision: Decision) -> None:
        """Its attempt is over; its outcome is to be committed."""
        if self.state is not RequestState.IN_FLIGHT or self.decision is not None:
            raise IllegalTransition(f"a request was decided while {self.state}")
        self.decision = decision

    def retry_here(self, again: Message) -> None:
        """Its outcome is committed but for its retry, which this worker is to make."""
        if self._after_attempt is not RequestState.COMMITTED:
            raise IllegalTransition(f"a request came to its retry while {self.state}")
        self.again = again

    def committed(self) -> None:
        """Its outcome is committed, and all that follows from it."""
        self.enter(RequestState.COMMITTED)

    def start_over(self) -> None:
        """Forget what was decided, but for ``needs_pos``: it is to be taken in again."""
        self.enter(RequestState.ARRIVED)
        self.needs_pos = self.decision is not None and self.decision.needs_pos
        self.decision, self.again = None, None


class OrderRequest(TrackedRequest):
    """The request that a message makes: to submit an order, or to cancel it.

    Thousands wait in a worker. Each keeps the message's bytes and what admission needs: parsed, an
    order takes seven times as much memory. It is parsed again when it starts.

    Replaces Celery's own request, and serves ``celery inspect active``.

    Args:
        message: as delivered, its body as bytes.
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
        "id",
        "is_stale",
        "kept",
        "key",
        "merchant_id",
        "message",
        "name",
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
        #: By which Celery knows the request, also as its retry; and the task's name.
        self.id: str = message.headers["id"]
        self.name: str = task.name
        self.routing_key: str = message.delivery_info["routing_key"]
        self._ack, self._reject, self._consumer = ack, reject, consumer
        self.eventer = consumer.event_dispatcher  # Celery sets another one on reconnecting
        self.acknowledged = False
        #: Bytes of memory that it takes at most; 0: it is of an ordinary size. And how often the broker
        #: has had a large one back.
        self.size, self.redeliveries = 0, 0
        if len(message.body) > ORDINARY:
            self.size = _size_of(message.body)
        #: How often it has waited here for a retry.
        self.kept = 0
        #: A stale delivery: its connection is gone, and the broker redelivers the message.
        self.is_stale = False
        raw = RawMessage.of(message.body, message.headers, self.routing_key)
        self._begin(raw, payload, received)

    def become(self, again: Message, received: float) -> None:
        """Become the retry, as if its message had been published and delivered at that moment.

        ``acknowledge`` and ``reject`` still concern the message that was delivered.
        """
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
        if self.state in _OVER:
            return False
        self.enter(state)
        self.acknowledged = not self.is_stale
        return self.acknowledged

    # Celery's interface of a request.

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


def _size_of(body: bytes) -> int:
    """The bytes of memory of a large message in flight."""
    return COPIES * len(body) + PART * (body.count(b"{") + body.count(b"["))


def body_of(message: Any) -> bytes:
    """A message's raw body (the in-memory broker has text)."""
    body = message.body
    return body.encode() if isinstance(body, str) else bytes(body)
