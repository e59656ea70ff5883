"""Turns of suspects: one at a time, and not for long."""

from collections.abc import Callable

import pytest

from pos_gateway.ledger.states import SUSPECT, ClaimResult, LeasedElsewhere, Suspected
from pos_gateway.processing import poison
from pos_gateway.processing.poison import ISOLATED_FOR, PoisonIsolation

WAITS, STARTS = Suspected(SUSPECT), LeasedElsewhere("")


class Timer:
    """Fires when the test says."""

    def __init__(self, seconds: float, fire: Callable[[], None]) -> None:
        assert seconds == ISOLATED_FOR
        self.fire = fire

    def start(self) -> None:
        timers.append(self)

    def cancel(self) -> None:
        pass


timers: list[Timer] = []


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch) -> PoisonIsolation:
    timers.clear()
    monkeypatch.setattr(poison.threading, "Timer", Timer)
    return PoisonIsolation()


def a_suspect(unless_suspect: bool) -> ClaimResult:
    return WAITS if unless_suspect else STARTS


def test_a_suspect_waits_for_the_one_before(isolation: PoisonIsolation) -> None:
    with isolation.turn() as second:
        with isolation.turn() as first:
            assert first.claim(a_suspect) is STARTS
            assert first.claim(a_suspect) is STARTS, "it is alone already"
            assert second.claim(a_suspect) is WAITS
        assert second.claim(a_suspect) is STARTS


def test_a_slow_suspect_delays_the_others_for_a_while_only(isolation: PoisonIsolation) -> None:
    with isolation.turn() as slow, isolation.turn() as second, isolation.turn() as third:
        assert slow.claim(a_suspect) is STARTS
        timers.pop().fire()
        assert second.claim(a_suspect) is STARTS
        slow.__exit__()
        assert third.claim(a_suspect) is WAITS, "the slow one's end is not the second one's"


def test_others_start_beside_a_suspect(isolation: PoisonIsolation) -> None:
    with isolation.turn() as suspect, isolation.turn() as other:
        assert suspect.claim(a_suspect) is STARTS
        assert other.claim(lambda _: STARTS) is STARTS
