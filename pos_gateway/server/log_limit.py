"""Limits log lines that a caller without a token can cause."""

import time
from math import inf

#: Seconds between two lines with one key, and most keys that are counted in that time.
QUIET, KEYS = 1.0, 1000


class LogLimit:
    """Lets a line of each key through once a second, so that no flood of one hides another's."""

    def __init__(self) -> None:
        #: By key: when its last line was, and how many were left out since. The oldest line first.
        self._lines: dict[str, tuple[float, int]] = {}

    def lines(self, key: str = "") -> int:
        """How many lines this one stands for; 0: it is left out, and counted with the next."""
        now = time.monotonic()
        last, left_out = self._lines.get(key, (-inf, 0))
        if now - last < QUIET:
            self._lines[key] = last, left_out + 1
            return 0
        if self._lines.pop(key, None) is None and not self._has_room(now):
            return 0
        self._lines[key] = now, 0
        return left_out + 1

    def _has_room(self, now: float) -> bool:
        if len(self._lines) < KEYS:
            return True
        oldest = next(iter(self._lines))
        if now - self._lines[oldest][0] < QUIET:
            return False
        del self._lines[oldest]
        return True
