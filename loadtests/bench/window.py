"""The part of a run that counts: start-up and the last stragglers do not."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

#: The shares of the orders between whose arrivals the window lies.
FIRST, LAST = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of wall-clock time and the orders that arrived in it."""

    start: float
    end: float
    orders: int
    #: The last mark was reached; else time was up before.
    complete: bool

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    @property
    def rate(self) -> float:
        """Orders a second."""
        return self.orders / self.seconds


def window(arrivals: Sequence[float], planned: int, time_up: float) -> Window | None:
    """From the order that makes up the first tenth to the one that makes up nine tenths.

    The tenths are of what was planned, not of what came: of a worker that sends 1,000 orders in
    a second and then none for 20, the 20 seconds are what is to be measured. If the last mark
    is not reached the window ends when time is up; if not even the first one is, it begins with
    the first order. None if there is nothing to measure.

    Args:
        arrivals: when each order first reached its merchant, in any order.
        planned: how many were to arrive.
        time_up: when the run was ended.
    """
    times = sorted(arrivals)
    if len(times) < 2:
        return None
    first, last = ceil(planned * FIRST) - 1, ceil(planned * LAST) - 1
    begin = first if 0 <= first < len(times) else 0
    complete = begin < last < len(times)
    end = times[last] if complete else time_up
    orders = last - begin if complete else bisect_right(times, end) - 1 - begin
    if end <= times[begin]:
        return None
    return Window(times[begin], end, orders, complete)
