"""An order's message in a worker, from arrival to acknowledgement, and the states in between."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import structlog
from pydantic_core import from_json

from pos_gateway.admission.lane import Call
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.broker import topology, wire
from pos_gateway.broker.bundle import ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.order import Order, timestamp
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.worker import celery_internals as celery

log = structlog.get_logger(__name__)

#: Bytes up to which a message is of an ordinary size, and is read as an order at once: reading a longer
#: message takes too long for the consumer.
ORDINARY = 16 * 1024
#: Copies of a large message during its attempt: the message, the order in the message, the order's parsed
#: texts, the ledger's payload, the POS's request twice. And the bytes of a parsed list or object.
COPIES, PART = 6, 400


class RequestState(StrEnum):
    """Where a request is. ``docs/architecture.md`` draws the transitions."""

    #: To be taken in: by the consumer, or again.
    ARRIVED = "arrived"
    #: In admission: for a slot, or for the merchant. Or for a green thread, without a slot.
    WAITING = "waiting"
    #: For the outcome of a different request for the same order, in flight.
    JOINED = "joined"
    #: Attempted on a green thread, until the outcome is committed.
    IN_FLIGHT = "in_flight"
    #: The outcome is committed, but the message is not acknowledged yet.
    COMMITTED = "committed"
    #: In this worker, for the retry.
    RETRY_WAITING = "retry_waiting"
    #: Being stored in the broker, for later.
    PARKING = "parking"
    #: The message is acknowledged.
    ACKNOWLEDGED = "acknowledged"
    #: The broker has the message back.
    REQUEUED = "requeued"


_S = RequestState

#: The allowed next states of each state. Any further transition is a bug.
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
#: States shown by ``celery inspect`` as reserved, and as active.
_RESERVED = {_S.WAITING, _S.JOINED, _S.RETRY_WAITING}
_ACTIVE = {_S.IN_FLIGHT, _S.COMMITTED}
_OVER = {_S.ACKNOWLEDGED, _S.REQUEUED}


class IllegalTransition(RuntimeError):
    """Raised on a transition to a state that cannot follow the request's present state."""


