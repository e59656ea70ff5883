"""``Task.Strategy``: Celery passes every message of the task to the handler from ``admitted``.

Admission runs here, before a green thread is taken, where Celery applies its rate limits.
"""

from collections.abc import Callable
from json import JSONDecodeError
from math import inf
from time import perf_counter
from typing import Any

from kombu.exceptions import ContentDisallowed

from pos_gateway.broker import wire
from pos_gateway.broker.wire import Malformed
from pos_gateway.domain.order import Order
from pos_gateway.domain.trace_context import TRACEPARENT, TraceContext
from pos_gateway.worker.celery_internals import default_strategy
from pos_gateway.worker.request import ORDINARY, OrderRequest, RequestState, body_of

Handler = Callable[..., None]

#: Headers of an order's message, besides the trace context; further headers are ignored.
KNOWN_HEADERS = frozenset({"task", "id", "lang", *wire.HISTORY})
#: Kept bytes of a text header. Headers travel in bundles with bounded metadata per order: more
#: metadata would make the whole bundle invalid.
HEADER_LIMIT = 128


def admitted(task: Any, app: Any, consumer: Any) -> Handler:
    """The message handler for the task on this consumer.

    A green pool goes through admission. Any different pool (the synchronous way, to move back to) takes
    orders as they come, as Celery does. Both pools dead-letter invalid messages.
    """
    dispatcher, limit = consumer.dispatcher, consumer.max_order_bytes
    celerys = default_strategy(task, app, consumer) if dispatcher is None else None

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        message.headers = known_headers(message.headers)
        message.body = body_of(message).removeprefix(wire.MARK)
        try:
            payload = read(message, limit)
        except Malformed as problem:
            consumer.quarantine(message, problem.code, problem.reason)
            return
        if celerys is not None:
            # Celery would decode some strings as times or bytes.
            message.headers[wire.BODY] = message.body
            message.content_type, message.content_encoding = "application/json", "utf-8"
            celerys(message, body, ack, reject, callbacks)
            return
        # Some clients repeat half the order there; the known headers are in ``headers``.
        headers = message.properties.pop("application_headers", None)
        request = OrderRequest(
            message,
            payload,
            ack=ack,
            reject=reject,
            task=task,
            consumer=consumer,
            received=perf_counter(),
        )
        if request.size and headers:
            returned = headers.get("x-delivery-count", 0)
            request.redeliveries = returned if isinstance(returned, int) else 0
        dispatcher.offer(request)
        if request.state is not RequestState.IN_FLIGHT:
            request.order = None  # thousands may wait

    return handle


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


def why_undecodable(error: BaseException) -> str:
    """A sentence without a quotation of the body, since the body may be personal data."""
    root = next((each for each in error.args if isinstance(each, Exception)), error)
    match root:
        case ContentDisallowed():
            return "content_type is not application/json"
        case JSONDecodeError():
            return f"the body is not JSON: {root.msg} at character {root.pos}"
        case UnicodeDecodeError():
            return f"the body is not UTF-8 at byte {root.start}"
    return f"the body cannot be decoded: {type(root).__name__}"


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
