"""What follows from the comparison: promote, hold or abort, and why."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log
from typing import NamedTuple

from pos_gateway.canary.comparison import Comparison, costs, quantiles, rates, ratio
from pos_gateway.canary.evidence import OUTCOMES, Side

#: Of each side at least, before anything is said of it.
MERCHANTS, ORDERS = 5, 200
#: How much worse matters: a rate by so many orders of one, a time or a cost by so much of itself.
POINTS, SHARE = 0.01, 0.25
#: With what one-sided confidence the canary must be worse to be aborted; and, to be promoted, not
#: worse by what matters.
CERTAIN, LIKELY = 0.999, 0.95
#: Which quantile of the healthy merchants' times.
QUANTILE = 0.99
#: How many times as many orders a process of one side may end as one of the other, for their CPU to
#: be compared. A process costs something without any order. If it were all that it costs, an order
#: would cost so many times as much where they are fewer, and that must be less than what matters.
ALIKE = 1.2


class Spent(NamedTuple):
    """By a side's workers, from one look to the next."""

    #: Seconds of CPU.
    cpu: float
    #: That ended.
    orders: int
    #: Workers' processes that were there all the time.
    processes: int


#: What a side has spent, each time that it was looked at.
Costs = Sequence[Spent]


class Finding(StrEnum):
    """What was found of one figure."""

    FINE = "fine"
    UNKNOWN = "unknown"
    WORSE = "worse"
    #: Cannot be compared, and is nothing to wait for: the verdict goes by the others.
    LEFT_OUT = "left out"


class Decision(StrEnum):
    """What to do next."""

    PROMOTE = "promote"
    HOLD = "hold"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, and what was found of it."""

    name: str
    finding: Finding
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that was looked at, and what follows."""

    measures: tuple[Measure, ...]

    @property
    def decision(self) -> Decision:
        findings = {measure.finding for measure in self.measures}
        if Finding.WORSE in findings:
            return Decision.ABORT
        return Decision.HOLD if Finding.UNKNOWN in findings else Decision.PROMOTE


def judge(
    canary: Side,
    stable: Side,
    cpu: tuple[Costs, Costs] | None = None,
    *,
    own_workers: int,
    stranded: int = 0,
) -> Verdict:
    """Hold the canary against the others.

    Args:
        canary, stable: what became of their orders.
        cpu: what they cost; None if nobody looked.
        own_workers: how many more take from the canary's queue than from the others': these take
            from both, and do the canary's work if nobody else does.
        stranded: messages in the canary's queue that nobody takes.
    """
    measures = [*_outcomes(canary, stable), _healthy(canary, stable), _own_workers(own_workers)]
    if cpu is not None:
        measures.append(_cpu(*cpu))
    if stranded:
        why = f"nobody takes the messages in orders.canary: {stranded}"
        measures.append(Measure("queue", Finding.WORSE, why))
    return Verdict(tuple(measures))


def found(compared: Comparison, matters: float) -> Finding:
    """What is to be made of a comparison, if it matters when the canary has so much more."""
    if compared.at_least(CERTAIN) > 0 and compared.estimate >= matters:
        return Finding.WORSE
    return Finding.FINE if compared.at_most(LIKELY) <= matters else Finding.UNKNOWN


def _outcomes(canary: Side, stable: Side) -> list[Measure]:
    for who, side in (("the canary has", canary), ("the others have", stable)):
        if lacking := _lacking(who, side.outcomes, side.orders):
            return [Measure("outcomes", Finding.UNKNOWN, lacking)]
    return [
        _measure(each, rates(canary.count(each), stable.count(each)), POINTS, _points)
        for each in OUTCOMES
    ]


def _healthy(canary: Side, stable: Side) -> Measure:
    name = "healthy p99"
    for who, side in (("the canary has", canary), ("the others have", stable)):
        if lacking := _lacking(who, side.seconds, sum(map(len, side.seconds.values()))):
            return Measure(name, Finding.UNKNOWN, f"of merchants healthy before, {lacking}")
    compared = quantiles([*canary.seconds.values()], [*stable.seconds.values()], QUANTILE)
    return _measure(name, compared, log(1 + SHARE), _times)


def _own_workers(number: int) -> Measure:
    """Without any, what is compared is the others' work with itself."""
    name = "own workers"
    if number > 0:
        why = f"consumers of orders.canary beyond those of orders: {number}"
        return Measure(name, Finding.FINE, why)
    why = (
        "orders.canary has no more consumers than orders: what is compared may be the others' work"
    )
    return Measure(name, Finding.UNKNOWN, why)


def _cpu(canary: Costs, stable: Costs) -> Measure:
    name = "CPU an order"
    ours, theirs = _orders_a_process(canary), _orders_a_process(stable)
    if max(ours, theirs) > ALIKE * min(ours, theirs):
        why = (
            f"{ours:.0f} orders for a process of the canary's, {theirs:.0f} for one of the others': "
            f"one is not to have more than {ALIKE:g} times as many"
        )
        return Measure(name, Finding.LEFT_OUT, why)
    for who, side in (("the canary has", canary), ("the others have", stable)):
        orders = sum(each.orders for each in side)
        if orders < ORDERS:
            why = f"{who} ended {orders} of the {ORDERS} orders that are needed; look for longer"
            return Measure(name, Finding.UNKNOWN, why)
    compared = costs(*([(each.cpu, each.orders) for each in side] for side in (canary, stable)))
    return _measure(name, compared, log(1 + SHARE), _times)


def _orders_a_process(side: Costs) -> float:
    """In all the time that it was looked at."""
    processes = sum(each.processes for each in side) / len(side)
    return sum(each.orders for each in side) / processes if processes else 0.0


def _lacking(who: str, merchants: Collection[str], orders: int) -> str | None:
    if len(merchants) >= MERCHANTS and orders >= ORDERS:
        return None
    return (
        f"{who} {orders} of the {ORDERS} orders and {len(merchants)} of the {MERCHANTS} merchants "
        "that are needed"
    )


def _measure(
    name: str, compared: Comparison, matters: float, show: Callable[[Comparison], str]
) -> Measure:
    return Measure(name, found(compared, matters), show(compared))


def _points(compared: Comparison) -> str:
    low, high = compared.at_least(LIKELY), compared.at_most(LIKELY)
    return (
        f"{compared.canary:.2%} of the canary's orders, {compared.stable:.2%} of the others': "
        f"between {100 * low:+.2f} and {100 * high:+.2f} points"
    )


def _times(compared: Comparison) -> str:
    low, high = compared.at_least(LIKELY), compared.at_most(LIKELY)
    return (
        f"{_shown(compared.canary)} in the canary, {_shown(compared.stable)} in the others: "
        f"between {ratio(low):.2f} and {ratio(high):.2f} times"
    )


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
