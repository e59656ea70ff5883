"""Which behaviour a request meets: by weight and chance, or by the clock."""

import time
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any, Protocol

from loadtests.merchants.behaviour import Behaviour, parse_behaviour
from loadtests.merchants.errors import ScenarioError


class Picks(Protocol):
    """Something to pick behaviours from."""

    def pick(self, chance: Random) -> Behaviour:
        """What the next request meets."""
        ...


@dataclass(frozen=True, slots=True)
class Mix:
    """Behaviours with weights; each request meets one, picked by chance, not in turn."""

    weighted: tuple[tuple[float, Behaviour], ...]
    _bounds: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = [weight for weight, _ in self.weighted]
        if not weights or min(weights) <= 0:
            raise ScenarioError(f"weights {weights!r}: at least one, all above 0")
        object.__setattr__(self, "_bounds", tuple(accumulate(weights)))

    @classmethod
    def only(cls, behaviour: Behaviour) -> "Mix":
        """The same behaviour every time."""
        return cls(((1.0, behaviour),))

    def pick(self, chance: Random) -> Behaviour:
        if len(self._bounds) == 1:
            return self.weighted[0][1]
        # The last bound is left out, so that rounding cannot point behind the list.
        place = bisect(self._bounds, chance.random() * self._bounds[-1], 0, len(self._bounds) - 1)
        return self.weighted[place][1]


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
        """Whose turn it is."""
        return self.second if (moment - self.since) // self.every % 2 else self.first


def parse_mix(value: object) -> Picks:
    """Read a behaviour, a list of behaviours with a ``weight`` each, or an alternation.

    ``{"alternate": [first, second], "every": 10.0, "since": 1700000000.0}``; without ``since`` the
    first turn begins now.
    """
    match value:
        case {"alternate": [first, second], **rest}:
            return _parse_alternation(first, second, rest)
        case Mapping() if value:
            return parse_mix([value])
        case Sequence() if value and all(isinstance(each, Mapping) for each in value):
            return Mix(tuple(_parse_weighted(each) for each in value))
    raise ScenarioError(f"behaviours {value!r}: give one behaviour or a list of them")


def _parse_alternation(first: object, second: object, rest: Mapping[Any, Any]) -> Alternation:
    since = rest.get("since", time.time())
    match {"since": since, **rest}:
        case {"every": int() | float() as every, "since": int() | float(), **others} if not others:
            return Alternation(parse_mix(first), parse_mix(second), float(every), float(since))
    raise ScenarioError(
        f"alternate {dict(rest)!r}: give every, in seconds, and since, a wall-clock time, or only every"
    )


def _parse_weighted(value: Mapping[str, Any]) -> tuple[float, Behaviour]:
    weight = value.get("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ScenarioError(f"weight {weight!r}: a number above 0")
    return float(weight), parse_behaviour({k: v for k, v in value.items() if k != "weight"})
