"""The order message as it stands on the wire: a Celery task message, protocol 2, JSON.

``docs/wire-format.md`` is this file in prose. The worker relies on nothing that a backend in
another language could not send: two headers and the body.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message, undelayed

SUBMIT_ORDER = "pos_gateway.submit_order"
CANCEL_ORDER = "pos_gateway.cancel_order"

#: Headers that travel with an order's message: how often it has been put back, and whether it is
#: about an order that the POS may have, to be asked for however late it is.
ATTEMPTS, RESOLVE = HISTORY = "x-attempts", "x-resolve"

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
    return _asking(SUBMIT_ORDER, order_id, order_json, routing_key, headers)


def cancel_message(
    order_id: str,
    request_json: bytes,
    *,
    routing_key: str,
    headers: Mapping[str, Any] = MappingProxyType({}),
) -> Message:
    """The message that asks for an order to be cancelled."""
    return _asking(CANCEL_ORDER, order_id, request_json, routing_key, headers)


def _asking(
    task: str, order_id: str, argument: bytes, routing_key: str, headers: Mapping[str, Any]
) -> Message:
    return Message(
        exchange=topology.orders_exchange.name,
        routing_key=routing_key,
        body=b"[[" + argument + b"],{}," + NO_EMBED + b"]",
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


def order_in(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a task's arguments have for an order: a message's body begins with both."""
    return arguments[0] if arguments else named.get("order")


def home_key(routing_key: str | None) -> str:
    """The key of the queue that an order belongs to, canary or not, by the key that it came by."""
    key = undelayed(routing_key or "")
    return key if key == topology.CANARY_KEY else topology.ORDERS_KEY
