"""One merchant's bulkhead: how many of its orders may be under way at once.

Never more than was agreed with it, and fewer while it shows that this is too much: halved when
it does not answer in time or says so (429, 503), raised by one for every full window of answers,
as TCP does it (additive increase, multiplicative decrease).
"""

from dataclasses import dataclass
from math import inf

#: The allotment of a merchant that the fleet has not been asked about yet.
UNASKED = -1


@dataclass(slots=True, eq=False)
class Bulkhead:
    """A merchant's limit. ``ceiling`` is what was agreed; 0 holds its orders back."""

    ceiling: int
    in_flight: int = 0
    #: What the merchant can take, as far as is known; ``limit`` is never above the ceiling.
    _adapted: float = inf
    #: What the fleet's other workers leave to this one; None: there are none to ask.
    allotment: int | None = None
    #: Answers in time since the limit last changed, and whether it was reached since.
    _answers: int = 0
    _reached: bool = False
    #: When it was halved last: calls that had started before say nothing new.
    _halved: float = -inf

    @property
    def limit(self) -> int:
        """How many may be under way in this process."""
        here, allotment = self.here, self.allotment
        return here if allotment is None or here < allotment else allotment

    @property
    def here(self) -> int:
        """How many might be, if there were no other workers."""
        ceiling, adapted = self.ceiling, self._adapted
        return ceiling if ceiling <= adapted else int(adapted)

    @property
    def part(self) -> float:
        """The part of what was agreed that the fleet leaves to this worker."""
        if self.allotment is None or not self.ceiling:
            return 1.0
        return min(1.0, max(0, self.allotment) / self.ceiling)

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    @property
    def is_full(self) -> bool:
        """It is at a limit. One that only waits for the fleet's first word has no room either."""
        counts = self.allotment is not None and self.allotment != UNASKED
        return self.in_flight >= (self.limit if counts else self.here)

    @property
    def is_short(self) -> bool:
        """It is full for want of an allotment only."""
        return self.allotment is not None and self.allotment <= self.in_flight < self.here

    def enter(self) -> None:
        """An order has started."""
        self.in_flight += 1
        self._reached = self._reached or self.in_flight >= self.here

    def leave(self) -> None:
        """It is done."""
        self.in_flight -= 1

    def answered(self) -> None:
        """The merchant answered as it does when it is well."""
        self._answers += 1
        if self._reached and self._answers >= self.here:
            self._adapted = self.here + 1 if self.here < self.ceiling else inf
            self._answers, self._reached = 0, False

    def hesitated(self) -> None:
        """It answered, but late: the window of answers begins anew."""
        self._answers = 0

    def overloaded(self, started: float, now: float) -> None:
        """It did not answer in time, or said that this is too much, to a call of then."""
        self._answers, self._reached = 0, False
        if started >= self._halved and self.ceiling:
            self._adapted = max(1, self.here // 2)
            self._halved = now

    def forget(self) -> None:
        """What it could take lately says nothing any more."""
        self._adapted = inf
