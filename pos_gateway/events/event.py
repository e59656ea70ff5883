"""A status event as recorded with an outcome: dehydrated. See ``hydration.py``."""

from hashlib import sha1, sha256
from uuid import UUID

from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.states import Action, EventRow, Key

_NAMESPACE = UUID("6f2b0c1e-5d38-4f0e-9a52-6a0e3d1b7c44").bytes


def dehydrated(
    key: Key,
    kind: Kind | Lifecycle,
    *,
    reopened: int = 0,
    content: bytes = b"",
    trace: TraceContext | None = None,
) -> EventRow:
    """The event to record with the outcome.

    The id is derived from the content. So an order delivered twice (a connection lost before the
    acknowledgement) yields the same event twice, and a consumer deduplicating by id sees a
    single event. A reopened order yields a new event.

    Args:
        key: the order, or the cancel request.
        kind: the outcome, or the stage of an accepted order.
        reopened: number of reopenings.
        content: the message's body, if the message has no row: two failing messages under the same
            order id are two events, and a message delivered twice is a single event.
        trace: the trace that the event continues.
    """
    said = str(kind)  # once: an enumeration's ``value`` is two calls
    name = [key.merchant_id, key.order_id, f"order.{said}"]
    if key.action is not Action.SUBMIT:
        name.append(key.action)
    if reopened:
        name.append(str(reopened))
    if content:
        name.append(sha256(content).hexdigest())
    return EventRow(_uuid5("\n".join(name)), said, trace)


def _uuid5(name: str) -> str:
    """A version 5 UUID (RFC 9562), for every order: ``uuid.uuid5`` takes three times the CPU."""
    digits = sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) & 3]
    parts = (digits[:8], digits[8:12], f"5{digits[13:16]}", variant + digits[17:20], digits[20:32])
    return "-".join(parts)
