"""What can go wrong, as types. Data is in attributes, the message is for a person.

PosGatewayError
├── InvalidOrder            the order breaks the contract; names the field
├── InvalidMerchant         a merchant's record breaks the contract; names the field
├── InvalidCatalogEntry     a line of a merchant's catalog breaks the contract; names the field
├── InvalidCallback         what a POS says by itself breaks the contract; names the field
├── InvalidFacts            a step's facts break the contract; names the fact
├── InvalidEvent            a status event breaks the contract; names the field
├── InvalidSettings         the environment breaks the contract; names the variable
├── InvalidSplit            the canary's share or its pilots are wrong; names the field
├── Unauthorized            the HTTP server does not take the token, or not for this
├── OrderDiffers            the order's id is taken by an order with other content
├── NotInTransaction        the backend's connection would commit an order by itself
├── InvalidBundle           a message with parked orders is invalid; none of it is used
├── UnknownMerchant         no merchant has this id
├── UnknownToken            no token has this name
├── PendingMigration        the database's schema is older than the one this version needs
├── SchemaTooNew            the database's schema is a later version's, without what this one needs
├── AdminError              an operator's request is refused, or cannot be completed
├── OrderChanged            an order has changed since it was read; read it again
├── MerchantChanged         a merchant's record was edited since it was read; read it again
├── LedgerUnavailable       the database did not answer; the write may or may not have succeeded
│   ├── LedgerUnreachable   no connection to the database: nothing was written
│   └── LedgerLocked        another session has locked some of the rows
├── EventIdTaken            another event has this event's id; nothing was written
├── NotLoaded               a value that an order needs was not loaded in time
├── SharedUnavailable       Redis did not answer, or answered nonsense: each process loads by itself
├── MetricsUnavailable      a page of metrics cannot be read
├── FleetUnavailable        Redis did not answer, or answered nonsense: each pod is by itself
└── PublishError            the broker did not store a message
    ├── BrokerUnavailable   unreachable, or no confirm came in time: it may or may not be stored
    │   └── BatchCutShort   the same in the middle of a batch; has how many are stored for certain
    ├── PublishRefused      the broker refused it (nack), or its topology contradicts ours
    │   └── MessageTooLarge longer than the broker takes, whenever it comes
    └── Unroutable          no queue takes it
"""

from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)


class PosGatewayError(Exception):
    """Anything this package raises on purpose."""


def copy_of(error: E) -> E:
    """Copy a kept or shared error before raising: errors collect every raise's frames and objects."""
    copy: E = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


#: Marks an absent value (``None`` may be a value).
ABSENT: Any = object()


#: Maximum characters of a value that are shown.
_SHOWN = 80
#: A value may be a list of a hundred thousand: hidden parts are not formatted.
_short = Repr()
_short.maxlevel, _short.maxother = 3, _SHOWN
_short.maxlist = _short.maxtuple = _short.maxdict = 20


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its name, the problem, and its value."""

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
    """An external record breaks the contract. ``errors`` lists every wrong field."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))

    @property
    def field(self) -> str:
        """The first wrong field."""
        return self.errors[0].field


class InvalidOrder(InvalidRecord):
    """Raised when an order breaks the contract."""


class InvalidMerchant(InvalidRecord):
    """Raised when a merchant's record breaks the contract."""


class InvalidCatalogEntry(InvalidRecord):
    """Raised when an entry of a merchant's catalog breaks the contract."""


class InvalidCallback(InvalidRecord):
    """Raised when a signed callback breaks the contract."""


class InvalidFacts(InvalidRecord):
    """Raised when the facts of a step at the POS break the contract."""


class InvalidEvent(InvalidRecord):
    """Raised when a status event breaks the contract."""


class InvalidSettings(InvalidRecord):
    """Raised when the environment breaks the contract."""


class InvalidSplit(InvalidRecord):
    """Raised when the canary split breaks the contract."""


class Unauthorized(PosGatewayError):
    """Raised when the HTTP server does not take a token, or not for this."""


class OrderDiffers(PosGatewayError):
    """Raised when an order's id is taken by an order with other content."""


class NotInTransaction(PosGatewayError):
    """Raised when an order would be committed without what the backend writes beside it."""


class UnknownMerchant(PosGatewayError):
    """Raised when no merchant has this id."""

    def __init__(self, merchant_id: str) -> None:
        self.merchant_id = merchant_id
        super().__init__(f"merchant_id: no merchant has the id {merchant_id!r}")


class UnknownToken(PosGatewayError):
    """Raised when no token has this name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no token has the name {name!r}")


class InvalidBundle(PosGatewayError):
    """Raised when a message with parked orders is invalid."""


class PendingMigration(PosGatewayError):
    """Raised when the database's schema is older than the one this version needs."""


class SchemaTooNew(PosGatewayError):
    """Raised when a later version's migration has removed what this one needs."""


class LedgerUnavailable(PosGatewayError):
    """Raised when the database does not answer: the write may or may not have succeeded."""


class LedgerUnreachable(LedgerUnavailable):
    """Raised when there is no connection to the database: nothing was written."""


class LedgerLocked(LedgerUnavailable):
    """Raised when another session has locked rows; ``operations`` are the writes of these, if known."""

    def __init__(self, message: str, operations: Sequence[Any] = ()) -> None:
        self.operations = operations
        super().__init__(message)


class EventIdTaken(PosGatewayError):
    """Raised when another event has the event's id; nothing is written."""


class AdminError(PosGatewayError):
    """Raised when an operator's request is refused or incomplete; the message names the remedy.

    ``kind`` is the message without ids and times: refusals for one reason have the same.
    """

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = message if kind is None else kind


class OrderChanged(PosGatewayError):
    """Raised when an order has changed since it was read; nothing is written."""


class MerchantChanged(PosGatewayError):
    """Raised when a merchant's record was edited since it was read; nothing is written."""

    def __init__(self, merchant_id: str) -> None:
        self.merchant_id = merchant_id
        super().__init__(
            f"merchant {merchant_id!r} was edited meanwhile; nothing was written. Look at it again"
        )


class NotLoaded(PosGatewayError):
    """Raised when a value that an order needs was not loaded in time: the order is retried."""


class SharedUnavailable(PosGatewayError):
    """Raised when Redis, where processes share values, is unavailable."""


class FleetUnavailable(PosGatewayError):
    """Raised when Redis, where pods share limits, does not answer or answers nonsense."""


class MetricsUnavailable(PosGatewayError):
    """Raised when a page of metrics cannot be read."""


class PublishError(PosGatewayError):
    """Raised when the broker did not store a message."""


class BrokerUnavailable(PublishError):
    """Raised when the broker is unreachable, or no confirm came in time."""


class BatchCutShort(BrokerUnavailable):
    """Raised when the broker was lost in the middle of a batch.

    ``confirmed``: how many from the front are stored; any of the others may be stored, too.
    """

    def __init__(self, confirmed: int, why: str) -> None:
        self.confirmed = confirmed
        super().__init__(why)


class PublishRefused(PublishError):
    """Raised when the broker refuses a message, or its topology contradicts ours."""


class MessageTooLarge(PublishRefused):
    """Raised when a message is longer than the broker takes."""


class Unroutable(PublishError):
    """Raised when no queue takes a message."""
