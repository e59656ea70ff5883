"""Takes messages from the queue: each becomes an order's request, parked orders, or a dead letter.

A green worker's dispatcher gets requests and parked orders: admission runs there, before a green thread
is taken. A synchronous worker (the way to move back to) passes orders to Celery, and unparks all parked
orders at once.
"""

from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any

import structlog

from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import BYTES_ALLOWED, PARKED_ORDERS, Bundle
from pos_gateway.broker.properties import COMPRESSION, UNREADABLE, WHY_UNREADABLE
from pos_gateway.broker.wire import Malformed
from pos_gateway.domain.errors import BrokerUnavailable, InvalidBundle
from pos_gateway.domain.order import Order
from pos_gateway.domain.trace_context import TRACEPARENT, TraceContext
from pos_gateway.worker.dead_lettering import KNOWN_HEADERS, DeadLettering, body_of
from pos_gateway.worker.request import ORDINARY, OrderRequest, RequestState
from pos_gateway.worker.tasks import SYNCHRONOUS_TIMEOUT
from pos_gateway.worker.waiting_bundles import ReturnedBundle

log = structlog.get_logger(__name__)

#: Kept bytes of a text header. Headers travel in bundles with bounded metadata per order: more
#: metadata would make the whole bundle invalid.
HEADER_LIMIT = 128
#: Factor by which a republished message may exceed an order's limit: earlier versions filled in an order's defaults
#: when republishing.
GROWN = 4


class MessageIntake:
    """Handles the messages of a connection; a malformed message stops nothing.

    Args:
        consumer: Celery's.
        gate: unparks orders for a synchronous worker.
        dead_letter: takes malformed messages.
        celerys: Celery's handler of orders, for a synchronous worker; None: the consumer has a dispatcher.
    """

    def __init__(
        self,
        consumer: Any,
        gate: Gateway,
        dead_letter: DeadLettering,
        celerys: Callable[[Any], None] | None,
    ) -> None:
        self._consumer, self._gate, self._dead_letter = consumer, gate, dead_letter
        self._dispatcher, self._celerys = consumer.dispatcher, celerys
        self._tasks = {
            name: consumer.app.tasks[name] for name in (wire.SUBMIT_ORDER, wire.CANCEL_ORDER)
        }
        self._limit = gate.settings.max_order_bytes
        self._longest = max(GROWN * self._limit, BYTES_ALLOWED)
        self._lost = (*consumer.connection_errors, *consumer.channel_errors)

    def handle(self, message: Any) -> None:
        """Handle a message. Raises only the errors of a lost connection."""
        try:
            headers, size = message.headers, len(message.body)
            if COMPRESSION in headers:
                reason = "the header compression is set; bodies are taken as they are only"
                raise Malformed("compressed", reason)
            if size > self._longest:  # decoding would take many times the bytes
                reason = f"the message has {size} bytes; {self._limit} are allowed"
                raise Malformed("too_large", reason)
            if message.content_type == UNREADABLE:
                raise Malformed("undecodable", WHY_UNREADABLE)
            name = headers.get("task")
            if name is None:
                raise Malformed("unknown_message", "the header task is missing")
            if not isinstance(name, str):
                raise Malformed("unknown_message", "the header task is no text")
            if (task := self._tasks.get(name)) is not None:
                self._take_order(message, task)
            elif name == PARKED_ORDERS:
                self._take_parked(message)
            else:
                raise Malformed("unknown_task", f"there is no task {name!r}")
        except Malformed as problem:
            self._dead_letter(message, problem.code, problem.reason)
        except self._lost:
            raise
        except Exception as error:  # noqa: BLE001  (the message would end every worker)
            self._dead_letter(message, "invalid_message", type(error).__name__)

    def _take_order(self, message: Any, task: Any) -> None:
        message.headers = known_headers(message.headers)
        body = message.body
        message.body = (body if type(body) is bytes else body_of(message)).removeprefix(wire.MARK)
        payload = read(message, self._limit)
        if self._celerys is not None:
            # Celery would decode some strings as times or bytes.
            message.headers[wire.BODY] = message.body
            message.content_type, message.content_encoding = "application/json", "utf-8"
            self._celerys(message)
            return
        # Some clients repeat half the order there; the known headers are in ``headers``.
        headers = message.properties.pop("application_headers", None)
        request = OrderRequest(message, payload, task, self._consumer, perf_counter())
        if request.size and headers:
            returned = headers.get("x-delivery-count", 0)
            request.redeliveries = returned if isinstance(returned, int) else 0
        self._dispatcher.offer(request)
        if request.state is not RequestState.IN_FLIGHT:
            request.order = None  # thousands may wait

    def _take_parked(self, message: Any) -> None:
        body = body_of(message)
        if len(body) > BYTES_ALLOWED:
            reason = f"the message has {len(body)} bytes; a bundle has {BYTES_ALLOWED} at most"
            raise Malformed("too_large", reason)
        key = wire.home_key(message.delivery_info["routing_key"])
        try:
            bundle = Bundle.read(message.headers, body, key)
            back = ReturnedBundle(bundle, message, self._consumer.connection_errors)
            if self._dispatcher is None:
                self._unpark_all(back)
            else:
                self._dispatcher.take_back(back)
        except InvalidBundle as error:
            raise Malformed("invalid_bundle", str(error)) from None

    def _unpark_all(self, back: ReturnedBundle) -> None:
        messages = [order.message for order in back.bundle.open()]
        try:
            self._gate.store(messages, timeout=SYNCHRONOUS_TIMEOUT)
        except BrokerUnavailable as error:
            log.warning("orders.not_let_out", orders=len(messages), error=str(error))
            back.requeue()
        else:
            back.acknowledge()


def read(message: Any, limit: int) -> Any:
    """Parse an order's message, ``[[order], {}, {}]``; or the ``Order``, if the order is certainly valid.

    Raises:
        Malformed: the message is invalid.
    """
    body = message.body
    # A republished order may exceed the limit: on arrival the order was within.
    parts = wire.require_small(body, inf if wire.ATTEMPTS in message.headers else limit)
    if not isinstance(message.headers.get("id"), str):
        raise Malformed("invalid_message", "the header id is missing or not a string")
    # A lone order may be nested too deeply for parsing the message again, for the retry.
    is_usual = parts <= wire.FLAT and len(body) <= ORDINARY
    if is_usual and message.headers.get("task") == wire.SUBMIT_ORDER:
        source = wire.text_in(body)
        order = None if source is None else Order.read(source)
        if order is not None:
            return order
    return wire.decoded(body)


def known_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """The headers known to the gateway.

    Celery would obey further headers (``expires`` loses an order, ``timelimit`` kills the order, ``eta``
    keeps the order in memory) and fail on some.
    """
    known: dict[str, Any] = {}
    for name in KNOWN_HEADERS & headers.keys():
        value = headers[name]
        if not isinstance(value, str):
            if wire.is_plain(value):
                known[name] = value
        # The gateway's own headers are numbers and flags.
        elif name not in wire.HISTORY and (value.isascii() or wire.is_plain(value)):
            known[name] = value if len(value) <= HEADER_LIMIT // 4 else _short(value)
    if TRACEPARENT in headers and (trace := TraceContext.of(headers)):
        known |= trace.headers
    return known


def _short(value: str) -> str:
    return value.encode()[:HEADER_LIMIT].decode(errors="ignore")
