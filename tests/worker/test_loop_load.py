"""How busy a real loop of gevent's is, by an injected clock."""

from collections.abc import Iterator

import gevent
import pytest

from pos_gateway.worker.loop_load import LoopLoad


class Load:
    """A loop's turns, by a clock that moves only where the test says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.turns: list[tuple[float, float]] = []
        self.spent = 0.0
        self.of_it = self.on(1.0)

    def on(self, cores: float) -> LoopLoad:
        return LoopLoad(
            gevent.get_hub().loop, self._turned, cores, lambda: self.time, lambda: self.spent
        )

    def _turned(self, busy: float, passed: float) -> None:
        self.turns.append((busy, passed))

    def work(self, seconds: float) -> None:
        self.time += seconds

    def total(self) -> tuple[float, float]:
        busy, passed = zip(*self.turns, strict=True)
        return sum(busy), sum(passed)


@pytest.fixture
def load() -> Iterator[Load]:
    load = Load()
    load.of_it.start()
    gevent.sleep(0.001)
    load.turns.clear()
    yield load
    load.of_it.stop()


def test_what_green_threads_do_is_busy_time(load: Load) -> None:
    for _ in range(3):
        gevent.spawn(load.work, 0.2)
    gevent.sleep(0.001)
    gevent.sleep(0.001)
    busy, passed = load.total()
    assert busy == pytest.approx(0.6)
    assert passed == pytest.approx(0.6)


def test_what_timers_do_is_busy_time(load: Load) -> None:
    timer = gevent.get_hub().loop.timer(0.001)
    timer.start(load.work, 0.3)
    gevent.sleep(0.01)
    gevent.sleep(0.001)
    timer.close()
    assert load.total()[0] == pytest.approx(0.3)


def test_a_wait_is_not(load: Load) -> None:
    poll = gevent.get_hub().loop.prepare(ref=False, priority=-2)
    load.of_it.stop()
    # The first of two watchers runs last, when the loop is about to wait.
    poll.start(load.work, 0.5)
    load.of_it = load.on(1.0)
    load.of_it.start()
    gevent.sleep(0.001)
    poll.close()
    gevent.sleep(0.001)
    busy, passed = load.total()
    assert passed >= 0.5
    assert busy == 0


@pytest.mark.parametrize(("cores", "busy"), [(0.5, 0.4), (1.0, 0.1)])
def test_other_threads_take_from_a_quota_of_less_than_a_core(
    load: Load, cores: float, busy: float
) -> None:
    load.of_it.stop()
    load.of_it = load.on(cores)
    load.of_it.start()
    gevent.sleep(0.001)
    load.turns.clear()
    load.work(0.1)
    load.spent += 0.4
    gevent.sleep(0.001)
    gevent.sleep(0.001)
    assert load.total()[0] == pytest.approx(busy)


def test_nothing_is_told_once_it_is_stopped(load: Load) -> None:
    load.of_it.stop()
    gevent.sleep(0.001)
    assert load.turns == []


def test_a_loop_without_such_watchers_is_not_measured() -> None:
    class Libuv:
        def prepare(self, **_: object) -> None:
            raise TypeError("prepare watchers are not currently supported in libuv")

    load = LoopLoad(Libuv(), lambda *_: None)
    load.start()
    load.stop()
