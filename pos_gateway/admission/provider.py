"""The state that the merchants of one POS vendor share: they fall silent together."""

from dataclasses import dataclass
from math import inf


@dataclass(slots=True, eq=False)
class Provider:
    """A vendor is silent while a call to one of its merchants is an outlier, and none of them has
    answered since that began."""

    silent: bool = False
    _answered_at: float = -inf

    def answered(self, now: float) -> bool:
        """One of its merchants has answered; returns whether the vendor was silent until now."""
        was_silent, self.silent = self.silent, False
        self._answered_at = now
        return was_silent

    def is_unusual(self, started: float) -> None:
        """A call that started then is an outlier."""
        self.silent = self.silent or self._answered_at < started
