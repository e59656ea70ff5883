"""The state that the merchants of one POS vendor share: they fall silent together."""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True, eq=False)
class Provider:
    """A vendor is silent while a call to one of its merchants is an outlier, and none of them has
    answered since that began."""

    silent: bool = False
    _silent_since: float = 0.0
    _answered_at: float = -inf

    def answered(self, now: float) -> float | None:
        """One of its merchants has answered; returns for how long the vendor was silent, if it was."""
        was_silent, self.silent = self.silent, False
        self._answered_at = now
        return now - self._silent_since if was_silent else None

    def is_unusual(self, started: float, now: float) -> None:
        """A call that started then is an outlier."""
        if not self.silent and self._answered_at < started:
            self.silent, self._silent_since = True, now
