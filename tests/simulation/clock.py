"""A machine's clocks: no two agree on the time of day, and some stand still with their machine."""

from datetime import datetime, timedelta
from typing import Protocol

#: Seconds by which machines' times of day differ from everybody else's at most.
SKEW = 600.0


class Truth(Protocol):
    """What time it is."""

    time: float

    def now(self) -> datetime: ...


class MachineClock:
    """A Clock as the product wants one.

    Args:
        truth: the time that passes for everybody.
        zero: what this machine's clock of durations showed at the beginning.
        skew: seconds by which its time of day is ahead.
        stands_still: it has no clock that goes on while it is suspended.
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
        """Somebody sets its time of day."""
        self._skew += seconds

    def suspend(self, seconds: float) -> None:
        """The machine stands still for so long, and nobody looks at its clocks meanwhile."""
        if self.stands_still:
            self._zero -= seconds
