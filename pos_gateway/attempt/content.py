"""The content of a message: an order, a cancel request, or neither."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.json_text import is_finite
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Reason
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.states import Action

#: Bytes that distinguish messages too long to be read.
_IDENTIFYING_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class UnreadMessage:
    """The facts of a message without a valid order or cancel request."""

    #: The reason, for the dead letter and for the event.
    reason: Reason
    #: The message, to be dead-lettered or delivered again.
    original: Message
    #: The order's ids, as far as the message is known to name an order.
    order_id: str | None = None
    merchant_id: str | None = None
    #: The order's text, for the event.
    text: bytes = b""
    #: The part that distinguishes the message from a second unreadable message with the same ids.
    distinctive: bytes = b""


def read(message: RawMessage, action: Action) -> Order | CancelRequest | UnreadMessage:
    """The order in a message, or the cancel request; or the message, if neither is valid.

    Raises:
        ValueError: the body is not ``[[order], {}, {}]``.
    """
    record, source = wire.read(message.body)
    try:
        if action is Action.SUBMIT:
            return Order.parse(record, source)
        return CancelRequest.parse(record, source)
    except InvalidOrder as error:
        why = "; ".join(f"{each.field}: {each.problem}" for each in error.errors)
    if action is Action.CANCEL:
        original = message.again(wire.CANCEL_ORDER, "unknown")
        return UnreadMessage(Reason.of("invalid_cancel", why), original)
    order_id, merchant_id = _ids(record if isinstance(record, dict) else {})
    original = message.again(wire.SUBMIT_ORDER, order_id or "unknown")
    text = source if source is not None and is_finite(source) else _written(record)
    reason = Reason.of("invalid_order", why)
    return UnreadMessage(reason, original, order_id, merchant_id, text, text)


def unparsed(original: Message, named: Mapping[str, str], reason: Reason) -> UnreadMessage:
    """A message that was not parsed.

    Args:
        original: the message.
        named: order_id and merchant_id, as far as known.
        reason: why the message was not parsed.
    """
    distinctive = b"%d %b" % (len(original.body), original.body[:_IDENTIFYING_BYTES])
    return UnreadMessage(reason, original, *_ids(named), _written(named), distinctive)


def _ids(named: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """order_id and merchant_id, each if valid."""
    return identifier(named.get("order_id")), identifier(named.get("merchant_id"))


def _written(record: Any) -> bytes:
    """A record as JSON. Numbers unknown to JSON (NaN, 1e999) become text."""
    return to_json(record, inf_nan_mode="strings", fallback=str)
