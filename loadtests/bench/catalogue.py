"""Healthy merchants beside all that the catalogue of hostile peers has: their latency, our memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from loadtests.bench.attacks.attack import Attack, Group, Population
from loadtests.bench.attacks.bout import MOST_LATENCY, Pair, compare, p99_ratio
from loadtests.bench.attacks.figures import Latency, latency
from loadtests.bench.attacks.plays import SteadySize, calibrated, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS
from loadtests.bench.report import Verdict, accounted, section, table, verdicts
from loadtests.bench.servers import Servers
from testkit.hostile.catalogue import CATALOGUE

NAME = "catalogue"
#: MiB by which the worker may grow.
MOST_GROWTH = 64.0
#: Attackers there are at least, each behaviour by as many.
ATTACKERS = 200
_EACH = -(-ATTACKERS // len(CATALOGUE))

POPULATION = Population(
    (
        # Their time limit is short, so that those that hang do it again and again.
        Group("hostile", _EACH * len(CATALOGUE), 0.1, {"request_timeout": 2.0}),
        Group("healthy", 200, 0.9),
    ),
    orders=0,  # no queue is filled with them
    quick_orders=0,
)
#: Messages that the gateway has the broker delay for each order of a hostile peer: 343 to 354 for 500
#: orders, as queues counted them that were bound to where delayed messages enter (20 s, three runs).
#: Most retries wait in the worker.
DELAYED = 0.7
ATTACK = Attack(
    NAME,
    "",
    f"{len(CATALOGUE)} ways to treat a connection, by {_EACH} merchants each; 10 % of the orders",
    POPULATION,
    troubled=("hostile",),
    mid_run=False,
    hostile=True,
)
#: The broker's part of it: all merchants are well, and it delays as much for another application.
SHAM = Attack(f"{NAME}, its broker alone", "", "", POPULATION, troubled=(), mid_run=False)

_SIZES = {False: SteadySize(4, 16, settle=3), True: SteadySize(2, 8, settle=3)}


#: The runs of each round: undisturbed, attacked and, unless quick, with the sham.
Rounds = Sequence[Mapping[str, Latency]]

_UNDISTURBED, _ATTACKED, _SHAM = "undisturbed", "attacked", "its broker alone"


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
    """Play the runs in turn, every other round backwards."""
    return [_play(servers, turn, quick=quick) for turn in range(rounds)]


def _play(servers: Servers, turn: int, *, quick: bool) -> dict[str, Latency]:
    size, load = _SIZES[quick], calibrated(servers, Trial(OURS, POPULATION))
    sham = replace(SHAM, delays=DELAYED * POPULATION.groups[0].share * load.rate)
    runs: dict[str, Attack | None] = {_UNDISTURBED: None, _ATTACKED: ATTACK}
    if not quick:
        runs[_SHAM] = sham
    figures = {}
    for name in runs if turn % 2 == 0 else reversed(runs):
        seen = steady_on_time(servers, Trial(OURS, POPULATION, runs[name]), size, load)
        figures[name] = latency(seen, ATTACK, size.warm_up)
    return {name: figures[name] for name in runs}


def report(rounds: Rounds) -> str:
    """The figures and targets as Markdown."""
    columns = ("orders/s", "p50 ms", "p99 ms", "worst ms", "worker", "worker MiB", "disturbed by")
    return section(
        f"{NAME}: {ATTACK.title}",
        table(("60 % load, healthy merchants", *columns), list(_lines(rounds))),
        verdicts(judge(rounds)),
        accounted(each[_ATTACKED].accounting for each in rounds),
        faults=faults(rounds),
    )


def faults(rounds: Rounds) -> list[str]:
    """Why rounds say nothing."""
    return [fault for pair in _pairs(rounds, _ATTACKED) for fault in pair.faults]


def judge(rounds: Rounds) -> list[Verdict]:
    """The targets; of the broker's part of the first figure nothing is wanted."""
    attacked, sham = _pairs(rounds, _ATTACKED), _pairs(rounds, _SHAM)
    judged = [compare("p99, attacked / undisturbed", attacked, p99_ratio, at_most=MOST_LATENCY)]
    if sham:
        shown = compare("p99, its broker alone / undisturbed", sham, p99_ratio)
        judged.append(replace(shown, doubtful=False))
    growth = compare(
        "growth of the worker, MiB",
        attacked,
        lambda undisturbed, attacked: attacked.peak - undisturbed.peak,
        at_most=MOST_GROWTH,
        form=".0f",
    )
    return [*judged, replace(growth, doubtful=False)]


def _pairs(rounds: Rounds, name: str) -> list[Pair[Latency]]:
    return [Pair(each[_UNDISTURBED], each[name]) for each in rounds if name in each]


def _lines(rounds: Rounds) -> Iterator[list[str]]:
    for number, played in enumerate(rounds, 1):
        for name, figures in played.items():
            late = f" ({figures.missing:,} had not come)" if figures.missing else ""
            milliseconds = [f"{1000 * at:.1f}" for at in (figures.p50, figures.p99, figures.worst)]
            yield [
                f"round {number}, {name}",
                f"{figures.rate:,.0f}",
                *milliseconds,
                f"{figures.cost.worker:.0%}",
                f"{figures.peak:.0f}",
                figures.disturbed_by + late,
            ]
