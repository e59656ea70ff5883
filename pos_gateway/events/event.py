"""A status event, as it stands on the exchange ``order-events``."""

import json
import uuid
from datetime import datetime
from typing import Any

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.outcome import Outcome

_NAMESPACE = uuid.UUID("6f2b0c1e-5d38-4f0e-9a52-6a0e3d1b7c44")


def status_event(
    outcome: Outcome,
    *,
    order_id: str,
    merchant_id: str,
    order_json: bytes,
    attempts: int,
    occurred_at: datetime,
) -> Message:
    """The event that tells of an outcome, with the routing key ``order.<what happened>``.

    The id follows from what the event says, so that an order that is delivered to a worker
    twice (a connection lost before the acknowledgement) ends in the same event twice, and a
    consumer that deduplicates by id sees one.

    ``position`` is null until the ordered pipeline assigns it.
    """
    kind = f"order.{outcome.kind.value}"
    event_id = str(uuid.uuid5(_NAMESPACE, f"{merchant_id}\n{order_id}\n{kind}"))
    reason = outcome.reason
    event: dict[str, Any] = {
        "id": event_id,
        "position": None,
        "type": kind,
        "order_id": order_id,
        "merchant_id": merchant_id,
        "occurred_at": occurred_at.isoformat(timespec="milliseconds"),
        "external_id": outcome.external_id,
        "reason": {"code": reason.code, "message": reason.message} if reason else None,
        "attempts": attempts,
    }
    head = json.dumps(event, separators=(",", ":")).encode()
    return Message(
        exchange=topology.events_exchange.name,
        routing_key=kind,
        body=head[:-1] + b',"order":' + order_json + b"}",
        message_id=event_id,
    )
