"""How long a merchant takes: distributions, drawn from by chance and never in a fixed pattern."""

import math
from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from random import Random
from typing import Any, Protocol

from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.weighted import Weighted


class Latency(Protocol):
    """Seconds between the arrival of a request and its reply."""

    def draw(self, chance: Random) -> float:
        """The next latency in seconds."""
        ...


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise ScenarioError(otherwise)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    seconds: float

    def __post_init__(self) -> None:
        _require(self.seconds >= 0, f"fixed latency {self.seconds!r}: 0 or more seconds")

    def draw(self, chance: Random) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything between two bounds, equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require(
            0 <= self.low <= self.high,
            f"uniform latency [{self.low!r}, {self.high!r}]: 0 <= low <= high",
        )

    def draw(self, chance: Random) -> float:
        return self.low + (self.high - self.low) * chance.random()


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Mostly near the median, with the long tail that real APIs have."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _require(
            self.median > 0 and self.sigma >= 0,
            f"lognormal latency [{self.median!r}, {self.sigma!r}]: median > 0 and sigma >= 0",
        )

    def draw(self, chance: Random) -> float:
        return self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """As it was measured: points of a distribution, even between two of them."""

    #: Shares from 0 to 1 with the seconds that this share of replies does not exceed; both ascend.
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        shares, seconds = zip(*self.points, strict=True)
        _require(
            (shares[0], shares[-1]) == (0, 1)
            and all(a < b for a, b in pairwise(shares))
            and all(0 <= a <= b for a, b in pairwise(seconds)),
            f"quantiles latency {list(self.points)!r}: ascending [share, seconds], shares from 0 to 1",
        )

    def draw(self, chance: Random) -> float:
        share = chance.random()
        place = bisect(self.points, share, key=itemgetter(0))
        (low, fast), (high, slow) = self.points[place - 1], self.points[place]
        return fast + (slow - fast) * (share - low) / (high - low)


class Either(Weighted[Latency]):
    """One of several distributions, by their weights."""

    __slots__ = ()

    def draw(self, chance: Random) -> float:
        return self.pick(chance).draw(chance)


#: Answers at once.
PROMPT = Fixed(0.0)

_FORMS = (
    '{"uniform": [low, high]}, {"lognormal": [median, sigma]}, '
    '{"quantiles": [[share, seconds], ...]} or {"weighted": [[weight, latency], ...]}'
)


def parse_latency(value: object) -> Latency:
    """Read seconds, or one of ``_FORMS``.

    Raises:
        ScenarioError: it is none of them, or has figures that cannot be.
    """
    match value:
        case bool():
            pass
        case int() | float():
            return Fixed(float(value))
        case {"uniform": [int() | float() as low, int() | float() as high], **rest} if not rest:
            return Uniform(low, high)
        case {"lognormal": [int() | float() as mid, int() | float() as sigma], **rest} if not rest:
            return Lognormal(mid, sigma)
        case {"quantiles": [_, _, *_] as points, **rest} if not rest:
            return Quantiles(tuple(_pair(each, int, float) for each in points))
        case {"weighted": [_, *_] as choices, **rest} if not rest:
            pairs = [_pair(each, object) for each in choices]
            return Either(tuple((weight, parse_latency(latency)) for weight, latency in pairs))
    raise ScenarioError(f"latency {value!r}: give seconds, {_FORMS}")


def _pair(value: object, *kinds: type) -> tuple[float, Any]:
    match value:
        case [int() | float() as number, other] if isinstance(other, kinds):
            return number, other
    raise ScenarioError(f"latency: {value!r} stands where a pair is expected: {_FORMS}")
