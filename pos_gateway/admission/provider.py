"""What the merchants of one POS vendor have in common: they fall silent together."""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True, eq=False)
class Provider:
    """A vendor is silent while a call to one of its merchants is out for longer than is usual, and
    none of them has answered since that began."""

    silent: bool = False
    _answered_at: float = -inf

    def answered(self, now: float) -> bool:
        """One of its merchants has; whether it was silent until now."""
        was_silent, self.silent = self.silent, False
        self._answered_at = now
        return was_silent

    def is_unusual(self, started: float) -> None:
        """A call of then is out for longer than is usual."""
        self.silent = self.silent or self._answered_at < started
