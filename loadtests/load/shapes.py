"""How many orders a second come, over a run."""

import math
from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, Field

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)]

#: Steps in which a rate is summed up.
_STEPS = 10_000


class Shape(BaseModel):
    """A rate that nothing changes: the others vary it."""

    model_config = {"frozen": True, "extra": "forbid"}

    #: Orders a second.
    rate: Rate

    @property
    def highest(self) -> float:
        """The highest rate that there is."""
        return self.rate

    def rate_at(self, second: float, of: float) -> float:
        """Orders a second after ``seconds`` of a run."""
        return self.rate

    def expected(self, seconds: float) -> float:
        """How many orders a run of ``seconds`` has, on average."""
        step = seconds / _STEPS
        return step * sum(self.rate_at((number + 0.5) * step, seconds) for number in range(_STEPS))

    def arrivals(self, seconds: float, chance: Random, *, share: float = 1.0) -> Iterator[float]:
        """Seconds from the beginning to each order of a backend that has this share of them.

        A Poisson process: backends that know nothing of each other make one of all their orders. It
        is drawn at the highest rate, and thinned to the one of the moment.
        """
        second = 0.0
        while (second := second + chance.expovariate(share * self.highest)) < seconds:
            if chance.random() * self.highest < self.rate_at(second, seconds):
                yield second


class _Peaked(Shape):
    peak: Rate

    @property
    def highest(self) -> float:
        return max(self.rate, self.peak)


class Steady(Shape):
    """The same all the time."""

    shape: Literal["steady"]


class LunchPeak(_Peaked):
    """From ``rate`` up to ``peak`` in the middle of the run, and down again, smoothly."""

    shape: Literal["lunch-peak"]

    def rate_at(self, second: float, of: float) -> float:
        return _wave(self.rate, self.peak, second / of)


class Soak(_Peaked):
    """For hours: a lunch peak in each period."""

    shape: Literal["soak"]
    every: Annotated[float, Field(gt=0)]

    def rate_at(self, second: float, of: float) -> float:
        return _wave(self.rate, self.peak, second / self.every)


class Spike(_Peaked):
    """From ``rate`` to ``peak`` at once, and back: an advertisement, a goal."""

    shape: Literal["spike"]
    begins: Seconds
    lasts: Seconds

    def rate_at(self, second: float, of: float) -> float:
        return self.peak if self.begins <= second < self.begins + self.lasts else self.rate


class ThunderingRecovery(Shape):
    """Nothing comes for a while; then what was held back comes too, within some seconds."""

    shape: Literal["thundering-recovery"]
    begins: Seconds
    lasts: Seconds
    within: Annotated[float, Field(gt=0)]

    @property
    def highest(self) -> float:
        return self.rate * (1 + self.lasts / self.within)

    def rate_at(self, second: float, of: float) -> float:
        ends = self.begins + self.lasts
        if self.begins <= second < ends:
            return 0.0
        return self.highest if ends <= second < ends + self.within else self.rate


AnyShape = Annotated[
    Steady | LunchPeak | Soak | Spike | ThunderingRecovery, Field(discriminator="shape")
]


def _wave(low: float, high: float, turn: float) -> float:
    return low + (high - low) * math.sin(math.pi * turn) ** 2
