"""How many requests are in flight, and how many were: the slots that a group of merchants holds."""

import time

#: Buckets of a second; also those of the timeline of orders made.
BUCKETS = 10


class Level:
    """The requests in flight of a group of merchants, with what there were in the past."""

    __slots__ = ("_history", "now")

    def __init__(self) -> None:
        self.now = 0
        self._history: dict[int, int] = {}

    def change(self, by: int) -> None:
        """So many have come in, or (negative) have ended."""
        self.now += by
        self._history[int(time.time() * BUCKETS)] = self.now

    def since(self, moment: float) -> list[tuple[float, int]]:
        """Each bucket's wall-clock time and its last level; one without a change is left out."""
        first = int(moment * BUCKETS)
        return [
            (bucket / BUCKETS, level) for bucket, level in self._history.items() if bucket >= first
        ]
