"""Steps of the wall clock are noticed."""

import runpy
import time
from datetime import UTC, datetime, timedelta

import pytest

from pos_gateway.runtime import clock
from pos_gateway.runtime.clock import RunningClock, StepWatch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Clocks:
    """Two clocks that a test sets."""

    def __init__(self) -> None:
        self.seconds, self.day = 0.0, NOON

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self.day

    def pass_time(self, seconds: float, *, shown: float | None = None) -> None:
        self.seconds += seconds
        self.day += timedelta(seconds=seconds if shown is None else shown)


def test_a_step_is_noticed_once_in_either_direction() -> None:
    clocks = Clocks()
    watch = StepWatch(clocks)
    clocks.pass_time(10)
    assert watch.stepped() == 0.0
    clocks.pass_time(1, shown=3601)
    assert watch.stepped() == 3600
    assert watch.stepped() == 0.0
    clocks.pass_time(1, shown=-3599)
    assert watch.stepped() == -3600


def test_a_slewed_clock_is_not_stepped() -> None:
    clocks = Clocks()
    watch = StepWatch(clocks)
    for _ in range(100):
        clocks.pass_time(0.5, shown=0.5005)
        assert watch.stepped() == 0.0


def test_a_pause_of_the_process_is_no_step() -> None:
    clocks = Clocks()
    running = RunningClock(0.2, clocks.monotonic)
    began = running.now()
    for _ in range(10):
        clocks.pass_time(0.1)
        running.now()
    assert running.now() - began == pytest.approx(1.0)
    clocks.pass_time(60)  # no read meanwhile: the process was stopped
    assert running.now() - began == pytest.approx(1.2)
    clocks.pass_time(0.1)
    assert running.now() - began == pytest.approx(1.3)


def test_a_rest_counts_and_a_pause_during_it_does_not() -> None:
    clocks = Clocks()
    running = RunningClock(0.2, clocks.monotonic)
    began = running.now()
    running.rest(1.0)
    clocks.pass_time(1.1)
    assert running.now() - began == pytest.approx(1.1)
    clocks.pass_time(60)
    assert running.now() - began == pytest.approx(2.3)
    running.rest(0.0)
    clocks.pass_time(60)
    assert running.now() - began == pytest.approx(2.5)


def test_the_monotonic_clock_counts_the_machines_suspension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    awake, suspended = time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME
    monkeypatch.setattr(time, "clock_gettime", {awake: 10.0, suspended: 3610.0}.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    assert runpy.run_path(clock.__file__)["SYSTEM_CLOCK"].monotonic() == 3610.0
