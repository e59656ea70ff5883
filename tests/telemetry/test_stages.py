"""The durations of an attempt's stages, with a clock that the test sets."""

from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any

import pytest

from pos_gateway.telemetry import stages as subject
from pos_gateway.telemetry.stages import Stages


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Sets the time."""
    moment = [100.0]
    monkeypatch.setattr(subject, "perf_counter", lambda: moment[0])
    yield lambda now: moment.__setitem__(0, now)


def in_a_new_thread(do: Callable[[], Stages]) -> Stages:
    return Context().run(do)


def figures(stages: Stages) -> tuple[Any, ...]:
    return stages.waited, stages.claim, stages.connect, stages.first_byte, stages.total


def test_every_stage_has_its_duration(clock: Callable[[float], None]) -> None:
    def attempt() -> Stages:
        subject.begin(received=90.0)
        clock(101.0)
        stages = subject.call()
        subject.connecting(0.5)
        subject.connecting(0.25)
        clock(104.0)
        subject.replied()
        clock(106.0)
        return stages

    assert figures(in_a_new_thread(attempt)) == (10.0, 1.0, 0.75, 3.0, 5.0)


def test_a_stage_that_was_not_reached_has_no_duration(clock: Callable[[float], None]) -> None:
    def attempt() -> Stages:
        subject.begin()
        return subject.call()

    assert figures(in_a_new_thread(attempt)) == (None, 0.0, 0.0, None, 0.0)


def test_an_unannounced_call_is_timed_too(clock: Callable[[float], None]) -> None:
    def attempt() -> Stages:
        stages = subject.call()
        clock(101.0)
        subject.replied()
        return stages

    assert in_a_new_thread(attempt).first_byte == 1.0


def test_an_attempts_durations_are_not_the_next_ones(clock: Callable[[float], None]) -> None:
    def attempts() -> Stages:
        subject.begin(received=90.0)
        subject.call()
        subject.connecting(0.5)
        subject.replied()
        subject.begin(received=100.0)
        return subject.call()

    assert figures(in_a_new_thread(attempts)) == (0.0, 0.0, 0.0, None, 0.0)


def test_two_green_threads_have_separate_durations() -> None:
    first, second = Context(), Context()
    one, other = first.run(subject.call), second.run(subject.call)
    first.run(subject.connecting, 1.0)
    assert (one.connect, other.connect) == (1.0, 0.0)


def test_a_connection_outside_an_attempt_counts_for_none(clock: Callable[[float], None]) -> None:
    context = Context()
    context.run(subject.connecting, 1.0)
    context.run(subject.replied)
    clock(105.0)
    assert figures(context.run(subject.call)) == (None, 0.0, 0.0, None, 0.0)
