"""What the fleet needs of admission."""

from typing import Protocol


class Demand(Protocol):
    """What a merchant's orders want in this pod."""

    @property
    def limit(self) -> int:
        """What is agreed with the merchant; 0 while it is paused or not known yet."""
        ...

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        ...

    @property
    def waiting(self) -> int:
        """Orders that wait here."""
        ...


class Admitting(Protocol):
    """Admission, as the coordinator calls it. None of this may block, or call the fleet back."""

    def demand(self, merchant_id: str) -> Demand:
        """What is wanted now. Of a merchant that is not known here: nothing."""
        ...

    def allot(self, merchant_id: str, permits: int | None) -> None:
        """So many calls at once from now on; None: as many as are agreed with the merchant.

        Calls under way go on. A merchant that was never allotted anything has 0 permits.
        """
        ...

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        """Another pod found the merchant down; its breaker stays open for so many seconds."""
        ...

    def close_breaker(self, merchant_id: str) -> None:
        """Another pod found the merchant well again."""
        ...
