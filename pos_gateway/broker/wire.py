"""The order message's wire format: a Celery task message, protocol 2, JSON.

``docs/wire-format.md`` is this file in prose. The worker relies only on parts that a backend in any language can send:
two headers and the body.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from pydantic_core import from_json

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message, undelayed
from pos_gateway.domain.trace_context import TRACEPARENT, TraceContext

SUBMIT_ORDER = "pos_gateway.submit_order"
CANCEL_ORDER = "pos_gateway.cancel_order"

#: Headers of an order's message: the number of retries, whether an expired order is still looked up, and whether the
#: POS may have the order, so that the retry is a look-up. Of a bundle: whether all orders are look-ups.
ATTEMPTS, RESOLVE, LOOK_UP = HISTORY = "x-attempts", "x-resolve", "x-look-up"
#: Counted at most: AMQP numbers have 64 bits, and an order gets a few thousand tries.
_MAX_TRIES = 2**31
#: Marks a message published by the gateway: the limit on an order's size is for new orders.
ONE_OF_OURS = MappingProxyType({ATTEMPTS: 0})
#: Header for the unchanged body, from a worker to its child processes. Never published.
BODY = "x-body"

#: A UTF-8 byte order mark, which some libraries put before a text: JSON has no mark, and a reader may skip the mark
#: (RFC 8259).
MARK = b"\xef\xbb\xbf"

#: Maximum lists and objects in a message: three times the number in the largest meaningful order.
PARTS = 20_000
#: Lists and objects up to which no nesting is too deep to be read.
FLAT = 100

#: The third element of a Celery body: no callbacks, no chain. Bytes, since it is constant.
NO_EMBED = b'{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'


def submit_message(
    order_id: str,
    order_json: bytes,
    *,
    routing_key: str,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The message that submits an order."""
    return asking(SUBMIT_ORDER, order_id, body_of(order_json), routing_key, headers)


