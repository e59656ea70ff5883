"""The statistics: two groups of merchants, of which one goes to the canary.

A merchant is in one group with all of its orders, and its orders resemble each other. So what a
figure may be off by is taken between merchants, not between orders: a merchant whose POS is down
is one observation, however many orders it rejects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much more the canary has than the others: a difference, or the logarithm of a ratio."""

    canary: float
    stable: float
    estimate: float
    #: Standard error of the estimate, and the degrees of freedom it is known with.
    error: float
    degrees: int

    def at_least(self, confidence: float) -> float:
        """What it is at least, with this (one-sided) confidence."""
        return self.estimate - student(confidence, self.degrees) * self.error

    def at_most(self, confidence: float) -> float:
        """What it is at most."""
        return self.estimate + student(confidence, self.degrees) * self.error


def rates(canary: Sequence[tuple[int, int]], stable: Sequence[tuple[int, int]]) -> Comparison:
    """Of how many of its orders each merchant's something is true: (of so many, orders).

    The difference of two proportions, with one order added to each side of which it is true and
    one of which it is not (Agresti and Caffo, 2000), so that none in two hundred is not taken for
    never. The variance is that between merchants (the ratio estimator's), and at least the
    binomial one.
    """
    (ours, our_variance), (theirs, their_variance) = _rate(canary), _rate(stable)
    return Comparison(
        canary=_mean(canary),
        stable=_mean(stable),
        estimate=ours - theirs,
        error=sqrt(our_variance + their_variance),
        degrees=min(len(canary), len(stable)) - 1,
    )


def quantiles(
    canary: Sequence[Sequence[float]], stable: Sequence[Sequence[float]], share: float
) -> Comparison:
    """The logarithm of the ratio of two quantiles of times, of which each merchant has some.

    Each quantile's error is Woodruff's (1952): how far the share of times above it may be off,
    read back on the scale of times. It is infinite while there are too few times to say.
    """
    (ours, our_error), (theirs, their_error) = _quantile(canary, share), _quantile(stable, share)
    return Comparison(
        canary=ours,
        stable=theirs,
        estimate=log(ours / theirs),
        error=sqrt(our_error**2 + their_error**2),
        degrees=min(len(canary), len(stable)) - 1,
    )


def costs(canary: Sequence[tuple[float, int]], stable: Sequence[tuple[float, int]]) -> Comparison:
    """The logarithm of the ratio of two costs an order, seen for a while: (cost, orders) each time.

    The spread is that between the times (the ratio estimator's, by the delta method).
    """
    (ours, our_error), (theirs, their_error) = _cost(canary), _cost(stable)
    return Comparison(
        canary=ours,
        stable=theirs,
        estimate=log(ours / theirs),
        error=sqrt(our_error**2 + their_error**2),
        degrees=min(len(canary), len(stable)) - 1,
    )


def student(confidence: float, degrees: int) -> float:
    """Student's quantile, by the first terms of its expansion; infinite for no degrees at all."""
    if degrees < 1:
        return inf
    z = NormalDist().inv_cdf(confidence)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / degrees**power for power, term in enumerate(terms)))


def _mean(merchants: Sequence[tuple[float, int]]) -> float:
    return sum(part for part, _ in merchants) / max(1, sum(orders for _, orders in merchants))


def _rate(merchants: Sequence[tuple[int, int]]) -> tuple[float, float]:
    orders = sum(each for _, each in merchants) + 2
    rate = (sum(part for part, _ in merchants) + 1) / orders
    return rate, max(rate * (1 - rate) / orders, _between(merchants))


def _between(observed: Sequence[tuple[float, int]]) -> float:
    """The variance of a ratio of sums, estimated from how its parts differ."""
    number, mean = len(observed), _mean(observed)
    if number < 2:
        return inf
    spread = sum((part - mean * orders) ** 2 for part, orders in observed)
    return number / (number - 1) * spread / max(1, sum(orders for _, orders in observed)) ** 2


def _quantile(merchants: Sequence[Sequence[float]], share: float) -> tuple[float, float]:
    times = sorted(time for each in merchants for time in each)

    def at(part: float) -> float:
        return times[min(len(times), max(1, ceil(part * len(times)))) - 1]

    value = at(share)
    above = [(sum(time > value for time in each), len(each)) for each in merchants]
    off = sqrt(max(share * (1 - share) / len(times), _between(above)))
    if ceil((share + off) * len(times)) >= len(times):
        return value, inf
    return value, (log(at(share + off)) - log(at(share - off))) / 2


def _cost(times: Sequence[tuple[float, int]]) -> tuple[float, float]:
    cost = _mean(times)
    return cost, sqrt(_between(times)) / cost


def ratio(logarithm: float) -> float:
    """What a logarithm of a ratio stands for."""
    return exp(logarithm) if logarithm < 700 else inf
