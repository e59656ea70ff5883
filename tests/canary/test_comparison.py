"""The statistics are right about simulated rollouts with a known difference."""

from math import inf, log
from random import Random

import pytest

from pos_gateway.canary.comparison import Comparison, costs, quantiles, rates, student_t
from pos_gateway.canary.verdict import CERTAIN, LIKELY, POINTS, SHARE, CanaryFinding, found
from tests.canary.trials import growing, rollouts, times

RUNS = 200


def is_worse(compared: Comparison, matters: float) -> bool:
    return found(compared, matters) is CanaryFinding.WORSE


def is_fine(compared: Comparison, matters: float) -> bool:
    return found(compared, matters) is CanaryFinding.FINE


@pytest.mark.parametrize(
    ("confidence", "degrees", "quantile"),
    [  # from printed tables
        (0.95, 4, 2.132),
        (0.95, 9, 1.833),
        (0.95, 30, 1.697),
        (0.999, 4, 7.173),
        (0.999, 9, 4.297),
        (0.999, 30, 3.385),
        (0.999, 100_000, 3.090),
    ],
)
def test_students_quantiles_match_printed_tables(
    confidence: float, degrees: int, quantile: float
) -> None:
    assert student_t(confidence, degrees) == pytest.approx(quantile, rel=0.04)


def test_one_merchant_is_no_evidence() -> None:
    assert student_t(0.95, 0) == inf
    compared = rates([(40, 40)], [(0, 40)] * 100)
    assert (compared.at_least(CERTAIN), compared.at_most(LIKELY)) == (-inf, inf)


def test_a_canary_that_is_no_worse_is_hardly_ever_called_worse() -> None:
    """Also not because it has more of the merchants that reject a lot, by chance."""
    found = sum(is_worse(rates(*each), POINTS) for each in rollouts(RUNS, canary=30, stable=270))
    assert found <= 0.005 * RUNS


def test_nor_when_it_is_judged_every_minute_for_an_hour() -> None:
    aborted = 0
    for seed in range(100):
        chance = Random(seed)
        looks = zip(growing(chance, 30, 60), growing(chance, 270, 60), strict=True)
        aborted += any(is_worse(rates(*each), POINTS) for each in looks)
    assert aborted <= 1


def test_a_canary_that_fails_more_orders_is_found() -> None:
    found = sum(
        is_worse(rates(*each), POINTS) for each in rollouts(RUNS, canary=30, stable=270, more=0.08)
    )
    assert found >= 0.9 * RUNS


def test_a_relevant_difference_is_hardly_ever_promoted_and_no_difference_mostly_is() -> None:
    worse, same = (
        sum(
            is_fine(rates(*each), POINTS)
            for each in rollouts(RUNS, canary=300, stable=300, more=more)
        )
        for more in (2 * POINTS, 0.0)
    )
    assert worse <= 0.01 * RUNS
    assert same >= 0.9 * RUNS


def test_no_failure_among_few_orders_is_not_a_rate_of_zero() -> None:
    few, many = [(0, 10)] * 20, [(0, 10)] * 200
    assert not is_fine(rates(few, many), POINTS)
    assert is_fine(rates(many, many), POINTS)


def test_one_merchant_whose_orders_all_fail_is_one_observation() -> None:
    """As many failures of all merchants point at the canary; of one they point at the merchant."""
    stable = [(0, 20)] * 300
    assert not is_worse(rates([(20, 20), *[(0, 20)] * 29], stable), POINTS)
    assert is_worse(rates([(1, 20)] * 20 + [(0, 20)] * 10, stable), POINTS)


def test_equal_times_are_hardly_ever_called_slower_and_slower_ones_are() -> None:
    alike = slower = fine = 0
    for seed in range(100):
        chance = Random(seed)
        stable = times(chance, 200)
        same = quantiles(times(chance, 40), stable, 0.99)
        alike += is_worse(same, log(1 + SHARE))
        more = quantiles(times(chance, 200), stable, 0.99)
        fine += is_fine(more, log(1 + SHARE))
        slower += is_worse(quantiles(times(chance, 40, slower=2), stable, 0.99), log(1 + SHARE))
    assert alike == 0
    assert slower >= 95
    assert fine >= 80


def test_a_quantile_and_its_share_are_right() -> None:
    numbers = [[float(each)] for each in range(1, 1001)]
    compared = quantiles(numbers, numbers, 0.99)
    assert (compared.canary, compared.stable, compared.estimate) == (990.0, 990.0, 0.0)


def test_too_few_times_have_no_99th_percentile() -> None:
    few = [[1.0] * 10] * 20
    compared = quantiles(few, few, 0.99)
    assert (compared.at_least(CERTAIN), compared.at_most(LIKELY)) == (-inf, inf)


def test_a_difference_in_cost_is_distinguished_from_its_spread() -> None:
    alike = dearer = fine = 0
    for seed in range(RUNS):
        chance = Random(seed)

        def looks(cost: float, chance: Random = chance) -> list[tuple[float, int]]:
            orders = [chance.randint(50, 150) for _ in range(10)]
            return [(cost * n * chance.uniform(0.8, 1.2), n) for n in orders]

        alike += is_worse(costs(looks(0.001), looks(0.001)), log(1 + SHARE))
        fine += is_fine(costs(looks(0.001), looks(0.001)), log(1 + SHARE))
        dearer += is_worse(costs(looks(0.0015), looks(0.001)), log(1 + SHARE))
    assert alike == 0
    assert fine >= 0.95 * RUNS
    assert dearer >= 0.95 * RUNS


def test_scrapes_without_an_order_are_harmless() -> None:
    compared = costs([(0.0, 0), (0.1, 100), (0.12, 100), (0.11, 100)], [(0.1, 100)] * 4)
    assert compared.canary == pytest.approx(0.0011)
