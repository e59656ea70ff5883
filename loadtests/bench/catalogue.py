"""Healthy merchants beside all that the catalogue of hostile peers has: their latency, our memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from loadtests.bench.attacks.attack import Attack, Group, Population
from loadtests.bench.attacks.bout import MOST_LATENCY, Pair, compare, p99_ratio
from loadtests.bench.attacks.comparison import Comparison, Setting
from loadtests.bench.attacks.figures import Latency
from loadtests.bench.attacks.plays import SteadySize
from loadtests.bench.candidate import OURS, Candidate
from loadtests.bench.report import Verdict
from testkit.hostile.catalogue import CATALOGUE

NAME = "catalogue"
_SHAM = "its broker alone"
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


def _runs(setting: Setting) -> Mapping[str, tuple[Candidate, Attack]]:
    runs = {"attacked": (OURS, ATTACK)}
    if not setting.quick:
        delays = DELAYED * POPULATION.groups[0].share * setting.load.rate
        runs[_SHAM] = OURS, replace(SHAM, delays=delays)
    return runs


def _judged(name: str, pairs: Sequence[Pair[Latency]]) -> Iterator[Verdict]:
    if name == _SHAM:  # how much of the first figure is the broker's; nothing is wanted of it
        yield compare(f"p99, {name} / undisturbed", pairs, p99_ratio)
        return
    yield compare(f"p99, {name} / undisturbed", pairs, p99_ratio, at_most=MOST_LATENCY)
    yield compare(
        "growth of the worker, MiB",
        pairs,
        lambda undisturbed, attacked: attacked.peak - undisturbed.peak,
        at_most=MOST_GROWTH,
        form=".0f",
    )


HOSTILE = Comparison(
    NAME,
    ATTACK.title,
    POPULATION,
    {False: SteadySize(4, 16, settle=3), True: SteadySize(2, 8, settle=3)},
    _runs,
    _judged,
)
