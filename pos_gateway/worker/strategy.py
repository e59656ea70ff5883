"""``Task.Strategy``: Celery hands every message for the task to what ``admitted`` returns.

This is where admission sits, before a green thread is taken; Celery's own rate limits hold
messages back at the same place.
"""

from collections.abc import Callable
from json import JSONDecodeError
from math import inf
from time import perf_counter
from typing import Any

from celery.worker import strategy
from kombu.exceptions import ContentDisallowed

from pos_gateway.broker import wire
from pos_gateway.broker.bundle import is_plain
from pos_gateway.broker.wire import Malformed
from pos_gateway.domain.trace_context import TRACEPARENT, TraceContext
from pos_gateway.worker.request import OrderRequest, body_of

Handler = Callable[..., None]

#: Headers of an order's message, beside its trace's; every other one is left unread.
KNOWN_HEADERS = frozenset({"task", "id", "lang", *wire.HISTORY})
#: Bytes of a text in one that are kept. They travel with a parked order, and what is said of one beside
#: its body is bounded: more of it would make the whole bundle invalid, its neighbours with it.
HEADER_LIMIT = 128


def admitted(task: Any, app: Any, consumer: Any) -> Handler:
    """The message handler for the task on this consumer.

    A green pool goes through admission. Other pools (the synchronous way, to move back to) take
    orders as they come, as Celery does; what is not an order is quarantined by both.
    """
    green = consumer.dispatcher is not None
    take = _offer(task, consumer) if green else strategy.default(task, app, consumer)
    limit = consumer.max_order_bytes

    def handle(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        message.headers = known_headers(message.headers)
        try:
            payload = read(message, limit)
        except Malformed as problem:
            consumer.quarantine(message, problem.code, problem.reason)
        else:
            if not green:  # Celery reads times and bytes out of it that are not there
                message.headers[wire.BODY] = body_of(message)
            take(message, payload if green else body, ack, reject, callbacks)

    return handle


def read(message: Any, limit: int) -> Any:
    """What an order's message says, ``[[order], {}, {}]``.

    Raises:
        Malformed: it is no order's.
    """
    body = body_of(message)
    # An order is not to outgrow the limit on its way: what a worker has published was within it.
    wire.require_small(body, inf if wire.ATTEMPTS in message.headers else limit)
    if not isinstance(message.headers.get("id"), str):
        raise Malformed("invalid_message", "the header id is missing or not a string")
    if message.content_type != JSON:
        raise Malformed("undecodable", f"content_type is not {JSON}")
    return wire.decoded(body)


JSON = "application/json"


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
        name: _short(value)
        for name, value in headers.items()
        if name in KNOWN_HEADERS and is_plain(value)
        # The gateway's own are numbers and flags.
        if name not in wire.HISTORY or not isinstance(value, str)
    }
    if TRACEPARENT in headers and (trace := TraceContext.of(headers)):
        known |= trace.headers
    return known


def _short(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= HEADER_LIMIT // 4:
        return value
    return value.encode()[:HEADER_LIMIT].decode(errors="ignore")


def _offer(task: Any, consumer: Any) -> Handler:
    offer = consumer.dispatcher.offer

    def take(message: Any, payload: Any, ack: Any, reject: Any, _callbacks: Any) -> None:
        # Some clients repeat half the order there; what is known of them is in ``headers``.
        message.properties.pop("application_headers", None)
        request = OrderRequest(
            message,
            payload,
            ack=ack,
            reject=reject,
            task=task,
            consumer=consumer,
            received=perf_counter(),
        )
        offer(request)

    return take
