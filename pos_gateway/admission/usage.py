"""Slot-time: how many slots a merchant or a class of calls holds, now and on recent average."""

from dataclasses import dataclass
from math import exp

#: Time constant of the average, in seconds: usage this long ago counts for about a third.
WINDOW = 5.0


@dataclass(slots=True, eq=False)
class Usage:
    """Slots held now, and their exponential average. Computed on demand."""

    held: int = 0
    _average: float = 0.0
    _reckoned: float = 0.0

    def average(self, now: float) -> float:
        """Slots held over the last ``WINDOW`` seconds or so."""
        self.add(0, now)
        return self._average

    def add(self, slots: int, now: float) -> None:
        """Add held slots from now; negative to release."""
        passed = now - self._reckoned
        if passed > 0:
            self._average = self.held + (self._average - self.held) * exp(-passed / WINDOW)
            self._reckoned = now
        self.held += slots

    def raise_to(self, slots: float, now: float) -> None:
        """Let the average be at least that many slots."""
        self._average = max(self.average(now), slots)
