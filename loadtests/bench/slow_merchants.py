"""Merchants that are merely slow, each with a backlog: what the healthy ones beside them notice.

Nothing fails and nothing hangs: every merchant answers every order. The slow ones would use many
times the slots that there are, and together they hold what the healthy ones leave to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean
from typing import Any

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.latency import Latency, latency
from loadtests.bench.attacks.load import Load
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.attacks.population import Group, Population
from loadtests.bench.attacks.report import LATENCY, latency_line
from loadtests.bench.attacks.series import slots
from loadtests.bench.attacks.steady import SteadySize, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.report import table
from loadtests.bench.servers import Servers
from loadtests.bench.verdict import Verdict

NAME = "slow-merchants"
LOAD = Load(rate=100.0, latency=0.02)
#: How many slow merchants there are, and seconds that each takes over an order.
OTHERS = ((40, 2.5), (100, 1.0), (100, 2.5))
#: Milliseconds that the healthy merchants' p99 may grow by, and the slots that the others keep.
MOST_ADDED, LEAST_HELD = 20.0, 0.6
_LIMIT = {"max_concurrency": 10}
_SIZES = {False: SteadySize(5, 20), True: SteadySize(2, 6, settle=2)}


def attack(merchants: int, seconds: float, size: SteadySize) -> Attack:
    """So many slow merchants with a backlog that outlasts a run."""
    lasts = 2 * (size.warm_up + size.measured + size.settle)
    return Attack(
        f"{merchants} at {seconds:g} s",
        "",
        f"{merchants} merchants take {seconds:g} s each",
        Population(
            (Group("healthy", 60, 1.0, _LIMIT), Group("slow", merchants, 0.0, _LIMIT)),
            orders=0,
            quick_orders=0,
        ),
        troubled=("slow",),
        profile={"kind": "accept", "latency": seconds},
        mid_run=False,
        backlog=ceil(lasts * WATCHED.slots / seconds / merchants),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """A run: the healthy merchants' figures, and the part of the slots that the others held."""

    latency: Latency
    held: float


@dataclass(frozen=True, slots=True)
class SlowMerchants:
    """The runs of each round by the slow merchants in it, or none."""

    rounds: Sequence[Mapping[str, Beside]]

    @property
    def faults(self) -> Sequence[str]:
        """Why runs say nothing."""
        return [
            each.latency.fault
            for played in self.rounds
            for each in played.values()
            if each.latency.fault
        ]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [{name: asdict(each) for name, each in played.items()} for played in self.rounds]


_UNDISTURBED = "undisturbed"


def measure(servers: Servers, rounds: int, *, quick: bool) -> SlowMerchants:
    """Play undisturbed, then beside each crowd of slow merchants; every other round backwards."""
    size, rounds_played = _SIZES[quick], []
    attacks = [attack(*each, size) for each in (OTHERS[1:2] if quick else OTHERS)]
    for turn in range(rounds):
        runs = [(_UNDISTURBED, None), *((each.name, each) for each in attacks)]
        played: dict[str, Beside] = {}
        for name, upon in runs if turn % 2 == 0 else reversed(runs):
            whom = upon or attacks[0]
            seen = steady_on_time(servers, Trial(WATCHED, whom.population, upon), size, LOAD)
            played[name] = Beside(latency(seen, whom, size.warm_up), _held(seen, size.warm_up))
        rounds_played.append(played)
    return SlowMerchants(rounds_played)


def _held(seen: Observation, warm_up: float) -> float:
    assert seen.production is not None, "no orders came at a schedule"
    last = max(seen.production.published.values())
    levels = slots(seen.levels, ("slow",), seen.production.began + warm_up, last)["troubled"]
    return fmean(levels) / WATCHED.slots


def report(cost: SlowMerchants) -> str:
    """The table."""
    names = list(cost.rounds[0])
    lines = [
        [
            *latency_line(name, [played[name].latency for played in cost.rounds]),
            " ".join(f"{played[name].held:.0%}" for played in cost.rounds),
        ]
        for name in names
    ]
    parts = [
        f"## {NAME}: {LOAD.rate:.0f} orders/s to 60 merchants at 20 ms, beside slow ones with a backlog",
        table(("submit to POS, healthy merchants", *LATENCY, "slots of the others"), lines),
        table(
            ("", "median", "rounds", "target", ""),
            [
                verdict.line()
                for name in names
                if name != _UNDISTURBED
                for verdict in judge(cost, name)
            ],
        ),
        *(f"Invalid: {fault}." for fault in dict.fromkeys(cost.faults)),
    ]
    return "\n\n".join(parts) + "\n"


def judge(cost: SlowMerchants, name: str) -> list[Verdict]:
    """What these slow merchants add to the healthy ones' p99, who misses, and what they keep."""
    pairs = [(played[_UNDISTURBED], played[name]) for played in cost.rounds]
    said = [pair for pair in pairs if not (pair[0].latency.fault or pair[1].latency.fault)]
    faults = [each.latency.fault for pair in pairs for each in pair if each.latency.fault]
    doubtful = any(
        each.latency.disturbed_by.split(" ")[0].isupper() for pair in pairs for each in pair
    )
    return [
        Verdict(
            f"{name}: ms added to p99",
            [1000 * (beside.latency.p99 - alone.latency.p99) for alone, beside in said],
            faults,
            at_most=MOST_ADDED,
            doubtful=doubtful,
            form=",.1f",
        ),
        Verdict(
            f"{name}: healthy orders that had not come",
            [beside.latency.missing for _, beside in said],
            faults,
            at_most=0,
            doubtful=doubtful,
            form=",.0f",
        ),
        Verdict(
            f"{name}: part of the slots that they keep",
            [beside.held for _, beside in said],
            faults,
            at_least=LEAST_HELD,
            doubtful=doubtful,
        ),
    ]