class OrderRequest:
    """The request that a message makes: to submit an order, or to cancel an order.

    Thousands wait in a worker. Each keeps the message's bytes and the facts for admission: parsed, an
    order takes seven times as much memory. A waiting order is parsed again at the start.

    Replaces Celery's own request, and serves ``celery inspect active``.

    Args:
        message: as delivered, with the body as bytes.
        payload: the parsed body, not kept; or the ``Order`` in the body, kept until the attempt.
        task: the Celery task named by the message.
        consumer: the consumer of the message.
        received: the time of arrival (``perf_counter``).
    """

    __slots__ = (
        "__weakref__",
        "_consumer",
        "acknowledged",
        "action",
        "again",
        "attempt",
        "call",
        "decision",
        "deliver_by",
        "eventer",
        "id",
        "is_stale",
        "joined_late",
        "kept",
        "key",
        "merchant_id",
        "message",
        "name",
        "needs_pos",
        "on_over",
        "order",
        "order_id",
        "placed_at",
        "raw",
        "received",
        "redeliveries",
        "routing_key",
        "size",
        "state",
        "task",
    )

    #: The attempt, while the request is in flight.
    attempt: Attempt[Any]

    def __init__(
        self, message: Any, payload: Any, task: Any, consumer: Any, received: float
    ) -> None:
        self.state = RequestState.ARRIVED
        self.message, self.task, self._consumer = message, task, consumer
        self.action: Action = task.action
        #: Celery's key for the request, also as a retry; and the task's name.
        self.id: str = message.headers["id"]
        self.name: str = task.name
        self.routing_key: str = message.delivery_info["routing_key"]
        self.eventer = consumer.event_dispatcher  # Celery sets a new one on reconnecting
        self.acknowledged = False
        #: The call, while the call has a slot.
        self.call: Call[OrderRequest] | None = None
        #: None before the attempt's end.
        self.decision: Decision | None = None
        #: The message of the retry in this worker, once all else is committed.
        self.again: Message | None = None
        #: Whether the outcome was decided before the request joined.
        self.joined_late = False
        #: A cancel request for an order that the POS may have: the next attempt may call the POS.
        self.needs_pos = False
        #: Called at the request's end; None: nothing is counted.
        self.on_over: Callable[[], None] | None = None
        #: The request's bytes of memory at most; 0: an ordinary size. And the broker's count of a large
        #: message's returns.
        self.size = self.redeliveries = 0
        if len(message.body) > ORDINARY:
            self.size = _size_of(message.body)
        #: Retries awaited here so far.
        self.kept = 0
        #: A stale delivery: the connection is gone, and the broker redelivers the message.
        self.is_stale = False
        self._read(message.body, message.headers, payload, received)

    @property
    def is_committed(self) -> bool:
        """Whether the outcome is committed, but perhaps for the retry."""
        return self.again is not None or self.state in (_S.COMMITTED, _S.ACKNOWLEDGED)

    def enter(self, state: RequestState) -> None:
        """Come to this state, and let Celery know.

        Raises:
            IllegalTransition: the state cannot follow the present state.
        """
        before = self.state
        if state not in NEXT[before]:
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
        """End the count early."""
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over()

    def start_over(self) -> None:
        """Forget the decision, but for ``needs_pos``: the request is to be taken in again."""
        self.enter(RequestState.ARRIVED)
        self.needs_pos = self.decision is not None and self.decision.needs_pos
        self.decision, self.again = None, None

    def become(self, again: Message, received: float) -> None:
        """Become the retry, as if the retry's message had been published and delivered at this moment.

        ``acknowledge`` and ``requeue`` still concern the delivered message.
        """
        self.start_over()
        self.message.body = again.body  # not both texts
        headers = {**again.headers, "id": self.id}
        self._read(again.body, headers, from_json(again.body), received)

    def _read(self, body: bytes, headers: Any, payload: Any, received: float) -> None:
        self.raw = raw = RawMessage.of(body, headers, self.routing_key)
        self.received = received
        #: The order, if read on arrival, for an attempt that begins at once.
        self.order = payload if isinstance(payload, Order) else None
        #: The merchant and the order; empty or None if the message does not say.
        self.merchant_id: str = ""
        self.order_id: str | None = None
        #: When the order was placed and when the request expires (Unix time, by the backend's clock);
        #: None if the message does not say, or if an expired order is looked up. The time of looking
        #: up whether a late cancel request succeeded is bounded: no event is recorded yet.
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

    def drop_body(self) -> None:
        """Keep nothing of the message but the place: the broker has the message."""
        self.message.body, self.raw = b"", self.raw._replace(body=b"")

    def as_parked(self) -> ParkedOrder:
        """The unchanged message, headers included, to be delivered again."""
        message = Message(
            exchange=topology.orders_exchange.name,
            routing_key=self.raw.home,
            body=self.raw.body,
            message_id=self.order_id or "",
            headers=self.raw.headers,
        )
        return ParkedOrder(message, self.deliver_by)

    def is_copy_of(self, other: "OrderRequest") -> bool:
        """Whether the message is the same as a different request's, or an earlier attempt's.

        A corrected order is no copy, nor is a cancel request with a later deadline. A message with
        more attempts is the retry: the delay can be over before the publish is confirmed.
        """
        return self.raw.body == other.raw.body and self.raw.tries <= other.raw.tries

    def shares_outcome_of(self, other: "OrderRequest") -> bool:
        """Whether the decision for the request joined also applies to this request."""
        decision = other.decision
        if self.key != other.key:  # an order that waited for a cancel request
            return False
        if decision is None or not other.is_committed or not self.is_copy_of(other):
            return False
        if decision.again is not None:
            return True
        # A terminal state only found, or committed before this request arrived, may be
        # outdated: an operator may have reopened the order.
        is_written = any(claim.key.action is other.action for claim, _ in decision.entries)
        return is_written and not self.joined_late

    def acknowledge(self) -> None:
        """Acknowledge the message, once the outcome is committed. Idempotent.

        Does nothing to a stale delivery: the redelivered message finds the outcome in the ledger.
        """
        if self.state not in _OVER:
            self.enter(RequestState.ACKNOWLEDGED)
            self.acknowledged = not self.is_stale
            if self.acknowledged:
                self.message.ack_log_error(log, self._consumer.connection_errors)

    def requeue(self) -> None:
        """Requeue the message. Idempotent; nothing after ``acknowledge``, or if stale."""
        if self.state not in _OVER:
            self.enter(RequestState.REQUEUED)
            self.acknowledged = not self.is_stale
            if self.acknowledged:
                self.message.reject_log_error(log, self._consumer.connection_errors, True)

    # Celery's interface of a request.

    def info(self, safe: bool = False) -> dict[str, Any]:
        """The lines of ``celery inspect``: merchant and order, and nothing of the content."""
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
