"""What follows from the comparison: promote, hold or abort, and why."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import log

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

#: A side's seconds of CPU and orders, each time that it was looked at.
Costs = Sequence[tuple[float, int]]


class Finding(StrEnum):
    """What was found of one figure."""

    FINE = "fine"
    UNKNOWN = "unknown"
    WORSE = "worse"


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
    canary: Side, stable: Side, cpu: tuple[Costs, Costs] | None = None, *, stranded: int = 0
) -> Verdict:
    """Hold the canary against the others.

    Args:
        canary, stable: what became of their orders.
        cpu: what they cost; None if nobody looked.
        stranded: messages in the canary's queue that nobody takes.
    """
    measures = [*_outcomes(canary, stable), _healthy(canary, stable)]
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


def _cpu(canary: Costs, stable: Costs) -> Measure:
    name = "CPU an order"
    for who, side in (("the canary has", canary), ("the others have", stable)):
        orders = sum(number for _, number in side)
        if orders < ORDERS:
            why = f"{who} ended {orders} of the {ORDERS} orders that are needed"
            return Measure(name, Finding.UNKNOWN, why)
    return _measure(name, costs(canary, stable), log(1 + SHARE), _times)


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
