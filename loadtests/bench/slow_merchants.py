"""Merchants that are merely slow, each with a backlog: what the healthy ones beside them notice.

Nothing fails and nothing hangs: every merchant answers every order. The slow ones would use many
times the slots that there are, and together they hold what the healthy ones leave to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from loadtests.bench.attacks.attack import Attack, Group, Population
from loadtests.bench.attacks.bout import LATENCY, Pair, compare, latency_line
from loadtests.bench.attacks.figures import Latency, latency
from loadtests.bench.attacks.plays import Load, Observation, SteadySize, steady_on_time
from loadtests.bench.attacks.series import slots
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers

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


#: The runs of each round by the slow merchants in it, or none.
Rounds = Sequence[Mapping[str, Beside]]

_UNDISTURBED = "undisturbed"


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
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
    return rounds_played


def _held(seen: Observation, warm_up: float) -> float:
    last = max(seen.scheduled.published.values())
    levels = slots(seen.levels, ("slow",), seen.scheduled.began + warm_up, last)["troubled"]
    return fmean(levels) / WATCHED.slots


def report(rounds: Rounds) -> str:
    """The table."""
    lines = [
        [
            *latency_line(name, [played[name].latency for played in rounds]),
            " ".join(f"{played[name].held:.0%}" for played in rounds),
        ]
        for name in rounds[0]
    ]
    crowds = [name for name in rounds[0] if name != _UNDISTURBED]
    return section(
        f"{NAME}: {LOAD.rate:.0f} orders/s to 60 merchants at 20 ms, beside slow ones with a backlog",
        table(("submit to POS, healthy merchants", *LATENCY, "slots of the others"), lines),
        verdicts(verdict for name in crowds for verdict in judge(rounds, name)),
        faults=faults(rounds),
    )


def faults(rounds: Rounds) -> list[str]:
    """Why runs say nothing."""
    runs = (each.latency for played in rounds for each in played.values())
    return [each.fault for each in runs if each.fault]


def judge(rounds: Rounds, name: str) -> list[Verdict]:
    """What these slow merchants add to the healthy ones' p99, who misses, and what they keep."""
    pairs = [Pair(played[_UNDISTURBED].latency, played[name].latency) for played in rounds]
    held = {id(played[name].latency): played[name].held for played in rounds}
    return [
        compare(
            f"{name}: ms added to p99",
            pairs,
            lambda alone, beside: 1000 * (beside.p99 - alone.p99),
            at_most=MOST_ADDED,
            form=",.1f",
        ),
        compare(
            f"{name}: healthy orders that had not come",
            pairs,
            lambda _, beside: beside.missing,
            at_most=0,
            form=",.0f",
        ),
        compare(
            f"{name}: part of the slots that they keep",
            pairs,
            lambda _, beside: held[id(beside)],
            at_least=LEAST_HELD,
        ),
    ]
