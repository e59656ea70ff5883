"""How a bulk run does what it does."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from pos_gateway.administration.bulk.run import RATE
from pos_gateway.domain.errors import AdminError


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """A run's options.

    Args:
        rate: most letters or orders a second.
        seconds: new time for each order, from its own turn on.
        deliver_by: the same until this moment (RFC 3339).
        reason: why the operator wants it, if it was asked.
        even_open: a discard takes letters of orders that have not ended, too.
    """

    rate: float = RATE
    seconds: float | None = None
    deliver_by: str | None = None
    even_open: bool = False
    reason: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The options from their ``record``."""
        return cls(**record)

    @property
    def record(self) -> dict[str, Any]:
        """The options as JSON."""
        return asdict(self)

    def until(self, now: datetime) -> datetime | None:
        """The new deadline of an order whose turn is now; None: it keeps its own.

        Raises:
            AdminError: it is over.
        """
        if self.seconds is not None:
            return now.astimezone(UTC) + timedelta(seconds=self.seconds)
        if self.deliver_by is None:
            return None
        until = datetime.fromisoformat(self.deliver_by)
        if until <= now:
            raise AdminError(f"the run's new deliver_by, {self.deliver_by}, is over; start another")
        return until
