"""Merchants that are merely slow, each with a backlog: what the healthy ones beside them notice.

Nothing fails and nothing hangs: every merchant answers every order. The slow ones would use many
times the slots that there are, and together they hold what the healthy ones leave to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil

from loadtests.bench.attacks.attack import Attack, Group, Population
from loadtests.bench.attacks.bout import Pair, compare
from loadtests.bench.attacks.comparison import Comparison, Setting
from loadtests.bench.attacks.figures import Latency
from loadtests.bench.attacks.plays import Load, SteadySize
from loadtests.bench.candidate import WATCHED, Candidate
from loadtests.bench.report import Verdict

LOAD = Load(rate=100.0, latency=0.02)
#: How many slow merchants there are, and seconds that each takes over an order.
OTHERS = ((40, 2.5), (100, 1.0), (100, 2.5))
#: Milliseconds that the healthy merchants' p99 may grow by, and the slots that the others keep.
MOST_ADDED, LEAST_HELD = 20.0, 0.6
#: The group of merchants beside the healthy ones.
OTHERS_GROUP = "others"
_LIMIT = {"max_concurrency": 10}


def beside(merchants: int, terms: Mapping[str, object] = _LIMIT) -> Population:
    """Sixty healthy merchants, and others of whom no order comes by itself."""
    groups = (Group("healthy", 60, 1.0, _LIMIT), Group(OTHERS_GROUP, merchants, 0.0, terms))
    return Population(groups, orders=0, quick_orders=0)


def attack(merchants: int, seconds: float, size: SteadySize) -> Attack:
    """Slow merchants with a backlog that outlasts a run."""
    lasts = 2 * (size.warm_up + size.measured + size.settle)
    return Attack(
        f"{merchants} at {seconds:g} s",
        "",
        f"{merchants} merchants take {seconds:g} s each",
        beside(merchants),
        troubled=(OTHERS_GROUP,),
        profile={"kind": "accept", "latency": seconds},
        mid_run=False,
        backlog=ceil(lasts * WATCHED.slots / seconds / merchants),
    )


def _runs(setting: Setting) -> Mapping[str, tuple[Candidate, Attack]]:
    others = OTHERS[1:2] if setting.quick else OTHERS
    attacks = (attack(*each, setting.size) for each in others)
    return {each.name: (WATCHED, each) for each in attacks}


def _judged(name: str, pairs: Sequence[Pair[Latency]]) -> Iterator[Verdict]:
    yield compare(
        f"{name}: ms added to p99",
        pairs,
        lambda alone, beside: 1000 * (beside.p99 - alone.p99),
        at_most=MOST_ADDED,
        form=",.1f",
    )
    yield compare(
        f"{name}: healthy orders that had not come",
        pairs,
        lambda _, beside: beside.missing,
        at_most=0,
        form=",.0f",
    )
    yield compare(
        f"{name}: part of the slots that they keep",
        pairs,
        lambda _, beside: beside.held,
        at_least=LEAST_HELD,
    )


SLOW_MERCHANTS = Comparison(
    "slow-merchants",
    f"{LOAD.rate:.0f} orders/s to 60 merchants at 20 ms, beside slow ones with a backlog",
    beside(OTHERS[1][0]),
    {False: SteadySize(5, 20), True: SteadySize(2, 6, settle=2)},
    _runs,
    _judged,
    candidate=WATCHED,
    load=LOAD,
)
