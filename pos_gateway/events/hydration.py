"""Hydrates a row into the complete event. Never fails: the event names unreadable parts.

An unpublished event would block all later events.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import Reason
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import CannotOpen

#: Maximum bytes of an event. RabbitMQ closes the connection on a message above its limit.
LARGEST = 1024 * 1024
#: Marks an incomplete event. The leader also gets orders with this text.
_UNREAD = (b'"incomplete":', b"(cannot be read: ")

#: Events hydrated before a yield to green threads: two milliseconds. Five hundred take a
#: fiftieth of a second.
YIELD_EVERY = 50
#: Bytes of an order that weigh as much as an event.
_BYTES = 8192


def weight(row: Row) -> float:
    """The event's weight in usual events: an order may be a hundred times the usual length."""
    return 1 + len(row.payload or "") / _BYTES


@dataclass(frozen=True, slots=True)
class Hydration:
    """Hydrates rows. Pure; safe from threads."""

    #: Opens the ledger's sealed payloads.
    payloads: Payloads
    #: Maximum bytes of an event; a larger event is published without its order.
    largest: int = LARGEST

    def message(self, row: Row) -> Message:
        """The message to publish, with the routing key ``order.<kind>``."""
        head = json.dumps({"id": row.event_id, "position": row.position}, separators=(",", ":"))
        body = (row.body and self._helped(row, row.body)) or self._body(row)
        trace = None if row.trace is None else TraceContext.read(row.trace)
        return Message(
            exchange=topology.events_exchange.name,
            routing_key=f"order.{row.kind}",
            body=head[:-1].encode() + b"," + body[1:],
            message_id=row.event_id,
            headers={} if trace is None else trace.headers,
        )

    def sealed(self, row: Row) -> str | None:
        """A helper's text to store: the event without its id and position, sealed.

        None: this process cannot read all of the event. The leader may have a key more.
        """
        body = self._body(row)
        if any(each in body for each in _UNREAD):
            return None
        return self.payloads.seal(row.key, body)

    def _helped(self, row: Row, sealed: str) -> bytes | None:
        """A helper's hydrated body, if readable: this process may lack the key."""
        try:
            body = self.payloads.open(row.key, sealed)
            return body if _an_object(body).get("type") == f"order.{row.kind}" else None
        except (CannotOpen, ValueError):
            return None

    def _body(self, row: Row) -> bytes:
        core = self._core(row)
        try:
            order_json = self._order(row)
        except (CannotOpen, ValueError) as error:
            return _whole({**core, "incomplete": str(error)}, b"null")
        body = _whole(core, order_json)
        if len(body) > self.largest:
            return _whole({**core, "truncated": True}, b"null")
        return body

    def _order(self, row: Row) -> bytes:
        if row.payload is None:
            raise ValueError("the order is not kept")
        try:
            order_json = self.payloads.open(row.key, row.payload)
            _an_object(order_json)
        except CannotOpen as error:
            raise CannotOpen(f"the order is {error}") from None
        except ValueError:
            raise ValueError("the order that was kept is not JSON") from None
        return order_json

    def _core(self, row: Row) -> dict[str, Any]:
        """The event's fields without the order."""
        reason = None
        if row.reason_code is not None:
            sealed = Reason(row.reason_code, row.reason_message or "")
            try:
                opened = self.payloads.open_reason(row.key, sealed)
                reason = Reason.of(opened.code, opened.message)
            except (ValueError, TypeError):
                reason = Reason.of(row.reason_code, "(cannot be read: it was changed)")
        merchant = {"provider": row.provider, "adapter": row.adapter}
        return {
            "type": f"order.{row.kind}",
            "order_id": row.order_id,
            "merchant_id": row.merchant_id,
            "occurred_at": _moment(row.occurred_at),
            "external_id": row.external_id and row.external_id[:256],
            "reason": {"code": reason.code, "message": reason.message} if reason else None,
            "attempts": row.attempts,
            "merchant": None if row.adapter is None else merchant,
            **({} if row.adapted is None else _adapted(row.adapted)),
        }


def _adapted(text: str) -> dict[str, Any]:
    """The event's part with the adapted fields."""
    with suppress(ValueError):  # changed by hand
        found = _an_object(text)
        return {name: found[name] for name in ("adapted", "adapted_more") if name in found}
    return {}


def _whole(core: dict[str, Any], order_json: bytes) -> bytes:
    # The order goes in as text: parsing and dumping would cost more than all else.
    head = json.dumps(core, separators=(",", ":")).encode()
    return head[:-1] + b',"order":' + order_json + b"}"


def _an_object(text: bytes | str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError."""
    found = from_json(text, allow_inf_nan=False)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _moment(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):  # not a representable time
        return None
