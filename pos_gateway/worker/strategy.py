"""``Task.Strategy``: Celery hands every message for the task to what ``admitted`` returns.

This is where admission sits, before a green thread is taken; Celery's own rate limits hold
messages back at the same place.
"""

from collections.abc import Callable
from datetime import datetime
from json import JSONDecodeError
from time import perf_counter
from typing import Any

from celery.worker import strategy
from kombu.exceptions import ContentDisallowed, DecodeError

from pos_gateway.broker.bundle import is_plain
from pos_gateway.broker.wire import HISTORY, RESOLVE
from pos_gateway.record import identifier
from pos_gateway.trace_context import TRACEPARENT, TraceContext
from pos_gateway.worker.request import OrderRequest, body_of

Handler = Callable[..., None]

#: Headers of an order's message, beside its trace's; every other one is left unread.
KNOWN_HEADERS = frozenset({"task", "id", "lang", *HISTORY})
#: Levels of a body at most, some more than an order may have. What Python can just read it cannot
#: write any more, or show in an error.
DEEPEST = 256


def admitted(task: Any, app: Any, consumer: Any) -> Handler:
    """The message handler for the task on this consumer.

    A green pool goes through admission. Other pools (the synchronous way, to move back to) take
    orders as they come, as Celery does; what is not an order is quarantined by both.
    """
    green = consumer.dispatcher is not None
    take = _offer(task, app, consumer) if green else strategy.default(task, app, consumer)
    limit = consumer.max_order_bytes

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        message.headers = known_headers(message.headers)
        problem = malformed(message, limit)
        if problem is not None:
            consumer.quarantine(message, *problem)
        else:
            take(message, body, ack, reject, callbacks)

    return handle


def malformed(message: Any, limit: int) -> tuple[str, str] | None:
    """What keeps the message from being an order's, as a code and a sentence; None: nothing.

    Celery would stop the worker over a body that is not three things, and forget the others.
    """
    if len(message.body) > limit:
        return "too_large", f"the message has {len(message.body)} bytes; {limit} are allowed"
    if not isinstance(message.headers.get("id"), str):
        return "invalid_message", "the header id is missing or not a string"
    try:
        payload = message.payload
    except (DecodeError, ContentDisallowed, ValueError, LookupError, TypeError) as error:
        return "undecodable", why_undecodable(error)
    match payload:
        case _ if _is_deep(body_of(message), payload):
            problem = f"the body is nested more than {DEEPEST} levels deep"
        case [list(), dict(), dict() as embedded] if any(embedded.values()):
            problem = "callbacks and chains are not taken from a message"
        case [list(), dict(), dict()]:
            return None
        case _:
            problem = "the body is not [[order], {}, {}]"
    return "invalid_message", problem


def _is_deep(body: bytes, payload: Any) -> bool:
    if body.count(b"[") + body.count(b"{") <= DEEPEST:
        return False
    level = [payload]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def why_undecodable(error: BaseException) -> str:
    """A sentence without a word of the body: who set a message aside is not told whose it was."""
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
    """The headers that mean something here.

    Celery would obey others (``expires`` loses an order, ``timelimit`` kills it, ``eta`` keeps
    it in memory) and stumble over some of them.
    """
    known = {
        name: value for name, value in headers.items() if name in KNOWN_HEADERS and is_plain(value)
    }
    if TRACEPARENT in headers and (trace := TraceContext.of(headers)):
        known |= trace.headers
    return known


def _offer(task: Any, app: Any, consumer: Any) -> Handler:
    hostname, errors, eventer = (
        consumer.hostname,
        consumer.connection_errors,
        consumer.event_dispatcher,
    )
    offer = consumer.dispatcher.offer

    def take(message: Any, _body: Any, ack: Any, reject: Any, _callbacks: Any) -> None:
        request = OrderRequest(
            message,
            on_ack=ack,
            on_reject=reject,
            app=app,
            hostname=hostname,
            eventer=eventer,
            task=task,
            connection_errors=errors,
            headers=message.headers,
        )
        request.received = perf_counter()
        arguments, named, _ = message.payload
        record = request.record = arguments[0] if arguments else named.get("order")
        if isinstance(record, dict):
            request.merchant_id = identifier(record.get("merchant_id")) or ""
            request.order_id = identifier(record.get("order_id"))
            request.placed_at = _timestamp(record.get("placed_at"))
            if message.headers.get(RESOLVE) is not True:
                request.deliver_by = _timestamp(record.get("deliver_by"))
        offer(request)

    return take


def _timestamp(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None  # the task will say what is wrong with it
