"""The adapter protocol. An adapter opens no socket (it calls ``send``) and keeps no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Send


class Guarantee(StrEnum):
    """The protection that a POS offers against creating an order twice."""

    KEYED = "keyed"  # it honours an idempotency key: the same key may be sent again
    QUERYABLE = "queryable"  # it offers a look-up by our order id
    BLIND = "blind"  # neither: an exchange in doubt needs a person


@dataclass(frozen=True, slots=True)
class Limits:
    """What the vendor's public documentation allows; None where it states nothing."""

    #: Seconds that a reply may take.
    longest_reply: float | None = None
    #: Concurrent requests with one merchant's credentials.
    concurrency: int | None = None
    #: Requests a second with one merchant's credentials, in a longer time (and its seconds), and requests that
    #: an order usually takes.
    per_second: float | None = None
    sustained: tuple[int, float] | None = None
    requests: int = 1
    #: Those limits are a location's own, also where its credentials are for other locations, too.
    per_location: bool = False
    #: Requests a second, and concurrent requests, with the credentials of all merchants of one app.
    app_per_second: float | None = None
    app_concurrency: int | None = None
    #: Maximum bytes of a request; None: no limit beyond the order's own. Not documented by vendors.
    request_bytes: int | None = None
    #: Statuses beside 429 that are documented as "not processed": the order is retried.
    unprocessed: frozenset[int] = frozenset()
    #: Maximum bytes of a callback.
    callback_bytes: int = 64 * 1024

    def at_once(self, wanted: int) -> int:
        """``wanted``, or the vendor's limit on a merchant's in-flight orders if that is lower."""
        return wanted if self.concurrency is None else min(wanted, self.concurrency)


@runtime_checkable
class Adapter(Protocol):
    """One POS's API. Safe to be used by any number of threads at once.

    An adapter takes orders by ``steps`` (``steps.py``), or in one: see ``TakesOrders``. The same order always
    makes the same requests of the same merchant, byte for byte.
    """

    name: str
    guarantee: Guarantee
    limits: Limits

    def check(self, merchant: Merchant) -> list[FieldError]:
        """Errors in the merchant's record for this POS. Called when a record is imported.

        Also called for catalog imports: errors in ``merchant.catalog`` are under ``pos_id``.
        """
        ...


@runtime_checkable
class TakesOrders(Protocol):
    """What an adapter has besides, if its POS takes an order in one call."""

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Create the order at the POS. Lets TransportError pass."""
        ...

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Cancel the order at the POS: CANCELLED, or REJECTED if the POS refuses.

        REJECTED with ``unknown_order`` if the POS does not know it. Lets TransportError pass.
        """
        ...

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        """The order's state at the POS; None: it does not know it. Lets TransportError pass."""
        ...


@runtime_checkable
class DescribesLocation(Protocol):
    """What an adapter has besides, if its POS describes a merchant's location: for ``merchants check``."""

    def location(self, merchant: Merchant, send: Send) -> Sequence[str]:
        """What the POS says of the location, in words. Two requests at most, which change nothing.

        Raises:
            LocationProblem: every order would fail (``location.py``).
        """
        ...


@dataclass(frozen=True, slots=True)
class CallbackRequest:
    """A POST of a POS's, as it came."""

    #: As the POS was given it.
    url: str
    #: Names in lower case; a header that came twice is empty.
    headers: Mapping[str, str]
    body: bytes
    #: Unix time.
    now: float


@runtime_checkable
class ReadsCallbacks(Protocol):
    """What an adapter has besides, if its POS calls back. Pure.

    If its POS sends a code when a URL is entered there, ``verification_code(body)`` is that code, or
    None: anyone may send one, it is logged for the operator, and answered with 200.
    """

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """What the POS says; None: it is not signed with the merchant's key.

        Empty: the gateway has no use for it. Nothing but the signature is looked at before that is
        verified, in constant time, over the bytes that came (``signatures.py``).

        Raises:
            InvalidCallback: it is signed, and breaks the contract.
        """
        ...
