"""One merchant's rate limit: how many of its orders may start in a second."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Rate:
    """At most ``per_second`` starts in any second (under one a second: one in 1/``per_second`` s).

    ``is_spent`` is as of the last ``reckon``.
    """

    per_second: float
    #: No more may start before ``free_at``.
    is_spent: bool = False
    free_at: float = 0.0
    _starts: deque[float] = field(default_factory=deque)

    @property
    def _most(self) -> int:
        return max(1, int(self.per_second))

    @property
    def _span(self) -> float:
        return max(1.0, 1 / self.per_second)

    def here(self, part: float) -> int:
        """Starts in the span, in a process that has this part of the limit."""
        return max(1, int(self._most * part))

    def interval(self, part: float) -> float:
        """Seconds between two starts, if they are spread evenly."""
        return self._span / self.here(part)

    def started(self, now: float) -> None:
        """An order has started."""
        self._starts.append(now)

    def reckon(self, now: float, part: float) -> bool:
        """Update whether one more may start; returns whether ``free_at`` has changed."""
        while self._starts and self._starts[0] + self._span <= now:
            self._starts.popleft()
        here = self.here(part)
        self.is_spent = len(self._starts) >= here
        before = self.free_at
        if self.is_spent:
            self.free_at = self._starts[-here] + self._span
        return self.free_at != before

    def is_idle(self, now: float) -> bool:
        """Whether no start counts any more."""
        return not self._starts or self._starts[-1] + self._span <= now
