"""Dead-letters messages that are no orders, with a reason and, where the order is known, an event."""

from math import inf
from typing import Any

import structlog

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import unparsed
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import topology, wire
from pos_gateway.broker.bundle import HEADERS as BUNDLE_HEADERS
from pos_gateway.broker.message import Message
from pos_gateway.broker.properties import COMPRESSION
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import LedgerUnavailable, PublishError
from pos_gateway.domain.outcome import Reason
from pos_gateway.domain.trace_context import TRACEPARENT, TRACESTATE, TraceContext
from pos_gateway.ledger.states import Action
from pos_gateway.worker.tasks import SYNCHRONOUS_TIMEOUT

log = structlog.get_logger(__name__)

#: Bytes of messages on their way to ``orders.dead`` before the next message is read.
MAX_BYTES = 8 * 2**20
#: Headers of an order's message, besides the trace context; further headers are ignored.
KNOWN_HEADERS = frozenset({"task", "id", "lang", *wire.HISTORY})
#: Headers in which Celery's clients repeat the body, personal data included.
_OF_THE_BODY = frozenset({"argsrepr", "kwargsrepr"})
#: Headers for a replay: kept however many further headers a message has.
_FOR_REPLAY = KNOWN_HEADERS | BUNDLE_HEADERS | {TRACEPARENT, TRACESTATE, COMPRESSION}
#: Maximum headers kept.
_HEADERS = 20


class DeadLettering:
    """Dead-letters a message, then acknowledges the message.

    Args:
        gate: makes the dead letter and the event durable.
        connection_errors: the errors with which an acknowledgement may fail.
        is_green: each message gets a green thread; else the caller waits.
    """

    def __init__(
        self, gate: Gateway, connection_errors: tuple[type[BaseException], ...], *, is_green: bool
    ) -> None:
        self._gate, self._errors, self._is_green = gate, connection_errors, is_green
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the next message has to wait."""
        return self._bytes > MAX_BYTES

    def __call__(self, message: Any, code: str, reason: str) -> None:
        """Dead-letter a message.

        The message is requeued if a different worker has taken over the order; by a synchronous worker, also if
        the database or the broker does not answer in time.
        """
        if not self._is_green:
            try:
                self._settle(message, code, reason)
            finally:
                self._gate.ledger.release()
            return
        import gevent  # noqa: PLC0415  (a synchronous worker runs without it)

        size = len(message.body)
        self._bytes += size
        gevent.spawn(self._settle, message, code, reason).rawlink(lambda _: self._settled(size))

    def _settled(self, size: int) -> None:
        self._bytes -= size

    def _settle(self, message: Any, code: str, reason: str) -> None:
        log.warning("message.quarantined", code=code, reason=reason)
        key = (message.delivery_info or {}).get("routing_key")
        original = Message(
            exchange=topology.orders_exchange.name,
            routing_key=wire.home_key(key),
            body=body_of(message),
            message_id=_number_of(message),
            headers={**_plain(message.headers), "x-content-type": str(message.content_type)[:64]},
        )
        task = message.headers.get("task")
        named = wire.named_in(original.body) if task == wire.SUBMIT_ORDER else {}
        action = Action.CANCEL if task == wire.CANCEL_ORDER else Action.SUBMIT
        raw = RawMessage(
            original.body, home=original.routing_key, trace=TraceContext.of(message.headers)
        )
        attempt = Attempt(unparsed(original, named, Reason.of(code, reason)), raw, action)
        # The parent of a synchronous worker waits here: until then no heartbeat is sent, and no stop seen.
        timeout = inf if self._is_green else SYNCHRONOUS_TIMEOUT
        try:
            decision = self._gate.spine.attempt(attempt, timeout=timeout)
        except (PublishError, LedgerUnavailable):
            if self._is_green:
                return  # this process is stopping; the unacknowledged message is redelivered
            decision = None
        if decision is None:  # nothing was published; the message may be the order's only one
            message.reject_log_error(log, self._errors, requeue=True)
            return
        message.ack_log_error(log, self._errors)


def body_of(message: Any) -> bytes:
    """A message's raw body (the in-memory broker has text)."""
    body = message.body
    return body.encode() if isinstance(body, str) else bytes(body)


def _number_of(message: Any) -> str:
    """The sender's message id in 128 bytes; AMQP allows 255."""
    number = str(message.properties.get("message_id") or message.headers.get("id", ""))
    return number.encode(errors="replace")[:128].decode(errors="ignore")


def _plain(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers kept with a message in ``orders.dead``: short, plain values."""
    kept = {
        name: value
        for name, value in headers.items()
        if isinstance(value, str | int | float | bool)
        and len(name) <= 64
        and len(str(value)) <= 256
        and name not in _OF_THE_BODY
    }
    first = sorted(kept, key=lambda name: name not in _FOR_REPLAY)
    return {name: kept[name] for name in first[:_HEADERS]}
