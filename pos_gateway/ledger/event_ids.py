"""Taken event ids: an error, without the loss of an event."""

from dataclasses import replace
from uuid import UUID, uuid5

import structlog

from pos_gateway.ledger.states import EventRow, Key
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)


def with_another_id(key: Key, event: EventRow, epoch: int) -> EventRow:
    """The event under a new id, derived from the first id and the epoch of the write."""
    metrics.event_ids_taken.inc()
    log.error(
        "event.id_taken",
        merchant_id=key.merchant_id,
        order_id=key.order_id,
        type=event.kind,
        event_id=event.id,
    )
    return renamed(event, epoch)


def renamed(event: EventRow, epoch: int) -> EventRow:
    """The event under a new id, without an error."""
    return replace(event, id=str(uuid5(UUID(event.id), str(epoch))))
