"""Each scene of a worker with a part of a core, in virtual time, and what happens without a rule."""

import os

import pytest

from tests.admission.adversaries.scarce_cpu import (
    AT_ONCE,
    CORES,
    EXPIRING,
    RULES,
    SCENES,
    Scene,
    gets_through,
)
from tests.admission.adversaries.scarce_cpu import latency as milliseconds

ALL = os.environ.get("FAULTS") == "all"


@pytest.mark.parametrize("scene", SCENES, ids=lambda each: f"{each.name}-{each.cores:g}")
def test_others_take_no_cpu_that_healthy_orders_need(scene: Scene) -> None:
    seeds = range(1, 10) if ALL else range(1, 4)
    assert scene.broken(*map(scene.play, seeds)) == []


def test_hundreds_of_orders_that_come_at_once_delay_others_by_their_reading_alone() -> None:
    driver = AT_ONCE.play()
    # 300 orders are read before those behind them, in two and a half periods of half a core.
    assert milliseconds(driver) < 300 + CORES[AT_ONCE.cores][1]
    assert milliseconds(driver, 0.9) < CORES[AT_ONCE.cores][1]


def test_thousands_of_orders_that_expire_delay_others_by_their_return_alone() -> None:
    driver = EXPIRING.play()
    # Eighty bundles are read and parked again, in half a second of half a core.
    assert milliseconds(driver) < 200 + CORES[EXPIRING.cores][1]
    assert milliseconds(driver, 0.9) < 2 * CORES[EXPIRING.cores][1]
    assert driver.seen["others"].expired > 100


@pytest.mark.parametrize("rule", RULES if ALL else [*RULES][-1:])
def test_without_a_rule_a_scene_breaks_a_promise(rule: str) -> None:
    assert next(gets_through(rule), None) is not None
