"""Turns of suspects: one at a time, and not for long."""

from collections.abc import Callable

import pytest

from pos_gateway.attempt import poison
from pos_gateway.attempt.poison import ISOLATED_FOR, PoisonIsolation
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.states import SUSPECT, ClaimResult, LeasedElsewhere, Suspected

WAITS, STARTS = Suspected(SUSPECT), LeasedElsewhere("")


class Timer:
    """Fires when the test says."""

    def __init__(self, seconds: float, fire: Callable[[], None]) -> None:
        assert seconds == ISOLATED_FOR
        self.fire = fire

    def start(self) -> None:
        if not may_start_threads:
            raise RuntimeError("can't start new thread")
        timers.append(self)

    def cancel(self) -> None:
        pass


timers: list[Timer] = []
may_start_threads = [True]


@pytest.fixture
def isolation(monkeypatch: pytest.MonkeyPatch) -> PoisonIsolation:
    timers.clear()
    may_start_threads[:] = [True]
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


def test_its_time_begins_with_its_claim(isolation: PoisonIsolation) -> None:
    """The database may be away for longer than that."""
    begun: list[int] = []

    def claim(unless_suspect: bool) -> ClaimResult:
        begun.append(len(timers))
        return a_suspect(unless_suspect)

    with isolation.turn() as turn:
        turn.claim(claim)
        assert (begun, len(timers)) == ([0, 0], 1)


def test_without_a_thread_for_its_time_it_is_alone_to_its_end(isolation: PoisonIsolation) -> None:
    may_start_threads.clear()
    with isolation.turn() as second:
        with isolation.turn() as first:
            assert first.claim(a_suspect) is STARTS
            assert second.claim(a_suspect) is WAITS
        assert second.claim(a_suspect) is STARTS


def test_a_claim_that_fails_ends_the_turn(isolation: PoisonIsolation) -> None:
    def fails(unless_suspect: bool) -> ClaimResult:
        if unless_suspect:
            return WAITS
        raise LedgerUnavailable("away")

    with pytest.raises(LedgerUnavailable), isolation.turn() as turn:
        turn.claim(fails)
    with isolation.turn() as turn:
        assert turn.claim(a_suspect) is STARTS


def test_others_start_beside_a_suspect(isolation: PoisonIsolation) -> None:
    with isolation.turn() as suspect, isolation.turn() as other:
        assert suspect.claim(a_suspect) is STARTS
        assert other.claim(lambda _: STARTS) is STARTS
