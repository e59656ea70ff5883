"""How long a merchant takes: distributions, drawn from by chance and never in a fixed pattern."""

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

from loadtests.merchants.errors import ScenarioError


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


#: Answers at once.
PROMPT = Fixed(0.0)


def parse_latency(value: object) -> Latency:
    """Read ``0.05``, ``{"uniform": [low, high]}`` or ``{"lognormal": [median, sigma]}``."""
    match value:
        case bool():
            pass
        case int() | float():
            return Fixed(float(value))
        case {"uniform": [int() | float() as low, int() | float() as high], **rest} if not rest:
            return Uniform(low, high)
        case {"lognormal": [int() | float() as mid, int() | float() as sigma], **rest} if not rest:
            return Lognormal(mid, sigma)
    raise ScenarioError(
        f"latency {value!r}: give seconds, "
        '{"uniform": [low, high]} or {"lognormal": [median, sigma]}'
    )
