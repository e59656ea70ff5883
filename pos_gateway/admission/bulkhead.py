"""One merchant's bulkhead: how many of its orders may be in flight.

Never more than its concurrency limit, and fewer while it is overloaded: halved on a timeout, a 429
or a 503, raised by one for every full window of answers, as TCP does it (additive increase,
multiplicative decrease).
"""

from dataclasses import dataclass
from math import inf

#: The allotment of a merchant before the fleet's first answer.
UNASKED = -1


@dataclass(slots=True, eq=False)
class Bulkhead:
    """A merchant's bulkhead. ``concurrency_limit`` is its concurrency limit; 0 starts none of its orders."""

    concurrency_limit: int
    in_flight: int = 0
    #: The limit by additive increase, multiplicative decrease; inf: no less than the ceiling.
    _adapted: float = inf
    #: This process's part of the ceiling, by the fleet; None: the fleet sets no limit.
    allotment: int | None = None
    #: Answers in time since the limit last changed, and whether it was reached since.
    _answers: int = 0
    _reached: bool = False
    #: When it was halved last: calls started before say nothing new.
    _halved: float = -inf

    @property
    def limit(self) -> int:
        """How many may be in flight in this process."""
        here, allotment = self.here, self.allotment
        return here if allotment is None or here < allotment else allotment

    @property
    def here(self) -> int:
        """The limit without the fleet's."""
        concurrency_limit, adapted = self.concurrency_limit, self._adapted
        return concurrency_limit if concurrency_limit <= adapted else int(adapted)

    @property
    def part(self) -> float:
        """The fraction of the concurrency limit that the fleet allots to this worker."""
        if self.allotment is None or not self.concurrency_limit:
            return 1.0
        return min(1.0, max(0, self.allotment) / self.concurrency_limit)

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    @property
    def is_full(self) -> bool:
        """Whether it is at a limit; waiting for the fleet's first answer does not count."""
        counts = self.allotment is not None and self.allotment != UNASKED
        return self.in_flight >= (self.limit if counts else self.here)

    @property
    def is_short(self) -> bool:
        """Whether only the allotment is full."""
        return self.allotment is not None and self.allotment <= self.in_flight < self.here

    def enter(self) -> None:
        """An order has started."""
        self.in_flight += 1
        self._reached = self._reached or self.in_flight >= self.here

    def leave(self) -> None:
        """An order has finished."""
        self.in_flight -= 1

    def answered(self) -> None:
        """The merchant answered in time."""
        self._answers += 1
        if self._reached and self._answers >= self.here:
            self._adapted = self.here + 1 if self.here < self.concurrency_limit else inf
            self._answers, self._reached = 0, False

    def failed_or_late(self) -> None:
        """It answered late, or failed: the window of answers begins anew."""
        self._answers = 0

    def overloaded(self, started: float, now: float) -> None:
        """A call started then timed out, or was refused as one too many: halve the limit."""
        self._answers, self._reached = 0, False
        if started >= self._halved and self.concurrency_limit:
            self._adapted = max(1, self.here // 2)
            self._halved = now

    def forget(self) -> None:
        """Forget the adapted limit."""
        self._adapted = inf
