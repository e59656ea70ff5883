"""What an adapter is. It opens no socket: it is given ``send``, and it keeps no state."""

from enum import StrEnum
from typing import Protocol

from pos_gateway.merchant import Merchant
from pos_gateway.order import Order
from pos_gateway.outcome import Outcome
from pos_gateway.transport.exchange import Send


class Guarantee(StrEnum):
    """What a POS offers against a second create for the same order."""

    KEYED = "keyed"  # it honours an idempotency key: the same key may be sent again
    QUERYABLE = "queryable"  # it can be asked by our order id
    BLIND = "blind"  # neither: after an exchange in doubt a person must look


class Adapter(Protocol):
    """One POS's way of speaking. Safe to be used by any number of threads at once."""

    name: str
    guarantee: Guarantee

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Create the order at the POS. Lets TransportError pass."""
        ...

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        """What the POS knows of the order; None is "never heard of it". Lets TransportError pass."""
        ...
