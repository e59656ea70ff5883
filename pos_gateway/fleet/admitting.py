"""The fleet's interface to admission."""

from typing import Protocol


class PermitDemand(Protocol):
    """A merchant's demand in this pod."""

    @property
    def limit(self) -> int:
        """Its concurrency limit; 0 while it is paused or not known yet."""
        ...

    @property
    def in_flight(self) -> int:
        """Calls in flight."""
        ...

    @property
    def waiting(self) -> int:
        """Waiting orders."""
        ...


class Admitting(Protocol):
    """Admission, as the coordinator calls it. It may not block; it may call back ``short``."""

    def demand(self, merchant_id: str) -> PermitDemand:
        """The present demand; none of a merchant that is unknown here."""
        ...

    def allot(self, merchant_id: str, permits: int | None) -> None:
        """Set the merchant's allotment; None: its own concurrency limit.

        Calls in flight go on. A merchant that was never allotted anything has 0 permits.
        """
        ...

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        """Another pod's breaker for the merchant opened; it stays open for ``seconds``."""
        ...

    def close_breaker(self, merchant_id: str) -> None:
        """Another pod's breaker for the merchant closed."""
        ...
