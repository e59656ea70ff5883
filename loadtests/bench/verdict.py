"""Whether a figure is as wanted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure of each round, and whether their median is as wanted."""

    what: str
    #: Of the rounds that say something; infinite: what was waited for did not happen.
    values: Sequence[float]
    #: Why others say nothing.
    faults: Sequence[str] = ()
    at_least: float | None = None
    at_most: float | None = None
    #: Something else than what is judged may have made the difference.
    doubtful: bool = False
    #: How a value is written.
    form: str = ",.2f"

    @property
    def word(self) -> str:
        """``met`` or ``MISSED``, unless nothing is wanted; ``INVALID`` if no round says anything."""
        if not self.values:
            return "INVALID"
        if self.at_least is None and self.at_most is None:
            return "doubtful" if self.doubtful else ""
        middle = median(self.values)
        good = (self.at_least is None or middle >= self.at_least) and (
            self.at_most is None or middle <= self.at_most
        )
        return ("met" if good else "MISSED") + (" (doubtful)" if self.doubtful else "")

    def line(self) -> list[str]:
        """Its line of a table: what, median, rounds, target, word."""
        wanted = ""
        if self.at_least is not None:
            wanted = f">= {self._show(self.at_least)}"
        if self.at_most is not None:
            wanted = f"<= {self._show(self.at_most)}"
        middle = self._show(median(self.values)) if self.values else ""
        return [self.what, middle, " ".join(map(self._show, self.values)), wanted, self.word]

    def _show(self, value: float) -> str:
        return "never" if math.isinf(value) else format(value, self.form)
