"""Each scene of a worker with a part of a core, in virtual time, and what happens without a rule."""

import os
from statistics import median

import pytest

from tests.admission.adversaries.scarce_cpu import (
    ALIKE,
    AT_ONCE,
    CORES,
    EXPIRING,
    FLOODS,
    HANGING,
    RETURNING,
    RULES,
    SCENES,
    SEEDS,
    Scene,
    gets_through,
)
from tests.admission.adversaries.scarce_cpu import latency as milliseconds

ALL = os.environ.get("FAULTS") == "all"


@pytest.mark.parametrize("scene", SCENES, ids=lambda each: f"{each.name}-{each.cores:g}")
def test_others_take_no_cpu_that_healthy_orders_need(scene: Scene) -> None:
    seeds = range(1, 10) if ALL else SEEDS
    assert scene.broken(*map(scene.play, seeds)) == []


def test_hundreds_of_orders_that_come_at_once_delay_others_by_their_reading_alone() -> None:
    driver = AT_ONCE.play()
    # 300 orders are read before those behind them, in two and a half periods of half a core.
    assert milliseconds(driver) < 300 + CORES[AT_ONCE.cores][1]
    assert milliseconds(driver, 0.9) < CORES[AT_ONCE.cores][1]


def test_thousands_of_orders_that_expire_at_once_delay_no_others() -> None:
    drivers = [
        EXPIRING.play(seed) for seed in SEEDS
    ]  # the number strays by a third from seed to seed
    assert EXPIRING.broken(*drivers) == []
    assert median(driver.seen["others"].expired for driver in drivers) > 850


def test_hundreds_of_strangers_that_hang_delay_no_others_once_their_orders_are_parked() -> None:
    assert HANGING.broken(HANGING.play()) == []


def test_merchants_that_return_with_parked_orders_let_healthy_ones_keep_up() -> None:
    assert RETURNING.broken(RETURNING.play()) == []


@pytest.mark.parametrize("scene", ALIKE, ids=lambda each: each.name)
def test_no_order_is_parked_where_all_merchants_are_alike(scene: Scene) -> None:
    assert scene.broken(scene.play()) == []


@pytest.mark.parametrize("scene", FLOODS, ids=lambda each: f"{each.healthy} healthy")
def test_a_worker_that_starts_in_a_flood_starts_healthy_orders_first(scene: Scene) -> None:
    assert scene.broken(scene.play()) == []


@pytest.mark.parametrize("rule", RULES if ALL else [*RULES][-1:])
def test_without_a_rule_a_scene_breaks_a_promise(rule: str) -> None:
    assert next(gets_through(rule), None) is not None
