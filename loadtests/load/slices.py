"""A run cut into stretches of equal length, for pictures and tables over time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from loadtests.bench.gauge import used_between
from loadtests.load.histogram import percentile
from loadtests.load.run import Run
from loadtests.load.scraper import loop_lag
from pos_gateway.demo.record import Times

#: A figure for each stretch; None where there is none.
Series = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Slices:
    """Stretches from the first order to the last outcome, numbered from 0."""

    run: Run
    seconds: float
    number: int

    @classmethod
    def of(cls, run: Run, most: int) -> "Slices":
        """At most ``most``, of a second at least."""
        length = run.record.ended - run.record.began
        seconds = max(1.0, length / most)
        return cls(run, seconds, ceil(length / seconds))

    @property
    def starts(self) -> list[float]:
        """Seconds from the first order to the beginning of each."""
        return [number * self.seconds for number in range(self.number)]

    def rate(self, seconds: Iterable[float]) -> Series:
        """How often something happened, a second."""
        return [len(each) / self.seconds for each in self._sorted((at, at) for at in seconds)]

    def percentile(self, times: Times | None, share: float) -> Series:
        """Of the orders submitted in each."""
        values = self._sorted(zip(times.at, times.seconds, strict=True) if times else ())
        return [percentile(sorted(each), share) if each else None for each in values]

    def scraped(self, *names: str) -> Series:
        """The highest sum of these figures of the worker's metrics; else that of the one before."""
        return self._highest(
            (each.at, sum(each.figures.get(name, 0.0) for name in names))
            for each in self.run.samples
        )

    def loop_lag(self) -> Series:
        """What 99 of 100 turns of the worker's green threads were not later than, in seconds."""
        return self._highest(
            (after.at, loop_lag(before, after)) for before, after in pairwise(self.run.samples)
        )

    def busy(self, part: str) -> Series:
        """The share of a core that a part used."""
        starts = [self.run.record.began + start for start in self.starts]
        return [
            used_between(self.run.readings, start, start + self.seconds).get(part, 0.0)
            / self.seconds
            for start in starts
        ]

    def held(self, part: str) -> Series:
        """The most MiB that a part held."""
        return self._highest((each.at, each.held.get(part, 0.0)) for each in self.run.readings)

    def _highest(self, moments: Iterable[tuple[float, float]]) -> Series:
        began = self.run.record.began
        values = self._sorted((at - began, value) for at, value in moments)
        return list(_filled(max(each, default=None) for each in values))

    def _sorted(self, pairs: Iterable[tuple[float, float]]) -> list[list[float]]:
        values: list[list[float]] = [[] for _ in range(self.number)]
        for at, value in pairs:
            place = int(at // self.seconds)
            if 0 <= place < self.number:
                values[place].append(value)
        return values


def _filled(values: Iterable[float | None]) -> Iterator[float | None]:
    last = None
    for value in values:
        last = last if value is None else value
        yield last
