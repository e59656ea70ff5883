"""Green threads that take job after job: each job ends once, however it ends.

=====================================================  ===========================================
adversary                                              promise
=====================================================  ===========================================
a job raises, or is killed in flight                   it ends, and the next one runs
a kill in the moment in which a job is handed over     it ends without having begun
more idle green threads than are worth their memory    the others leave
a stop: Celery joins the pool                          idle ones leave at once, the others after
                                                       their job
=====================================================  ===========================================
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.pool import Pool

from pos_gateway.worker import crew as subject
from pos_gateway.worker.crew import Crew
from testkit.patience import PATIENCE

SIZE = 5


class Scene:
    """A crew whose jobs wait until the test says what becomes of them."""

    def __init__(self) -> None:
        self.pool = Pool(SIZE)
        self.crew: Crew[str] = Crew(lambda: self.pool, self._do, self._end)
        self.began: list[tuple[str, Any]] = []
        self.ended: list[str] = []
        self.outcomes: dict[str, Callable[[], None]] = {}
        self._goes_on: dict[str, Event] = {}

    def _do(self, job: str) -> None:
        self.began.append((job, gevent.getcurrent()))
        self._goes_on.setdefault(job, Event()).wait()
        self.outcomes.get(job, lambda: None)()

    def _end(self, job: str) -> None:
        self.ended.append(job)

    def take(self, *jobs: str) -> None:
        for job in jobs:
            self.crew.take(job)
        gevent.sleep(0)

    def finish(self, *jobs: str) -> None:
        for job in jobs:
            self._goes_on.setdefault(job, Event()).set()
        for _ in range(4):
            gevent.sleep(0)

    def thread_of(self, job: str) -> Any:
        return dict(self.began)[job]

    def join(self) -> None:
        assert self.pool.join(timeout=PATIENCE), "Celery would wait for it for ever"


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_green_thread_takes_job_after_job(scene: Scene) -> None:
    scene.take("a", "b")
    assert scene.crew.busy == 2
    scene.finish("a")
    scene.take("c")
    assert scene.thread_of("c") is scene.thread_of("a")
    assert scene.thread_of("b") is not scene.thread_of("a")
    scene.finish("b", "c")
    assert (scene.ended, scene.crew.busy) == (["a", "b", "c"], 0)
    scene.take("d")
    assert scene.thread_of("d") is scene.thread_of("c"), "the one that was used last"


def test_idle_green_threads_are_few(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_IDLE", 2)
    jobs = "abcde"
    scene.take(*jobs)
    scene.finish(*jobs)
    assert len(scene.pool) == 2


def fail() -> None:
    raise ValueError("a mistake of ours")


def test_a_job_that_raises_ends(scene: Scene) -> None:
    scene.outcomes["a"] = fail
    scene.take("a")
    scene.finish("a")
    assert (scene.ended, scene.crew.busy, len(scene.pool)) == (["a"], 0, 0)
    scene.take("b")
    scene.finish("b")
    assert scene.ended == ["a", "b"]


def test_a_kill_ends_each_job_once_and_the_idle_too(scene: Scene) -> None:
    scene.take("done", "in flight")
    scene.finish("done")
    scene.pool.kill(block=False)
    for _ in range(4):
        gevent.sleep(0)
    assert (scene.ended, scene.crew.busy, len(scene.pool)) == (["done", "in flight"], 0, 0)
    scene.take("later")
    scene.finish("later")
    assert scene.ended[-1] == "later"


def test_a_kill_before_a_job_has_begun_ends_it(scene: Scene) -> None:
    """It was handed to an idle green thread, or to a new one, which has not run since."""
    scene.take("done")
    scene.finish("done")
    scene.pool.kill(block=False)
    scene.crew.take("handed over")
    scene.crew.take("on a new one")
    scene.pool.kill(block=False)
    for _ in range(6):
        gevent.sleep(0)
    assert [job for job, _ in scene.began] == ["done"]
    assert sorted(scene.ended) == ["done", "handed over", "on a new one"]
    assert (scene.crew.busy, len(scene.pool)) == (0, 0)


def test_a_stop_lets_the_pool_be_joined(scene: Scene) -> None:
    scene.take("done", "in flight")
    scene.finish("done")
    scene.crew.dismiss()
    scene.crew.dismiss()
    for _ in range(4):
        gevent.sleep(0)
    assert len(scene.pool) == 1
    scene.finish("in flight")
    scene.join()
    assert scene.ended == ["done", "in flight"]
    scene.take("last")  # what a stopping worker may still begin
    scene.finish("last")
    scene.join()
    assert scene.ended[-1] == "last"


def test_a_job_is_freed_when_it_has_ended(scene: Scene) -> None:
    """An idle green thread must not keep its last order."""

    class Job:
        pass

    ended: list[bool] = []
    crew: Crew[Job] = Crew(lambda: scene.pool, lambda _: None, lambda _: ended.append(True))
    gc.disable()
    try:
        job = Job()
        lives = weakref.ref(job)
        crew.take(job)
        gevent.sleep(0)
        gevent.sleep(0)
        del job
        assert ended and lives() is None
    finally:
        gc.enable()
