"""The order message as it stands on the wire: a Celery task message, protocol 2, JSON.

``docs/wire-format.md`` is this file in prose. The worker relies on nothing that a backend in
another language could not send: two headers and the body.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pydantic_core import from_json

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message, undelayed

SUBMIT_ORDER = "pos_gateway.submit_order"
CANCEL_ORDER = "pos_gateway.cancel_order"

#: Headers that travel with an order's message: how often it has been put back, and whether it is
#: about an order that the POS may have, to be asked for however late it is.
ATTEMPTS, RESOLVE = HISTORY = "x-attempts", "x-resolve"
#: What says that the gateway has published it: the limit on an order's size is for its arrival.
ONE_OF_OURS = MappingProxyType({ATTEMPTS: 0})
#: Header by which a worker hands the body as it came to its child processes. It is never published.
BODY = "x-body"

#: Lists and objects in a message: three times what the largest order has that says something.
PARTS = 20_000

#: Celery's third element of the body: no callbacks, no chain. Bytes, since it never changes.
NO_EMBED = b'{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'


def submit_message(
    order_id: str,
    order_json: bytes,
    *,
    routing_key: str,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The message that asks for an order to be sent to its merchant."""
    return asking(SUBMIT_ORDER, order_id, body_of(order_json), routing_key, headers)


def cancel_message(
    order_id: str,
    request_json: bytes,
    *,
    routing_key: str,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The message that asks for an order to be cancelled."""
    return asking(CANCEL_ORDER, order_id, body_of(request_json), routing_key, headers)


def body_of(argument: bytes) -> bytes:
    """The body of a message about this order."""
    return b"[[" + argument + b"],{}," + NO_EMBED + b"]"


def asking(
    task: str, order_id: str, body: bytes, routing_key: str, headers: Mapping[str, Any]
) -> Message:
    """A message that asks for something to be done with an order."""
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
    """What keeps a message from being an order's."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code, self.reason = code, reason


def require_small(body: bytes, limit: float) -> None:
    """Raises Malformed for a body that is too long to be read, or takes too long."""
    if len(body) > limit:
        reason = f"the message has {len(body)} bytes; {limit} are allowed"
        raise Malformed("too_large", reason)
    # A hundred thousand lists take as long to be read as a thousand orders, and say nothing.
    parts = body.count(b"[") + body.count(b"{")
    if parts > PARTS:
        reason = f"the message has {parts} lists and objects; {PARTS} are allowed"
        raise Malformed("too_large", reason)


def decoded(body: bytes) -> Any:
    """What an order's message says, ``[[order], {}, {}]``. Raises Malformed.

    Celery would stop the worker over a body that is not three things, and forget the others.
    """
    try:
        payload = from_json(body)  # UTF-8, and no deeper than can be written again
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
    """What a task's arguments have for an order: a message's body begins with both."""
    return arguments[0] if arguments else named.get("order")


@dataclass(frozen=True, slots=True)
class Came:
    """A message's body as it came, and what of it is the order's text; None if that is not known."""

    body: bytes
    source: bytes | None = None


_BEFORE = re.compile(rb"\s*\[\s*\[\s*")
#: Everything behind the order. A body that is JSON has it nowhere but at its end: were its beginning
#: in a text, the first quotation mark in it would end that, with a name behind it and no comma.
_BEHIND = re.compile(
    rb"\s*\]\s*,\s*\{\s*\}\s*,\s*\{(?:\s*\"[a-z]+\"\s*:\s*null\s*,?)*\s*\}\s*\]\s*\Z"
)
#: Bytes at the end that are looked through for that.
_END = 256


def read(body: bytes) -> tuple[Any, Came]:
    """What a message that is an order's has for an order, and how it says so. Raises ValueError."""
    match from_json(body):
        case [list() as arguments, dict() as named, *_]:
            record = order_in(arguments, named)
        case _:
            raise ValueError("not [[order], {}, {}]")
    behind = _BEHIND.search(body, max(0, len(body) - _END))
    before = _BEFORE.match(body)
    if before is None or behind is None or named or len(arguments) != 1:
        return record, Came(body)
    return record, Came(body, body[before.end() : behind.start()])


#: A member whose value is a text, a number or a word.
_MEMBER = re.compile(
    rb'\s*("[^"\\]{0,64}")\s*:\s*(?:("[^"\\]*(?:\\.[^"\\]*)*")|[-+.0-9a-zA-Z]{1,32})\s*,'
)
#: Bytes that one may have.
_MEMBER_SIZE = 2 * 4096


def named_in(body: bytes) -> dict[str, str]:
    """What an order says of itself before its first list or object, whatever follows.

    For a body that is too long to be read: most backends name order and merchant first.
    """
    named: dict[str, str] = {}
    before = re.match(rb"\s*\[\s*\[\s*\{", body)
    at = before.end() if before else len(body)
    while len(named) < len(_NAMES) and (member := _MEMBER.match(body, at, at + _MEMBER_SIZE)):
        name, value = member[1][1:-1].decode(errors="replace"), member[2]
        if name in _NAMES and value is not None:
            with suppress(ValueError):  # with an escape that is none, it is no order's
                named[name] = from_json(value)
        at = member.end()
    return named


_NAMES = ("order_id", "merchant_id")


def home_key(routing_key: str | None) -> str:
    """The key of the queue that an order belongs to, canary or not, by the key that it came by."""
    key = undelayed(routing_key or "")
    return key if key == topology.CANARY_KEY else topology.ORDERS_KEY
