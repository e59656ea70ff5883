"""Turns of suspects: one at a time, and not for long."""

from collections.abc import Callable
from threading import Lock

import pytest

from pos_gateway.attempt import poison
from pos_gateway.attempt.poison import ISOLATED_FOR, Turn
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
def alone(monkeypatch: pytest.MonkeyPatch) -> Lock:
    timers.clear()
    may_start_threads[:] = [True]
    monkeypatch.setattr(poison.threading, "Timer", Timer)
    return Lock()


def a_suspect(unless_suspect: bool) -> ClaimResult:
    return WAITS if unless_suspect else STARTS


def test_a_suspect_waits_for_the_one_before(alone: Lock) -> None:
    with Turn(alone) as second:
        with Turn(alone) as first:
            assert first.claim(a_suspect) is STARTS
            assert first.claim(a_suspect) is STARTS, "it is alone already"
            assert second.claim(a_suspect) is WAITS
        assert second.claim(a_suspect) is STARTS


def test_a_slow_suspect_delays_the_others_for_a_while_only(alone: Lock) -> None:
    with Turn(alone) as slow, Turn(alone) as second, Turn(alone) as third:
        assert slow.claim(a_suspect) is STARTS
        timers.pop().fire()
        assert second.claim(a_suspect) is STARTS
        slow.__exit__()
        assert third.claim(a_suspect) is WAITS, "the slow one's end is not the second one's"


def test_its_time_begins_with_its_claim(alone: Lock) -> None:
    """The database may be away for longer than that."""
    begun: list[int] = []

    def claim(unless_suspect: bool) -> ClaimResult:
        begun.append(len(timers))
        return a_suspect(unless_suspect)

    with Turn(alone) as turn:
        turn.claim(claim)
        assert (begun, len(timers)) == ([0, 0], 1)


def test_without_a_thread_for_its_time_it_is_alone_to_its_end(alone: Lock) -> None:
    may_start_threads.clear()
    with Turn(alone) as second:
        with Turn(alone) as first:
            assert first.claim(a_suspect) is STARTS
            assert second.claim(a_suspect) is WAITS
        assert second.claim(a_suspect) is STARTS


def test_a_claim_that_fails_ends_the_turn(alone: Lock) -> None:
    def fails(unless_suspect: bool) -> ClaimResult:
        if unless_suspect:
            return WAITS
        raise LedgerUnavailable("away")

    with pytest.raises(LedgerUnavailable), Turn(alone) as turn:
        turn.claim(fails)
    with Turn(alone) as turn:
        assert turn.claim(a_suspect) is STARTS


def test_others_start_beside_a_suspect(alone: Lock) -> None:
    with Turn(alone) as suspect, Turn(alone) as other:
        assert suspect.claim(a_suspect) is STARTS
        assert other.claim(lambda _: STARTS) is STARTS
