"""A status event as it is written with an outcome: dehydrated. ``hydration.py`` makes it whole."""

import uuid

from pos_gateway.ledger.states import Action, EventRow, Key
from pos_gateway.outcome import Kind

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
