"""The statistics: compares the canary's merchants with the others.

A merchant is in one group with all of its orders, which resemble each other. So a figure's error is
estimated between merchants, not between orders: a merchant whose POS is down is one observation,
however many orders it rejects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log, sqrt
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Comparison:
    """The canary against the stable side: a difference, or the logarithm of a ratio."""

    canary: float
    stable: float
    estimate: float
    #: Standard error of the estimate, and the degrees of freedom it is known with.
    error: float
    degrees: int

    def at_least(self, confidence: float) -> float:
        """The lower bound, with this (one-sided) confidence."""
        return self.estimate - student_t(confidence, self.degrees) * self.error

    def at_most(self, confidence: float) -> float:
        """The upper bound, likewise."""
        return self.estimate + student_t(confidence, self.degrees) * self.error


def rates(canary: Sequence[tuple[int, int]], stable: Sequence[tuple[int, int]]) -> Comparison:
    """The difference of two proportions, from each merchant's (orders that count, orders).

    One order that counts and one that does not are added to each side (Agresti and Caffo, 2000),
    so that none in two hundred is not taken for never. The variance is that between merchants (the
    ratio estimator's), and at least the binomial one.
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
    """The logarithm of the ratio of two quantiles, from each merchant's times.

    Each quantile's error is Woodruff's (1952): the error of the share of times above it, mapped
    back to times. It is infinite while there are too few times.
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
    """The logarithm of the ratio of two costs an order, from samples of (cost, orders).

    The spread is that between the samples (the ratio estimator's, by the delta method).
    """
    (ours, our_error), (theirs, their_error) = _cost(canary), _cost(stable)
    return Comparison(
        canary=ours,
        stable=theirs,
        estimate=log(ours / theirs),
        error=sqrt(our_error**2 + their_error**2),
        degrees=min(len(canary), len(stable)) - 1,
    )


def student_t(confidence: float, degrees: int) -> float:
    """Student's quantile, by the first terms of its expansion; infinite without any degree."""
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
    """The ratio of which this is the logarithm."""
    return exp(logarithm) if logarithm < 700 else inf
