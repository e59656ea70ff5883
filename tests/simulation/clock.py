"""A machine's clocks: wall clocks differ, and some monotonic clocks stand still while suspended."""

from datetime import datetime, timedelta
from typing import Protocol

#: Seconds by which a machine's wall clock differs from true time at most.
SKEW = 600.0


class Truth(Protocol):
    """The true time."""

    time: float

    def now(self) -> datetime: ...


class MachineClock:
    """A Clock for the product.

    Args:
        truth: the true time.
        zero: what this machine's monotonic clock showed at the beginning.
        skew: seconds by which its wall clock is ahead.
        stands_still: its monotonic clock stands still while it is suspended.
    """

    def __init__(self, truth: Truth, *, zero: float, skew: float, stands_still: bool) -> None:
        self._truth = truth
        self._zero, self._skew = zero, skew
        self.stands_still = stands_still

    def monotonic(self) -> float:
        return self._truth.time + self._zero

    def now(self) -> datetime:
        return self._truth.now() + timedelta(seconds=self._skew)

    def step(self, seconds: float) -> None:
        """Step the wall clock."""
        self._skew += seconds

    def suspend(self, seconds: float) -> None:
        """Suspend the machine for this long; its clocks are not read meanwhile."""
        if self.stands_still:
            self._zero -= seconds
