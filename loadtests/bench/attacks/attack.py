"""Attacks as data: who gets into trouble, when, and what they do then."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtests.bench.attacks.population import ONE_BUSY, THOUSAND, Population, group_of

_HANG: Mapping[str, object] = {"kind": "hang"}


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
    #: Orders that wait for each of them before any other comes.
    backlog: int = 0
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
