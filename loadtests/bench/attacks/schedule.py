"""When orders come at a given rate, whatever the worker does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.load.histogram import percentile

#: Seconds by which one order in a hundred may come late; a producer that is worse fell behind.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Schedule:
    """A steady rate, whatever becomes of the orders."""

    #: Orders a second.
    rate: float
    seconds: float

    @property
    def orders(self) -> int:
        """How many there are."""
        return math.floor(self.rate * self.seconds + 1e-9)

    def due(self, number: int) -> float:
        """Seconds from the beginning to the order of that number; the first is number 0."""
        return number / self.rate


def lateness(schedule: Schedule, began: float, published: Sequence[float]) -> float:
    """Seconds by which the latest hundredth of the orders came late, or more."""
    late = sorted(
        max(0.0, moment - began - schedule.due(number)) for number, moment in enumerate(published)
    )
    return percentile(late, 0.99) if late else 0.0
