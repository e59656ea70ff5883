"""The verdict that follows from the evidence, and its wording."""

from collections import Counter
from typing import Any

import pytest

from pos_gateway.canary.comparison import Comparison
from pos_gateway.canary.evidence import OUTCOMES, Side
from pos_gateway.canary.verdict import (
    ALIKE,
    POINTS,
    SHARE,
    CanaryDecision,
    CanaryFinding,
    CanaryVerdict,
    Measure,
    Spent,
    found,
)
from pos_gateway.canary.verdict import judge as _judge


def a_side(merchants: int = 60, each: int = 40, *, seconds: float = 0.5, **bad: int) -> Side:
    """Merchants with this many orders each, some of which had a bad outcome."""
    names = [f"m{number}" for number in range(merchants)]
    counts = Counter(accepted=each - sum(bad.values()), **bad)
    times = [seconds * (1 + number / 1000) for number in range(each)]
    return Side(dict.fromkeys(names, counts), dict.fromkeys(names, times))


def judge(*sides_and_cpu: Any, own_workers: int = 1, **more: Any) -> CanaryVerdict:
    return _judge(*sides_and_cpu, own_workers=own_workers, **more)


def looks(orders: int, *, idle: float = 0.0, each: float = 0.001, processes: int = 1) -> Any:
    """Workers with a fixed cost, and a cost for each order."""
    return [Spent(processes * idle + each * orders, orders, processes)] * 10


CHEAP, DEAR = looks(100), looks(100, each=0.002)


def finding(verdict: CanaryVerdict, name: str) -> Measure:
    return next(each for each in verdict.measures if each.name == name)


def test_a_canary_like_the_others_is_promoted() -> None:
    verdict = judge(a_side(), a_side(), (CHEAP, CHEAP))
    assert verdict.decision is CanaryDecision.PROMOTE
    assert [each.name for each in verdict.measures] == [
        *(*OUTCOMES, "healthy p99", "own workers", "CPU an order"),
    ]
    assert {each.finding for each in verdict.measures} == {CanaryFinding.FINE}


@pytest.mark.parametrize(
    ("worse", "canary", "more"),
    [
        *((name, a_side(**{name: 4}), {}) for name in OUTCOMES),
        ("healthy p99", a_side(seconds=0.8), {}),
        ("CPU an order", a_side(), {"cpu": (DEAR, CHEAP)}),
        ("queue", a_side(), {"stranded": 3}),
    ],
)
def test_any_worse_measure_aborts_the_canary(
    worse: str, canary: Side, more: dict[str, Any]
) -> None:
    verdict = judge(canary, a_side(), **more)
    assert verdict.decision is CanaryDecision.ABORT
    assert [each.name for each in verdict.measures if each.finding is CanaryFinding.WORSE] == [
        worse
    ]


def test_a_better_canary_is_promoted() -> None:
    stable = a_side(seconds=5.0, rejected=4)
    assert judge(a_side(), stable, (CHEAP, DEAR)).decision is CanaryDecision.PROMOTE


@pytest.mark.parametrize(
    ("estimate", "error", "finding"),
    [
        (0.0, 0.001, CanaryFinding.FINE),
        (0.005, 0.001, CanaryFinding.FINE),  # certainly worse, by less than what matters
        (0.009, 0.002, CanaryFinding.UNKNOWN),
        (0.0, 0.01, CanaryFinding.UNKNOWN),
        (0.02, 0.01, CanaryFinding.UNKNOWN),  # worse by what matters, if it is no accident
        (0.02, 0.002, CanaryFinding.WORSE),
        (-0.02, 0.01, CanaryFinding.FINE),
    ],
)
def test_a_certain_relevant_difference_is_worse_and_a_likely_irrelevant_one_is_fine(
    estimate: float, error: float, finding: CanaryFinding
) -> None:
    compared = Comparison(0.0, 0.0, estimate, error, degrees=100)
    assert found(compared, POINTS) is finding


