"""What all reports have: sections, Markdown tables, and figures with what is wanted of them."""

import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

from loadtests.bench.accounting import Accounting

_VERSIONS = ("celery", "gevent", "kombu", "amqp", "requests")
#: Rounds that a table lists; of more it says the least and the most.
_LISTED = 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure of each round, and whether their median is as wanted."""

    what: str
    #: Of the valid rounds; infinite: what the run waited for did not happen.
    values: Sequence[float]
    #: Why other rounds are invalid.
    faults: Sequence[str] = ()
    at_least: float | None = None
    at_most: float | None = None
    #: Something else than the worker may have made the difference.
    doubtful: bool = False
    #: How a value is written.
    form: str = ",.2f"

    @property
    def word(self) -> str:
        """``met`` or ``MISSED``, unless nothing is wanted; ``INVALID`` without a valid round."""
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
        rounds = " ".join(map(self._show, self.values))
        if len(self.values) > _LISTED:
            rounds = f"{self._show(min(self.values))} to {self._show(max(self.values))}"
        return [self.what, middle, rounds, wanted, self.word]

    def _show(self, value: float) -> str:
        return "never" if math.isinf(value) else format(value, self.form)


def section(title: str, *parts: str, faults: Iterable[str] = ()) -> str:
    """A heading, its tables and sentences, and why runs are invalid."""
    invalid = (f"Invalid: {fault}." for fault in dict.fromkeys(filter(None, faults)))
    return "\n\n".join([f"## {title}", *filter(None, parts), *invalid]) + "\n"


def verdicts(judged: Iterable[Verdict], first: str = "") -> str:
    """The table of what is wanted."""
    return table((first, "median", "rounds", "target", ""), [each.line() for each in judged])


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, figures to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *lines, strict=True)]
    rule = ["-" * width + ("-:" if place else "--") for place, width in enumerate(widths)]

    def row(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(aligned)} |"

    return "\n".join([row(columns), f"|{'|'.join(rule)}|", *map(row, lines)])


def accounted(accounts: Iterable[Accounting | None]) -> str:
    """That these orders add up; empty if there are none."""
    known = [accounting for accounting in accounts if accounting is not None]
    if not known:
        return ""
    again = sum(accounting.sent_again for accounting in known)
    return (
        f"{sum(accounting.orders for accounting in known):,} orders of the gateway's are "
        "accounted for: one create and one event each"
        + (f"; {again:,} were sent more than once." if again else ".")
    )


def number(figure: float) -> str:
    """Orders a second: whole ones, unless there are but a few."""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}"


def in_capitals(words: Iterable[str]) -> bool:
    """Whether something else than the worker limited or disturbed a run: its word is in capitals."""
    return any(word.split(" ")[0].isupper() for word in words if word)


def machine() -> str:
    """Cores and versions in a line: figures say little without them."""
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"
