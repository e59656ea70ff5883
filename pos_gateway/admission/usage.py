"""Slot-time: how many slots somebody holds, and how many on average of late."""

from dataclasses import dataclass
from math import exp

#: Seconds of the average: what was held longer ago than this counts for a third, and less and less.
WINDOW = 5.0


@dataclass(slots=True, eq=False)
class Usage:
    """Slots held now, and their exponential average. Reckoned when it is asked for."""

    held: int = 0
    _average: float = 0.0
    _reckoned: float = 0.0

    def average(self, now: float) -> float:
        """Slots held over the last ``WINDOW`` seconds or so."""
        passed = now - self._reckoned
        if passed > 0:
            self._average = self.held + (self._average - self.held) * exp(-passed / WINDOW)
            self._reckoned = now
        return self._average

    def add(self, slots: int, now: float) -> None:
        """So many more are held from now, or fewer."""
        self.average(now)
        self.held += slots
