"""What can go wrong, as types. Data rides in attributes, the message is for a person.

PosGatewayError
├── InvalidOrder            the order breaks the contract; names the field
├── InvalidMerchant         a merchant's record breaks the contract; names the field
├── InvalidCatalogEntry     a line of a merchant's catalog breaks the contract; names the field
├── InvalidSettings         the environment breaks the contract; names the variable
├── InvalidSplit            the canary's share or its pilots are wrong; names the field
├── InvalidBundle           a message with parked orders is not what it says; nothing of it is used
├── UnknownMerchant         no merchant has this id
├── PendingMigration        the database's schema is older than the one this version needs
├── SchemaTooNew            the database's schema is a later version's, and has lost what this one needs
├── Unfinished              an attempt failed after its claim, by whatever it was raised from; has the claims
├── OrderChanged            something happened to an order since it was looked at; look again
├── LedgerUnavailable       the database did not answer; what was being written may be, or not
│   └── LedgerUnreachable   there was no connection to it: nothing was written
├── EventIdTaken            an event's id is another event's already; nothing was written
├── NotLoaded               a value that an order needs could not be had in time
├── SharedUnavailable       Redis did not answer, or answered nonsense: each process loads by itself
├── MetricsUnavailable      a page of metrics that was asked for cannot be read
├── FleetUnavailable        Redis did not answer, or answered nonsense: each pod is by itself
└── PublishError            the broker did not take a message
    ├── BrokerUnavailable   not reachable, or no confirm came in time: it may or may not be stored
    │   └── BatchCutShort   the same in the middle of a batch; has how many are stored for certain
    ├── PublishRefused      the broker said no (nack), or its topology contradicts ours
    └── Unroutable          the broker took it, but no queue wanted it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import Repr
from typing import Any


class PosGatewayError(Exception):
    """Anything this package raises on purpose."""


#: Stands for a value that was not there at all (``None`` may be one).
ABSENT: Any = object()


#: Characters of a value that are shown.
_SHOWN = 80
#: It may be a list of a hundred thousand: what is not shown is not looked at.
_short = Repr()
_short.maxlevel, _short.maxother = 3, _SHOWN
_short.maxlist = _short.maxtuple = _short.maxdict = 20


@dataclass(frozen=True, slots=True)
class FieldError:
    """One field that is wrong: where, what is wrong, and what stood there."""

    field: str
    problem: str
    value: Any = ABSENT

    def __str__(self) -> str:
        if self.value is ABSENT:
            return f"{self.field}: {self.problem}"
        is_text = isinstance(self.value, str)
        shown = repr(self.value[:_SHOWN]) if is_text else _short.repr(self.value)
        if len(shown) > _SHOWN:
            shown = shown[: _SHOWN - 3] + "..."
        return f"{self.field}: {self.problem} (got {shown})"


class InvalidRecord(PosGatewayError):
    """A record from outside breaks the contract. ``errors`` lists every field that does."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))

    @property
    def field(self) -> str:
        """The first field that is wrong."""
        return self.errors[0].field


class InvalidOrder(InvalidRecord):
    """Raised when an order breaks the contract."""


class InvalidMerchant(InvalidRecord):
    """Raised when a merchant's record breaks the contract."""


class InvalidCatalogEntry(InvalidRecord):
    """Raised when an entry of a merchant's catalog breaks the contract."""


class InvalidSettings(InvalidRecord):
    """Raised when the environment breaks the contract."""


class InvalidSplit(InvalidRecord):
    """Raised when what is said of the canary's share breaks the contract."""


class UnknownMerchant(PosGatewayError):
    """Raised when no merchant has this id."""

    def __init__(self, merchant_id: str) -> None:
        self.merchant_id = merchant_id
        super().__init__(f"merchant_id: no merchant has the id {merchant_id!r}")


class InvalidBundle(PosGatewayError):
    """Raised when a message with parked orders is not what it should be."""


class PendingMigration(PosGatewayError):
    """Raised when the database's schema is older than the one this version needs."""


class SchemaTooNew(PosGatewayError):
    """Raised when a later version's migration has taken away what this one needs."""


class LedgerUnavailable(PosGatewayError):
    """Raised when the database does not answer: what was to be written may be written, or not."""


class LedgerUnreachable(LedgerUnavailable):
    """Raised when there is no connection to the database: nothing was written."""


class EventIdTaken(PosGatewayError):
    """Raised when an event has the id of another one, and nothing is written."""


class Unfinished(PosGatewayError):
    """Raised from any exception that ends an attempt after its claim.

    ``claims``: what the attempt had claimed; each must be finished, or given up.
    """

    def __init__(self, claims: Sequence[Any]) -> None:
        self.claims = tuple(claims)
        super().__init__("an attempt was not finished")


class OrderChanged(PosGatewayError):
    """Raised when something happened to an order since it was looked at, and nothing is written."""


class NotLoaded(PosGatewayError):
    """Raised when a value that an order needs could not be had in time: it is tried again."""


class SharedUnavailable(PosGatewayError):
    """Raised when Redis, where processes find each other's values, is not to be had."""


class FleetUnavailable(PosGatewayError):
    """Raised when Redis, where pods share limits, does not answer or answers nonsense."""


class MetricsUnavailable(PosGatewayError):
    """Raised when a page of metrics cannot be read."""


class PublishError(PosGatewayError):
    """Raised when the broker did not take a message."""


class BrokerUnavailable(PublishError):
    """Raised when the broker is not reachable, or no confirm came in time."""


class BatchCutShort(BrokerUnavailable):
    """Raised when the broker went away in the middle of a batch.

    ``confirmed``: how many from the front are stored; of the others each may be, or not.
    """

    def __init__(self, confirmed: int, why: str) -> None:
        self.confirmed = confirmed
        super().__init__(why)


class PublishRefused(PublishError):
    """Raised when the broker refuses a message, or its topology contradicts ours."""


class Unroutable(PublishError):
    """Raised when the broker took a message that no queue wanted."""
