"""Suspects run one at a time, and not alone for long."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from greenlet import GreenletExit

from pos_gateway.attempt import poison
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.call import Caller
from pos_gateway.attempt.poison import ISOLATED_FOR
from pos_gateway.broker.wire import RawMessage
from pos_gateway.ledger.states import SUSPECT, ClaimResult, Key, LeasedElsewhere, Suspected
from tests.gate import Gate

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


class Suspect(Attempt[Any]):
    def __init__(self, caller: Caller) -> None:
        super().__init__(None, RawMessage(b""))
        self.caller = caller

    def claim(self) -> ClaimResult:
        return self.caller.claim(self, Key("m", "o"), unless_suspect=True)

    def end(self) -> None:
        assert self.alone is not None
        self.alone.end()


def a_suspect(_: Key, unless_suspect: bool = False) -> ClaimResult:
    return WAITS if unless_suspect else STARTS


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    timers.clear()
    may_start_threads[:] = [True]
    monkeypatch.setattr(poison.threading, "Timer", Timer)
    ledger: Any = SimpleNamespace(claim=a_suspect)
    none: Any = SimpleNamespace(send=None)
    return Caller(directory=none, transport=none, ledger=ledger, default_concurrency=1, default_timeout=1)  # fmt: skip


def test_a_suspect_waits_for_the_one_before(caller: Caller) -> None:
    first, second = Suspect(caller), Suspect(caller)
    assert first.claim() is STARTS
    assert first.claim() is STARTS, "it is alone already"
    assert second.claim() is WAITS
    first.end()
    assert second.claim() is STARTS


def test_a_slow_suspect_delays_the_others_for_a_while_only(caller: Caller) -> None:
    slow, second, third = Suspect(caller), Suspect(caller), Suspect(caller)
    assert slow.claim() is STARTS
    timers.pop().fire()
    assert second.claim() is STARTS
    slow.end()
    assert third.claim() is WAITS, "the slow one's end is not the second one's"


def test_its_time_begins_with_its_claim(caller: Caller) -> None:
    """The database may be away for longer than that."""
    begun: list[int] = []
    caller.ledger.claim = lambda *_, unless_suspect=False: (  # type: ignore[assignment, method-assign]
        begun.append(len(timers)) or a_suspect(*_, unless_suspect)
    )
    Suspect(caller).claim()
    assert (begun, len(timers)) == ([0, 0], 1)


def test_without_a_thread_for_its_time_it_is_alone_to_its_end(caller: Caller) -> None:
    may_start_threads.clear()
    test_a_suspect_waits_for_the_one_before(caller)


def test_a_killed_attempt_lets_the_next_suspect_start(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (503, {}))
    gate.take(order := gate.an_order())
    with gate.database.begin() as connection:
        connection.exec_driver_sql(f"update orders set deaths = {SUSPECT}")

    def killed(_: Any) -> Any:
        assert gate.caller._suspects.locked()
        raise GreenletExit

    gate.pos = killed
    with pytest.raises(GreenletExit):
        gate.take(order)
    assert not gate.caller._suspects.locked()


def test_others_start_beside_a_suspect(caller: Caller) -> None:
    assert Suspect(caller).claim() is STARTS
    caller.ledger.claim = lambda *_, **__: STARTS  # type: ignore[assignment, method-assign]
    other = Suspect(caller)
    assert (other.claim(), other.alone) == (STARTS, None)
