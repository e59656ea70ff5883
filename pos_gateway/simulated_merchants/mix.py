"""Which behaviour a request meets: by weight and chance, or by the clock."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from pos_gateway.simulated_merchants.behaviour import Behaviour, parse_behaviour
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.weighted import Weighted


class Picks(Protocol):
    """Something to pick behaviours from."""

    def pick(self, chance: Random) -> Behaviour:
        """What the next request meets."""
        ...


class Mix(Weighted[Behaviour]):
    """Behaviours with weights; each request meets one."""

    __slots__ = ()

    @classmethod
    def only(cls, behaviour: Behaviour) -> "Mix":
        """The same behaviour every time."""
        return cls(((1.0, behaviour),))


@dataclass(frozen=True, slots=True)
class Alternation:
    """Two mixes in turn by the wall clock, so that many merchants change at the same moment.

    A request keeps the behaviour of the moment at which it came: one that came while its merchant
    hung gets no reply when the merchant's good time begins.
    """

    first: Picks
    second: Picks
    #: Seconds of each turn.
    every: float
    #: The wall-clock time at which a turn of the first began.
    since: float

    def __post_init__(self) -> None:
        if not self.every > 0:
            raise ScenarioError(f"every {self.every!r}: seconds above 0")

    def pick(self, chance: Random) -> Behaviour:
        return self.at(time.time()).pick(chance)

    def at(self, moment: float) -> Picks:
        """The behaviour whose turn it is."""
        return self.second if (moment - self.since) // self.every % 2 else self.first


@dataclass(frozen=True, slots=True)
class Outage:
    """One mix, and another one for a while: the same moments for all merchants that have it.

    A request keeps the behaviour of the moment at which it came, as in an alternation.
    """

    usual: Picks
    outage: Picks
    #: Seconds after ``since``.
    begins: float
    ends: float
    #: A wall-clock time.
    since: float

    def __post_init__(self) -> None:
        if not 0 <= self.begins < self.ends:
            raise ScenarioError(f"outage from {self.begins!r} to {self.ends!r}: 0 <= begins < ends")

    def pick(self, chance: Random) -> Behaviour:
        return self.at(time.time()).pick(chance)

    def at(self, moment: float) -> Picks:
        """What holds at that moment of the wall clock."""
        return self.outage if self.begins <= moment - self.since < self.ends else self.usual


def parse_mix(value: object) -> Picks:
    """Read a behaviour, a list of behaviours with a ``weight`` each, or two and when each holds.

    ``{"alternate": [first, second], "every": 10.0, "since": 1700000000.0}`` or ``{"usual": …,
    "outage": …, "begins": 20.0, "ends": 40.0, "since": 1700000000.0}``; without ``since`` it is
    now.
    """
    match value:
        case {"alternate": [first, second], **rest}:
            return Alternation(parse_mix(first), parse_mix(second), *_times(rest, "every"))
        case {"usual": usual, "outage": outage, **rest}:
            return Outage(parse_mix(usual), parse_mix(outage), *_times(rest, "begins", "ends"))
        case Mapping() if value:
            return parse_mix([value])
        case Sequence() if value and all(isinstance(each, Mapping) for each in value):
            return Mix(tuple(_parse_weighted(each) for each in value))
    raise ScenarioError(f"behaviours {value!r}: give one behaviour or a list of them")


def _times(given: Mapping[Any, Any], *names: str) -> Iterator[float]:
    times = {"since": time.time(), **given}
    if times.keys() != {*names, "since"} or any(
        isinstance(each, bool) or not isinstance(each, int | float) for each in times.values()
    ):
        raise ScenarioError(
            f"{dict(given)!r}: give {' and '.join(names)}, in seconds, and since, a wall-clock "
            "time; without since it is now"
        )
    return (float(times[name]) for name in (*names, "since"))


def _parse_weighted(value: Mapping[str, Any]) -> tuple[float, Behaviour]:
    weight = value.get("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ScenarioError(f"weight {weight!r}: a number above 0")
    return float(weight), parse_behaviour({k: v for k, v in value.items() if k != "weight"})
