"""What an adapter is. It opens no socket: it is given ``send``, and it keeps no state."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Send


class Guarantee(StrEnum):
    """What a POS offers against a second create for the same order."""

    KEYED = "keyed"  # it honours an idempotency key: the same key may be sent again
    QUERYABLE = "queryable"  # it can be asked by our order id
    BLIND = "blind"  # neither: after an exchange in doubt a person must look


@dataclass(frozen=True, slots=True)
class Limits:
    """What the vendor's public documentation allows; None where it says nothing."""

    #: Seconds that a reply may take.
    longest_reply: float | None = None
    #: Requests at once with one merchant's credentials.
    concurrency: int | None = None
    #: Requests a second with one merchant's credentials, and those that an order takes as a rule.
    per_second: float | None = None
    requests: int = 1
    #: Bytes of a request that are sent; None: an order's own. Not documented, and not to be found out.
    request_bytes: int | None = None
    #: Statuses beside 429 that are documented as "not processed": the order is tried again.
    unprocessed: frozenset[int] = frozenset()

    @property
    def orders_per_second(self) -> float | None:
        """Orders of one merchant that may be sent in a second."""
        return None if self.per_second is None else self.per_second / self.requests

    def at_once(self, wanted: int) -> int:
        """How many of one merchant's orders may be under way, of so many that are wanted."""
        return wanted if self.concurrency is None else min(wanted, self.concurrency)


@runtime_checkable
class Adapter(Protocol):
    """One POS's way of speaking. Safe to be used by any number of threads at once.

    The same order always makes the same requests of the same merchant, byte for byte.
    """

    name: str
    guarantee: Guarantee
    limits: Limits

    def check(self, merchant: Merchant) -> list[FieldError]:
        """What is wrong with the merchant's record for this POS. Asked when it is imported.

        So are entries of its catalog: what is wrong with ``merchant.catalog`` is ``pos_id``'s.
        """
        ...

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Create the order at the POS. Lets TransportError pass."""
        ...

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Have the POS let go of the order: CANCELLED, or REJECTED if it keeps it.

        REJECTED with ``unknown_order`` if it never heard of it. Lets TransportError pass.
        """
        ...

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        """What the POS knows of the order; None is "never heard of it". Lets TransportError pass."""
        ...
