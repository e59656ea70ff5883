"""Profiles: how one merchant behaves over many requests."""

from collections.abc import Mapping
from dataclasses import dataclass

from pos_gateway.simulated_merchants.behaviour import Behaviour, Stage, Treatment
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.latency import Fixed, Lognormal, Uniform
from pos_gateway.simulated_merchants.mix import Alternation, Mix, Picks, parse_mix


@dataclass(frozen=True, slots=True)
class Profile:
    """How a merchant behaves."""

    name: str
    #: What meets a new order.
    create: Picks
    #: What meets lookups and cancellations.
    lookups: Picks
    #: An Idempotency-Key is honoured; without it every repetition makes another order.
    keyed: bool = True
    #: A body that is not JSON is answered with 400.
    checks_body: bool = False

    @classmethod
    def of(
        cls, name: str, create: Picks | Behaviour, lookups: Behaviour | None = None
    ) -> "Profile":
        """A profile whose lookups, unless given, meet what new orders meet."""
        new = Mix.only(create) if isinstance(create, Behaviour) else create
        return cls(name, new, Mix.only(lookups) if lookups else new)


def parse_profile(name: str, value: object) -> Profile:
    """Read a profile from JSON.

    A behaviour, a list of behaviours with a ``weight`` each, two that alternate, or the long form
    ``{"create": …, "lookups": …, "keyed": true, "checks_body": false}`` with one of them in its
    places.
    """
    if not isinstance(value, Mapping) or "create" not in value:
        mix = parse_mix(value)
        return Profile(name, mix, mix)
    if unknown := value.keys() - {"create", "lookups", "keyed", "checks_body"}:
        raise ScenarioError(f"profile {name}: unknown {', '.join(sorted(unknown))}")
    create = parse_mix(value["create"])
    return Profile(
        name,
        create,
        parse_mix(value["lookups"]) if "lookups" in value else create,
        keyed=bool(value.get("keyed", True)),
        checks_body=bool(value.get("checks_body", False)),
    )


_QUICK = Lognormal(median=0.05, sigma=0.3)
_HEALTHY = Behaviour(Treatment.ACCEPT, _QUICK)
_HANG = Behaviour(Treatment.HANG)

#: The profiles that exist without a scenario; ids such as ``slow-17`` choose them by prefix.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile.of("instant", Behaviour(Treatment.ACCEPT)),
        Profile.of("fast", _HEALTHY),
        Profile.of("slow", Behaviour(Treatment.ACCEPT, Lognormal(median=3.0, sigma=0.5))),
        Profile.of("hang", _HANG),
        Profile.of("cut", Behaviour(Treatment.HANG, _QUICK, stage=Stage.BODY), lookups=_HEALTHY),
        Profile.of("drip", Behaviour(Treatment.DRIP, _QUICK), lookups=_HEALTHY),
        Profile.of("flap", Alternation(Mix.only(_HANG), Mix.only(_HEALTHY), every=10.0, since=0.0)),
        Profile.of(
            "fail",
            Mix(
                (
                    (2, Behaviour(Treatment.FAIL, _QUICK)),
                    (1, Behaviour(Treatment.FAIL, _QUICK, status=500)),
                )
            ),
        ),
        Profile.of("limit", Mix(((1, Behaviour(Treatment.LIMIT)), (1, _HEALTHY)))),
        Profile.of("reject", Behaviour(Treatment.REJECT, _QUICK)),
        Profile.of("pending", Behaviour(Treatment.PENDING, _QUICK)),
        Profile.of("silent", Behaviour(Treatment.PENDING, _QUICK, decided_after=None)),
        Profile.of("conflict", Behaviour(Treatment.CONFLICT, _QUICK)),
        Profile.of("reset", Behaviour(Treatment.RESET, Uniform(0.0, 0.05))),
        # Longer than the gateway waits by default: the order is there, the reply comes too late.
        Profile.of("late", Behaviour(Treatment.ACCEPT, Fixed(15.0)), lookups=_HEALTHY),
        Profile("unkeyed", Mix.only(_HEALTHY), Mix.only(_HEALTHY), keyed=False),
    )
}
