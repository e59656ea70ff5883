"""How much later than their profiles say merchants replied: what the simulation itself adds."""

from bisect import bisect_left
from itertools import accumulate

#: Seconds. A reply that came later than the last is among ``worst``.
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Lateness:
    """Counts of replies by how late they were."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._worst = 0.0

    def note(self, seconds: float) -> None:
        """One reply, and by how much it was late."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._worst = max(self._worst, seconds)

    def as_json(self) -> dict[str, float]:
        """Seconds: what 99 in 100 did not exceed, rounded up to the next bound, and the worst."""
        replies = sum(self._counts)
        place = bisect_left(list(accumulate(self._counts)), 0.99 * replies)
        p99 = min((*_BOUNDS, self._worst)[place], self._worst)
        return {"replies": replies, "p99": p99, "worst": self._worst}
