"""Attacks as data: the merchants, which of them get into trouble, when, and what they do then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from loadtests.bench import orders

_HANG: Mapping[str, object] = {"kind": "hang"}


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Merchants that are alike. Their ids are the group's name, a dash and a number."""

    name: str
    merchants: int
    #: Share of all orders.
    share: float
    #: What their records say beyond their URLs.
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merchant_ids(self) -> list[str]:
        """All of them."""
        return [f"{self.name}-{number}" for number in range(self.merchants)]


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Groups whose shares make up the whole."""

    groups: tuple[Group, ...]
    #: Orders to fill a queue with, and those of a quick run.
    orders: int
    quick_orders: int

    def __post_init__(self) -> None:
        total = sum(group.share for group in self.groups)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"shares: must make up 1 (got {total!r})")

    @property
    def merchant_ids(self) -> list[str]:
        """All merchants."""
        return [merchant_id for group in self.groups for merchant_id in group.merchant_ids]

    @property
    def terms(self) -> dict[str, Mapping[str, Any]]:
        """What is agreed with each group."""
        return {group.name: group.terms for group in self.groups}

    def profiles(self, latency: float) -> dict[str, object]:
        """Every merchant replies after ``latency`` seconds."""
        return {group.name: {"kind": "accept", "latency": latency} for group in self.groups}

    def whose(self, number: int) -> list[str]:
        """The merchant of each order: by the groups' shares, evenly within each, shuffled."""
        return orders.shuffled(
            merchant_id
            for group in self.groups
            for merchant_id in islice(cycle(group.merchant_ids), round(number * group.share))
        )


def group_of(merchant_id: str) -> str:
    """The name of a merchant's group."""
    return merchant_id.partition("-")[0]


#: One merchant has a tenth of all orders, and a limit that lets it take them.
ONE_BUSY = Population(
    (
        Group("busy", 1, 0.1, {"max_concurrency": 20}),
        Group("healthy", 200, 0.9),
    ),
    orders=16_000,
    quick_orders=5000,
)

#: A thousand merchants with as many orders each; 300 have the same provider, the others many.
THOUSAND = Population(
    (
        Group("some", 100, 0.1),
        Group("vendor", 300, 0.3, {"provider": "vendor"}),
        Group("many", 400, 0.4),
        Group("rest", 200, 0.2),
    ),
    orders=24_000,
    quick_orders=6000,
)


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """Some groups of a population get into trouble."""

    name: str
    #: A short name, as the documentation's.
    letter: str
    title: str
    population: Population
    #: The groups; all others stay healthy, and the figures are about those.
    troubled: tuple[str, ...]
    #: How they behave in trouble.
    profile: Mapping[str, object] = field(default_factory=lambda: _HANG)
    #: They were healthy until the middle of the run; else they never were.
    mid_run: bool = True
    #: Seconds after which they are healthy again, and after as many in trouble again; None: never.
    flaps_every: float | None = None
    #: They are no simulated merchants then, but the catalogue's scripted peers, from the start.
    hostile: bool = False
    #: Messages a second that the broker delays for another application: no merchant gets into trouble.
    delays: float = 0.0
    #: Orders that wait for each of them before any other comes, and whether the run begins only once the
    #: worker has taken or parked all of those.
    backlog: int = 0
    sifted: bool = True
    #: Seconds of an exchange with a merchant in trouble; None: as with all others.
    timeout: float | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.troubled) - {group.name for group in self.population.groups}:
            raise ValueError(f"troubled: no such group: {', '.join(sorted(unknown))}")

    def troubles(self, merchant_id: str) -> bool:
        """Whether it is one of those that get into trouble."""
        return group_of(merchant_id) in self.troubled

    def profile_at(self, moment: float, latency: float) -> Mapping[str, object]:
        """How they behave if they get into trouble at this moment of the wall clock."""
        if self.flaps_every is None:
            return self.profile
        well = {"kind": "accept", "latency": latency}
        return {"alternate": [self.profile, well], "every": self.flaps_every, "since": moment}

    @property
    def terms(self) -> dict[str, Mapping[str, Any]]:
        """What is agreed with each group."""
        terms = self.population.terms
        if self.timeout is not None:
            for group in self.troubled:
                terms[group] = {**terms[group], "request_timeout": self.timeout}
        return terms


ATTACKS = (
    Attack(
        "hanging",
        "a",
        "1 merchant hangs; it has 10 % of the orders",
        ONE_BUSY,
        troubled=("busy",),
        mid_run=False,
    ),
    Attack(
        "hundred-hang",
        "b",
        "100 of 1,000 merchants hang at once in mid-run",
        THOUSAND,
        troubled=("some",),
    ),
    Attack(
        "provider-hangs",
        "c",
        "a provider with 300 of 1,000 merchants hangs at once in mid-run",
        THOUSAND,
        troubled=("vendor",),
    ),
    Attack(
        "just-in-time",
        "e",
        "1 merchant always replies after 4.9 s of its 5 s; it has 10 % of the orders",
        ONE_BUSY,
        troubled=("busy",),
        profile={"kind": "accept", "latency": 4.9},
        mid_run=False,
        timeout=5.0,
    ),
    Attack(
        "flapping",
        "f",
        "500 of 1,000 merchants hang and are healthy again every 10 s",
        THOUSAND,
        troubled=("some", "many"),
        flaps_every=10.0,
    ),
)
