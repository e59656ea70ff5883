"""A status event: dehydrated for the ledger, whole for the exchange ``order-events``."""

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.ledger.states import Action, EventRow, Key
from pos_gateway.outcome import Kind, Outcome

_NAMESPACE = uuid.UUID("6f2b0c1e-5d38-4f0e-9a52-6a0e3d1b7c44")


def dehydrated(key: Key, kind: Kind, *, reopened: int = 0) -> EventRow:
    """What is written with the outcome.

    The id follows from what the event says, so that an order that is delivered to a worker
    twice (a connection lost before the acknowledgement) ends in the same event twice, and a
    consumer that deduplicates by id sees one. What an operator has reopened ends anew.
    """
    name = [key.merchant_id, key.order_id, f"order.{kind.value}"]
    if key.action is not Action.SUBMIT:
        name.append(key.action)
    if reopened:
        name.append(str(reopened))
    return EventRow(str(uuid.uuid5(_NAMESPACE, "\n".join(name))), kind.value)


def hydrated(
    row: EventRow,
    key: Key,
    outcome: Outcome,
    *,
    at: float,
    attempts: int,
    order_json: bytes | None,
) -> Message:
    """The event as it is published, with the routing key ``order.<what happened>``.

    ``position`` is null until the ordered pipeline assigns it.
    """
    kind = f"order.{row.kind}"
    reason = outcome.reason
    event: dict[str, Any] = {
        "id": row.id,
        "position": None,
        "type": kind,
        "order_id": key.order_id,
        "merchant_id": key.merchant_id,
        "occurred_at": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        "external_id": outcome.external_id,
        "reason": {"code": reason.code, "message": reason.message} if reason else None,
        "attempts": attempts,
    }
    head = json.dumps(event, separators=(",", ":")).encode()
    return Message(
        exchange=topology.events_exchange.name,
        routing_key=kind,
        body=head[:-1] + b',"order":' + (order_json or b"null") + b"}",
        message_id=row.id,
    )
