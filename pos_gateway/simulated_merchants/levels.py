"""What there was in each tenth of a second of the last hour, by group of merchants."""

import time
from collections import OrderedDict

#: Buckets of a second.
BUCKETS = 10
#: Buckets that are kept: those of an hour in which something happens all the time.
_KEPT = 3600 * BUCKETS


class Past:
    """A figure by bucket; one in which nothing happened is left out."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: OrderedDict[int, int] = OrderedDict()

    def since(self, moment: float) -> list[tuple[float, int]]:
        """Each bucket's wall-clock time and its figure."""
        first = int(moment * BUCKETS)
        return [
            (bucket / BUCKETS, figure)
            for bucket, figure in self._buckets.items()
            if bucket >= first
        ]

    def _note(self, moment: float, figure: int) -> None:
        self._buckets[int(moment * BUCKETS)] = figure
        if len(self._buckets) > _KEPT:
            self._buckets.popitem(last=False)


class Timeline(Past):
    """How many orders were made in each bucket."""

    __slots__ = ()

    def change(self, moment: float, by: int) -> None:
        """Add to the level at that moment."""
        self._note(moment, self._buckets.get(int(moment * BUCKETS), 0) + by)


class Level(Past):
    """The requests in flight at the end of each bucket: the slots that a group of merchants holds."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        super().__init__()
        self.now = 0

    def change(self, by: int) -> None:
        """Count calls that have begun, or (negative) ended."""
        self.now += by
        self._note(time.time(), self.now)