@pytest.mark.parametrize(
    "few", [a_side(4, 1000), a_side(10, 5), Side({}, {})], ids=["merchants", "orders", "none"]
)
def test_too_few_orders_on_either_side_are_waited_for(few: Side) -> None:
    for sides in ((few, a_side()), (a_side(), few)):
        verdict = judge(*sides)
        assert verdict.decision is CanaryDecision.HOLD
        lacks = f"{few.orders} of the 200 orders and {len(few.outcomes)} of the 5 merchants"
        assert lacks in finding(verdict, "outcomes").why
        assert lacks in finding(verdict, "healthy p99").why


def test_the_cpu_cost_of_too_few_orders_is_waited_for() -> None:
    verdict = judge(a_side(), a_side(), (looks(10), looks(10)))
    assert verdict.decision is CanaryDecision.HOLD
    assert "the canary has ended 100 of the 200 orders" in finding(verdict, "CPU an order").why


@pytest.mark.parametrize("orders", [0, 1, 25, 50, 80, 90, 100, 110, 121, 400])
@pytest.mark.parametrize(("idle", "each"), [(0.05, 0.001), (0.05, 0.0)])
def test_a_workers_idle_cost_does_not_count_against_the_canary(
    orders: int, idle: float, each: float
) -> None:
    """Few orders or many share it: a canary like the others is never worse for it."""
    canary, stable = looks(orders, idle=idle, each=each), looks(100, idle=idle, each=each)
    verdict = judge(a_side(), a_side(), (canary, stable))
    assert verdict.decision is CanaryDecision.PROMOTE
    alike = 100 / ALIKE <= orders <= 100 * ALIKE
    measure = finding(verdict, "CPU an order")
    assert measure.finding is (CanaryFinding.FINE if alike else CanaryFinding.LEFT_OUT)
    assert alike or f"{10 * orders} orders for a process of the canary's, 1000" in measure.why


def test_the_tolerance_for_load_is_less_than_what_matters() -> None:
    assert ALIKE < 1 + SHARE


def test_orders_are_counted_by_process() -> None:
    for cpu in ((looks(100), looks(400, processes=4)), (looks(200, processes=2), looks(100))):
        assert finding(judge(a_side(), a_side(), cpu), "CPU an order").finding is CanaryFinding.FINE
    alone = looks(100), [Spent(0.0, 0, 0)] * 10  # its page had no process on it
    assert (
        finding(judge(a_side(), a_side(), alone), "CPU an order").finding is CanaryFinding.LEFT_OUT
    )


def test_skipping_cpu_skips_no_other_measure() -> None:
    apart = looks(10), CHEAP
    assert judge(a_side(failed=4), a_side(), apart).decision is CanaryDecision.ABORT
    assert judge(a_side(10, 5), a_side(), apart).decision is CanaryDecision.HOLD


@pytest.mark.parametrize("own_workers", [0, -2])
def test_a_canary_without_workers_is_waited_for(own_workers: int) -> None:
    """The other workers may have delivered all of its orders, as well as their own."""
    verdict = judge(a_side(), a_side(), own_workers=own_workers)
    assert verdict.decision is CanaryDecision.HOLD
    assert finding(verdict, "own workers").finding is CanaryFinding.UNKNOWN
    assert judge(a_side(failed=4), a_side(), own_workers=0).decision is CanaryDecision.ABORT


def test_worse_outweighs_unknown() -> None:
    nothing_known = Side(a_side(failed=4).outcomes, {})
    assert judge(nothing_known, a_side()).decision is CanaryDecision.ABORT


def test_figures_are_printed_with_their_uncertainty() -> None:
    verdict = judge(a_side(rejected=2), a_side(rejected=2), (DEAR, CHEAP))
    said = finding(verdict, "rejected").why
    assert said.startswith("5.00% of the canary's orders, 5.00% of the others': between -1.")
    assert said.endswith(" points")
    said = finding(verdict, "CPU an order").why
    assert said == "2 ms in the canary, 1 ms in the others: between 2.00 and 2.00 times"
    assert "520 ms in the canary" in finding(verdict, "healthy p99").why
    few = finding(judge(a_side(10, 20), a_side()), "healthy p99")
    assert (few.finding, few.why.endswith("between 0.00 and inf times")) == (
        CanaryFinding.UNKNOWN,
        True,
    )
