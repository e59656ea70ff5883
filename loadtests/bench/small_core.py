"""A worker that has less than a core: where healthy orders wait beside slow merchants with a backlog.

The slots are shared by slot-time, and the loop does its work in the order of its arrival. What that
means once CPU is scarce is read from the worker's log, stage by stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any

from loadtests.bench import slow_merchants
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.bout import LATENCY, Pair, compare, latency_line
from loadtests.bench.attacks.figures import Latency, latency
from loadtests.bench.attacks.plays import Load, Observation, SteadySize, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.cores import nothing_pinned
from loadtests.bench.limited import Limited
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.stages import STAGES, Stage, stages

NAME = "small-core"
#: Seconds that a healthy merchant takes over an order.
_REPLY = 0.02
_SIZES = {False: SteadySize(20, 20, settle=10), True: SteadySize(10, 10, settle=5)}
#: Merchants that take a second each, with a backlog.
MERCHANTS, SECONDS = 100, 1.0
UNDISTURBED, BESIDE = "undisturbed", f"beside {MERCHANTS} at {SECONDS:g} s"


@dataclass(frozen=True, slots=True)
class Core:
    """A part of a core, the healthy orders a second that it gets, and what the others may add to their p99."""

    part: float
    rate: float
    #: Milliseconds.
    most_added: float

    def __str__(self) -> str:
        return f"{self.part:g} core"


CORES = (Core(0.25, 20.0, 100.0), Core(0.5, 40.0, 50.0), Core(1.0, 100.0, 20.0))
_QUICK = CORES[1:2]


@dataclass(frozen=True, slots=True)
class Seen:
    """One run on one core."""

    core: str
    run: str
    latency: Latency
    stages: Sequence[Stage]


Rounds = Sequence[Sequence[Seen]]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
    """Play each core undisturbed and beside the others, every other round backwards."""
    plan = [(core, run) for core in (_QUICK if quick else CORES) for run in (False, True)]
    with nothing_pinned():
        return [
            [_run(servers, core, _SIZES[quick], beside=run) for core, run in _turned(plan, turn)]
            for turn in range(rounds)
        ]


def faults(rounds: Rounds) -> Sequence[str]:
    """Why runs say nothing."""
    return [each.latency.fault for played in rounds for each in played if each.latency.fault]


def report(rounds: Rounds) -> str:
    """The tables: latency, stages, targets."""
    cores = [core for core in CORES if any(each.core == str(core) for each in rounds[0])]
    both = [(str(core), run) for core in cores for run in (UNDISTURBED, BESIDE)]
    lines = [
        [
            *latency_line(f"{core}, {run}", [each.latency for each in _of(rounds, core, run)]),
            f"{median(_others(each) for each in _of(rounds, core, run)):.0f}",
        ]
        for core, run in both
    ]
    return section(
        f"{NAME}: healthy merchants at {1000 * _REPLY:g} ms on a part of a core",
        table(("healthy merchants", *LATENCY, "others' orders/s"), lines),
        table(
            ("p50 / p99, ms", *STAGES),
            [[f"{core}, {run}", *_stage_cells(_of(rounds, core, run))] for core, run in both],
        ),
        verdicts([verdict for core in cores for verdict in judge(rounds, core)]),
        faults=faults(rounds),
    )


def attack(core: Core, size: SteadySize) -> Attack:
    """Slow merchants whose backlog comes at once, and outlasts what so much CPU can do of it."""
    lasts = size.warm_up + size.measured + size.settle
    slots = WATCHED.slots / SECONDS
    return replace(
        slow_merchants.attack(MERCHANTS, SECONDS, size),
        backlog=ceil(lasts * slots * core.part / MERCHANTS),
        sifted=False,
    )


def _turned(plan: Sequence[tuple[Core, bool]], turn: int) -> Sequence[tuple[Core, bool]]:
    return plan if turn % 2 == 0 else plan[::-1]


def _run(servers: Servers, core: Core, size: SteadySize, *, beside: bool) -> Seen:
    others = attack(core, size)
    trial = Trial(WATCHED, others.population, others if beside else None)
    made: list[Limited] = []

    def make(*arguments: Any) -> Limited:
        made.append(Limited(*arguments, cores=core.part))
        return made[-1]

    seen = steady_on_time(servers, trial, size, Load(core.rate, _REPLY), make=make)
    start = seen.scheduled.began + size.warm_up
    return Seen(
        str(core),
        BESIDE if beside else UNDISTURBED,
        latency(seen, others, size.warm_up),
        stages(made[-1].printed, _published(seen, others, start), seen.arrived),
    )


def _published(seen: Observation, others: Attack, start: float) -> Mapping[str, float]:
    """When healthy orders entered the queue, from a moment on."""
    published, spared = seen.scheduled.published, seen.spared(others)
    return {each: published[each] for each in spared if published[each] >= start}


def _of(rounds: Rounds, core: str, run: str) -> list[Seen]:
    return [each for played in rounds for each in played if (each.core, each.run) == (core, run)]


def _others(seen: Seen) -> float:
    """Orders a second of the others, by the slots that they held."""
    return seen.latency.held * WATCHED.slots / SECONDS


def _stage_cells(runs: Sequence[Seen]) -> Iterator[str]:
    for name in STAGES:
        found = [stage for run in runs for stage in run.stages if stage.name == name]
        if found:
            p50, p99 = (
                median(1000 * getattr(each, which) for each in found) for which in ("p50", "p99")
            )
            yield f"{p50:,.1f} / {p99:,.1f}"
        else:
            yield "none came"


def judge(rounds: Rounds, core: Core) -> Iterator[Verdict]:
    """What is wanted beside the others, of one core."""
    alone, beside = (_of(rounds, str(core), run) for run in (UNDISTURBED, BESIDE))
    pairs = [Pair(one.latency, other.latency) for one, other in zip(alone, beside, strict=True)]
    yield compare(
        f"{core}: ms added to p99",
        pairs,
        lambda undisturbed, attacked: 1000 * (attacked.p99 - undisturbed.p99),
        at_most=core.most_added,
        form=",.1f",
    )
    yield compare(
        f"{core}: healthy orders that had not come",
        pairs,
        lambda _, attacked: attacked.missing,
        at_most=0,
        form=",.0f",
    )