def cancel_message(
    order_id: str,
    request_json: bytes,
    *,
    routing_key: str,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The message with a request to cancel an order."""
    return asking(CANCEL_ORDER, order_id, body_of(request_json), routing_key, headers)


def body_of(argument: bytes) -> bytes:
    """The body of a message with this argument."""
    return b"[[" + argument + b"],{}," + NO_EMBED + b"]"


def asking(
    task: str, order_id: str, body: bytes, routing_key: str, headers: Mapping[str, Any]
) -> Message:
    """A task message about an order."""
    return Message(
        exchange=topology.orders_exchange.name,
        routing_key=routing_key,
        body=body,
        message_id=order_id,
        headers={"task": task, "id": order_id, "lang": "py", **headers},
    )


def dead_letter(message: Message, *, code: str, reason: str) -> Message:
    """The same message for ``orders.dead``, with the reason in two headers."""
    return replace(
        message,
        routing_key=topology.DEAD_KEY,
        headers={**message.headers, "x-reason-code": code, "x-reason": reason},
    )


class Malformed(Exception):
    """The message is no order message."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def require_small(body: bytes, limit: float) -> int:
    """The number of lists and objects. Raises Malformed for a body too long, or too slow, to parse."""
    if len(body) > limit:
        reason = f"the message has {len(body)} bytes; {limit} are allowed"
        raise Malformed("too_large", reason)
    # A hundred thousand empty lists take as long to parse as a thousand orders.
    parts = body.count(b"[") + body.count(b"{")
    if parts > PARTS:
        reason = f"the message has {parts} lists and objects; {PARTS} are allowed"
        raise Malformed("too_large", reason)
    return parts


def decoded(body: bytes) -> Any:
    """An order message's payload, ``[[order], {}, {}]``. Raises Malformed.

    Celery would stop the worker over a body without three elements, and drop its other orders.
    """
    try:
        payload = from_json(body)  # rejects invalid UTF-8, and nesting too deep to be serialized
    except ValueError as error:
        raise Malformed("undecodable", f"the body is not JSON: {error}") from None
    match payload:
        case [list(), dict(), dict() as embedded] if any(embedded.values()):
            problem = "callbacks and chains are not taken from a message"
        case [list(), dict(), dict()]:
            return payload
        case _:
            problem = "the body is not [[order], {}, {}]"
    raise Malformed("invalid_message", problem)


def order_in(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The order in a task's arguments (positional, or named), the first two parts of a body."""
    return arguments[0] if arguments else named.get("order")


class RawMessage(NamedTuple):
    """A message about an order, as received, with parsed headers and an unparsed body."""

    #: Without a byte order mark.
    body: bytes
    headers: Mapping[str, Any] = MappingProxyType({})
    #: Routing key of the order's queue, canary or not.
    home: str = topology.ORDERS_KEY
    #: Earlier retries.
    tries: int = 0
    #: Whether the order is past the deadline, and to be looked up (``RESOLVE``).
    resolve: bool = False
    #: Whether the POS may have the order (``LOOK_UP``).
    look_up: bool = False
    #: Trace context, repeated in a retry.
    trace: TraceContext | None = None

    @classmethod
    def of(cls, body: bytes, headers: Mapping[str, Any], routing_key: str | None) -> Self:
        """The message with this body and these headers, from the queue with this routing key."""
        trace = TraceContext.of(headers) if TRACEPARENT in headers else None
        number = tries(headers) if ATTEMPTS in headers else 0
        # A backend's headers are not the gateway's: without a try there is nothing to resolve.
        resolve = number > 0 and headers.get(RESOLVE) is True
        look_up = number > 0 and is_look_up(headers)
        return cls(body, headers, home_key(routing_key), number, resolve, look_up, trace)

    def again(
        self, task: str, order_id: str, headers: Mapping[str, Any] = MappingProxyType({})
    ) -> Message:
        """A message with the same body, byte for byte, for the same queue, in the same trace."""
        return asking(task, order_id, self.body, self.home, headers).following(self.trace)


_BEFORE = re.compile(rb"\s*\[\s*\[\s*")
#: Everything after the order. In valid JSON the match is always at the end: had a match its beginning in a string, the
#: first quotation mark of the match would end the string, with a name and no comma next.
_AFTER = re.compile(
    rb"\s*\]\s*,\s*\{\s*\}\s*,"
    rb"\s*\{\s*(?:\"[a-z]+\"\s*:\s*null\s*(?:,\s*\"[a-z]+\"\s*:\s*null\s*)*)?\}\s*\]\s*\Z"
)
#: Bytes at the end to search for ``_AFTER``.
_END = 256
#: The end as written by ``body_of``.
_OURS = b"}],{}," + NO_EMBED + b"]"


def read(body: bytes) -> tuple[Any, bytes | None]:
    """The order in an order message, and the order's text as received, if known. Raises ValueError."""
    match from_json(body):
        case [list() as arguments, dict() as named, *_]:
            record = order_in(arguments, named)
        case _:
            raise ValueError("not [[order], {}, {}]")
    return record, None if named or len(arguments) != 1 else text_in(body)


def text_in(body: bytes) -> bytes | None:
    """The text of a body's one argument, unparsed; None: not found."""
    if body.startswith(b"[[{") and body.endswith(_OURS):
        return body[2 : 1 - len(_OURS)]
    after = _AFTER.search(body, max(0, len(body) - _END))
    before = _BEFORE.match(body)
    return None if before is None or after is None else body[before.end() : after.start()]


#: A member with a string, a number or a literal as value.
_MEMBER = re.compile(
    rb'\s*("[^"\\]{0,64}")\s*:\s*(?:("[^"\\]*(?:\\.[^"\\]*)*")|[-+.0-9a-zA-Z]{1,32})\s*,'
)
_ORDER_BEGINS = re.compile(rb"(?:%s)?\s*\[\s*\[\s*\{" % MARK)
#: Maximum bytes of a member.
_MEMBER_SIZE = 2 * 4096


def named_in(body: bytes) -> dict[str, str]:
    """An order's order_id and merchant_id, if both come before the first list or object.

    For an unparsed or unparsable message: most backends put both first.
    """
    named: dict[str, str] = {}
    before = _ORDER_BEGINS.match(body)
    at = before.end() if before else len(body)
    while len(named) < len(NAMES) and (member := _MEMBER.match(body, at, at + _MEMBER_SIZE)):
        name, value = member[1][1:-1].decode(errors="replace"), member[2]
        if name in NAMES and value is not None:
            with suppress(ValueError):  # an invalid escape: the body is no order's
                named[name] = from_json(value)
        at = member.end()
    return named


#: The names for ``named_in``.
NAMES = ("order_id", "merchant_id")


def tries(headers: Mapping[str, Any]) -> int:
    """How often a message was retried before it was published."""
    found = headers.get(ATTEMPTS)
    return min(found, _MAX_TRIES) if isinstance(found, int) and found > 0 else 0


def is_look_up(headers: Mapping[str, Any]) -> bool:
    """Whether a message is the retry of an order that the POS may have."""
    # A release without the header LOOK_UP wrote RESOLVE alone.
    return (headers.get(LOOK_UP) is True or headers.get(RESOLVE) is True) and tries(headers) > 0


@lru_cache(maxsize=64)
def home_key(routing_key: str | None) -> str:
    """The key of the order's queue, canary or not, from a routing key."""
    key = undelayed(routing_key or "")
    return key if key == topology.CANARY_KEY else topology.ORDERS_KEY


def is_plain(value: object) -> bool:
    """Whether a header's value fits both JSON and AMQP."""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)
    return isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)
