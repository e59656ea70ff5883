"""Profiles: how one merchant behaves over many requests, by weight and chance."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

from loadtests.merchants.behaviour import Behaviour, Kind, parse_behaviour
from loadtests.merchants.errors import ScenarioError
from loadtests.merchants.latency import Fixed, Lognormal, Uniform


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
        """What the next request meets."""
        if len(self._bounds) == 1:
            return self.weighted[0][1]
        # The last bound is left out, so that rounding cannot point behind the list.
        place = bisect(self._bounds, chance.random() * self._bounds[-1], 0, len(self._bounds) - 1)
        return self.weighted[place][1]


@dataclass(frozen=True, slots=True)
class Profile:
    """How a merchant behaves."""

    name: str
    #: What meets a new order.
    create: Mix
    #: What meets lookups and cancellations.
    lookups: Mix
    #: An Idempotency-Key is honoured; without it every repetition makes another order.
    keyed: bool = True
    #: A body that is not JSON is answered with 400.
    checks_body: bool = False

    @classmethod
    def of(
        cls, name: str, create: Mix | Behaviour, lookups: Mix | Behaviour | None = None
    ) -> "Profile":
        """A profile whose lookups, unless given, meet what new orders meet."""
        new = create if isinstance(create, Mix) else Mix.only(create)
        others = lookups if isinstance(lookups, Mix) else Mix.only(lookups) if lookups else new
        return cls(name, new, others)


def parse_profile(name: str, value: object) -> Profile:
    """Read a profile from JSON.

    A behaviour, a list of behaviours with a ``weight`` each, or the long form
    ``{"create": …, "lookups": …, "keyed": true, "checks_body": false}`` with either in its places.
    """
    if not isinstance(value, Mapping) or "create" not in value:
        mix = _parse_mix(value)
        return Profile(name, mix, mix)
    if unknown := value.keys() - {"create", "lookups", "keyed", "checks_body"}:
        raise ScenarioError(f"profile {name}: unknown {', '.join(sorted(unknown))}")
    create = _parse_mix(value["create"])
    return Profile(
        name,
        create,
        _parse_mix(value["lookups"]) if "lookups" in value else create,
        keyed=bool(value.get("keyed", True)),
        checks_body=bool(value.get("checks_body", False)),
    )


def _parse_mix(value: object) -> Mix:
    match value:
        case Mapping() if value:
            return _parse_mix([value])
        case Sequence() if value and all(isinstance(each, Mapping) for each in value):
            return Mix(tuple(_parse_weighted(each) for each in value))
    raise ScenarioError(f"behaviours {value!r}: give one behaviour or a list of them")


def _parse_weighted(value: Mapping[str, Any]) -> tuple[float, Behaviour]:
    weight = value.get("weight", 1.0)
    if not isinstance(weight, int | float):
        raise ScenarioError(f"weight {weight!r}: a number above 0")
    return float(weight), parse_behaviour({k: v for k, v in value.items() if k != "weight"})


_QUICK = Lognormal(median=0.05, sigma=0.3)
_HEALTHY = Behaviour(Kind.ACCEPT, _QUICK)

#: The profiles that exist without a scenario; ids such as ``slow-17`` choose them by prefix.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile.of("instant", Behaviour(Kind.ACCEPT)),
        Profile.of("fast", _HEALTHY),
        Profile.of("slow", Behaviour(Kind.ACCEPT, Lognormal(median=3.0, sigma=0.5))),
        Profile.of("hang", Behaviour(Kind.HANG)),
        Profile.of(
            "fail",
            Mix(((2, Behaviour(Kind.FAIL, _QUICK)), (1, Behaviour(Kind.FAIL, _QUICK, status=500)))),
        ),
        Profile.of("limit", Mix(((1, Behaviour(Kind.LIMIT)), (1, _HEALTHY)))),
        Profile.of("reject", Behaviour(Kind.REJECT, _QUICK)),
        Profile.of("pending", Behaviour(Kind.PENDING, _QUICK)),
        Profile.of("conflict", Behaviour(Kind.CONFLICT, _QUICK)),
        Profile.of("reset", Behaviour(Kind.RESET, Uniform(0.0, 0.05))),
        # Longer than the gateway waits by default: the order is there, the reply comes too late.
        Profile.of("late", Behaviour(Kind.ACCEPT, Fixed(15.0)), lookups=_HEALTHY),
        Profile("unkeyed", Mix.only(_HEALTHY), Mix.only(_HEALTHY), keyed=False),
    )
}
