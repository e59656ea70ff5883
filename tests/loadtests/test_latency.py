"""Latencies by chance: as often as they were asked for, and in no pattern, with a fixed seed."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import sqrt
from random import Random
from statistics import fmean, pvariance

import pytest

from pos_gateway.simulated_merchants.latency import parse_latency

NUMBER = 20_000


def drawn(value: object, seed: int = 1) -> list[float]:
    latency, chance = parse_latency(value), Random(seed)
    return [latency.draw(chance) for _ in range(NUMBER)]


def share(seconds: Sequence[float], wanted: Callable[[float], bool]) -> float:
    return sum(map(wanted, seconds)) / len(seconds)


def autocorrelation(seconds: Sequence[float]) -> float:
    """Whether a long latency follows a long one (1), or a short one (-1); 0 is chance."""
    mean = fmean(seconds)
    products = [(a - mean) * (b - mean) for a, b in pairwise(seconds)]
    return fmean(products) / pvariance(seconds)


def test_quantiles_are_met_and_it_is_even_between_them() -> None:
    seconds = drawn({"quantiles": [[0, 0.02], [0.5, 0.05], [0.9, 0.45], [1, 3]]})

    assert min(seconds) >= 0.02
    assert max(seconds) <= 3
    assert share(seconds, lambda each: each <= 0.05) == pytest.approx(0.5, abs=0.01)
    assert share(seconds, lambda each: each <= 0.25) == pytest.approx(0.7, abs=0.01)
    assert share(seconds, lambda each: each <= 0.45) == pytest.approx(0.9, abs=0.01)


def test_a_lognormal_has_its_median_and_its_tail() -> None:
    seconds = sorted(drawn({"lognormal": [0.1, 0.5]}))

    assert seconds[NUMBER // 2] == pytest.approx(0.1, rel=0.02)
    assert seconds[int(0.99 * NUMBER)] == pytest.approx(0.1 * 2.718 ** (0.5 * 2.326), rel=0.05)


def test_weights_say_how_often_each_distribution_is_drawn_from() -> None:
    seconds = drawn({"weighted": [[9, 0.05], [1, {"uniform": [2, 4]}]]})

    assert share(seconds, lambda each: each == 0.05) == pytest.approx(0.9, abs=0.01)
    assert share(seconds, lambda each: 2 <= each < 3) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize(
    "value",
    [
        {"weighted": [[3, 0.05], [1, 2.0]]},
        {"quantiles": [[0, 0.02], [0.9, 0.1], [1, 3]]},
        {"lognormal": [0.1, 0.5]},
    ],
)
def test_what_was_drawn_says_nothing_about_what_comes_next(value: object) -> None:
    assert abs(autocorrelation(drawn(value))) < 4 / sqrt(NUMBER)


def test_the_runs_of_a_weighted_latency_are_as_long_as_chance_makes_them() -> None:
    # Wald and Wolfowitz: with slow replies strewn evenly there are more runs, in bursts fewer.
    slow = [each > 1 for each in drawn({"weighted": [[3, 0.05], [1, 2.0]]})]
    ones = sum(slow)
    zeros = NUMBER - ones
    runs = 1 + sum(a != b for a, b in pairwise(slow))
    expected = 1 + 2 * ones * zeros / NUMBER
    deviation = sqrt((expected - 1) * (expected - 2) / (NUMBER - 1))
    assert abs(runs - expected) < 4 * deviation


def test_the_same_seed_draws_the_same_and_another_one_does_not() -> None:
    value = {"lognormal": [0.1, 0.5]}
    assert drawn(value) == drawn(value)
    assert drawn(value) != drawn(value, seed=2)
