"""What follows from the comparison: promote, hold or abort, and why."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log
from typing import NamedTuple

from pos_gateway.canary.comparison import Comparison, costs, quantiles, rates, ratio
from pos_gateway.canary.evidence import OUTCOMES, Side

#: Minimum merchants and orders of each side for a finding.
MERCHANTS, ORDERS = 5, 200
#: The difference that matters: of a rate in absolute terms; of a time or a cost relative to it.
POINTS, SHARE = 0.01, 0.25
#: The one-sided confidence with which the canary must be worse, to be aborted; and not worse by the
#: difference that matters, to be promoted.
CERTAIN, LIKELY = 0.999, 0.95
#: The quantile of the healthy merchants' times.
QUANTILE = 0.99
#: The largest ratio of orders per process between the sides at which their CPU is compared. A
#: process costs CPU without any order. If that were all its cost, an order would cost this many
#: times as much on the side with fewer, which must be less than the difference that matters.
ALIKE = 1.2


class Spent(NamedTuple):
    """What a side's workers spent, from one read of the metrics to the next."""

    #: Seconds of CPU.
    cpu: float
    #: Orders that ended.
    orders: int
    #: Worker processes in both reads.
    processes: int


#: What a side spent, by read.
Costs = Sequence[Spent]


class CanaryFinding(StrEnum):
    """The finding on one figure."""

    FINE = "fine"
    UNKNOWN = "unknown"
    WORSE = "worse"
    #: Cannot be compared, and waiting does not help: the verdict goes by the other figures.
    LEFT_OUT = "left out"


class CanaryDecision(StrEnum):
    """What to do next."""

    PROMOTE = "promote"
    HOLD = "hold"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, and its finding."""

    name: str
    finding: CanaryFinding
    why: str


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """All measures, and the decision that follows."""

    measures: tuple[Measure, ...]

    @property
    def decision(self) -> CanaryDecision:
        findings = {measure.finding for measure in self.measures}
        if CanaryFinding.WORSE in findings:
            return CanaryDecision.ABORT
        return CanaryDecision.HOLD if CanaryFinding.UNKNOWN in findings else CanaryDecision.PROMOTE


def judge(
    canary: Side,
    stable: Side,
    cpu: tuple[Costs, Costs] | None = None,
    *,
    own_workers: int,
    stranded: int = 0,
) -> CanaryVerdict:
    """Compare the canary with the stable side.

    Args:
        canary, stable: their orders' outcomes.
        cpu: their costs; None: not measured.
        own_workers: how many more consumers the canary's queue has than the stable queue. Stable
            workers consume both, and do the canary's work if it has no workers.
        stranded: messages in the canary's queue while it has no consumer.
    """
    measures = [*_outcomes(canary, stable), _healthy(canary, stable), _own_workers(own_workers)]
    if cpu is not None:
        measures.append(_cpu(*cpu))
    if stranded:
        why = f"no worker consumes the messages in orders.canary: {stranded}"
        measures.append(Measure("queue", CanaryFinding.WORSE, why))
    return CanaryVerdict(tuple(measures))


def found(compared: Comparison, matters: float) -> CanaryFinding:
    """The finding on a comparison, where ``matters`` is the difference that matters."""
    if compared.at_least(CERTAIN) > 0 and compared.estimate >= matters:
        return CanaryFinding.WORSE
    return CanaryFinding.FINE if compared.at_most(LIKELY) <= matters else CanaryFinding.UNKNOWN


def _outcomes(canary: Side, stable: Side) -> list[Measure]:
    for who, side in (("the canary has", canary), ("the others have", stable)):
        if lacking := _lacking(who, side.outcomes, side.orders):
            return [Measure("outcomes", CanaryFinding.UNKNOWN, lacking)]
    return [
        _measure(each, rates(canary.count(each), stable.count(each)), POINTS, _points)
        for each in OUTCOMES
    ]


def _healthy(canary: Side, stable: Side) -> Measure:
    name = "healthy p99"
    for who, side in (("the canary has", canary), ("the others have", stable)):
        if lacking := _lacking(who, side.seconds, sum(map(len, side.seconds.values()))):
            return Measure(name, CanaryFinding.UNKNOWN, f"of merchants healthy before, {lacking}")
    compared = quantiles([*canary.seconds.values()], [*stable.seconds.values()], QUANTILE)
    return _measure(name, compared, log(1 + SHARE), _times)


def _own_workers(number: int) -> Measure:
    """Without any, the stable workers are compared with themselves."""
    name = "own workers"
    if number > 0:
        why = f"consumers of orders.canary beyond those of orders: {number}"
        return Measure(name, CanaryFinding.FINE, why)
    why = (
        "orders.canary has no more consumers than orders: what is compared may be the others' work"
    )
    return Measure(name, CanaryFinding.UNKNOWN, why)


def _cpu(canary: Costs, stable: Costs) -> Measure:
    name = "CPU an order"
    ours, theirs = _orders_a_process(canary), _orders_a_process(stable)
    if max(ours, theirs) > ALIKE * min(ours, theirs):
        why = (
            f"{ours:.0f} orders for a process of the canary's, {theirs:.0f} for one of the others': "
            f"one is not to have more than {ALIKE:g} times as many"
        )
        return Measure(name, CanaryFinding.LEFT_OUT, why)
    for who, side in (("the canary has", canary), ("the others have", stable)):
        orders = sum(each.orders for each in side)
        if orders < ORDERS:
            why = f"{who} ended {orders} of the {ORDERS} orders that are needed; look for longer"
            return Measure(name, CanaryFinding.UNKNOWN, why)
    compared = costs(*([(each.cpu, each.orders) for each in side] for side in (canary, stable)))
    return _measure(name, compared, log(1 + SHARE), _times)


def _orders_a_process(side: Costs) -> float:
    """Orders a process ended, over all reads."""
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
