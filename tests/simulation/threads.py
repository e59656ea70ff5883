"""``threading`` and ``time`` on the scheduler's green threads, for the product's modules."""

from collections.abc import Callable
from math import inf
from typing import Any

from tests.simulation.scheduler import Scheduler, Task


class Lock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_taken = False
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        if self._is_taken and not blocking:
            return False
        while self._is_taken:
            _wait(self._scheduler, self._waiting)
        self._is_taken = True
        return True

    def release(self) -> None:
        assert self._is_taken
        self._is_taken = False
        _wake_all(self._scheduler, self._waiting)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        _wake_all(self._scheduler, self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            _wait(self._scheduler, self._waiting, inf if timeout is None else timeout)
        return self._is_set


class Thread:
    """A green thread of the process that starts it."""

    daemon = False

    def __init__(
        self, scheduler: Scheduler, target: Callable[[], Any], name: str = "", daemon: bool = True
    ) -> None:
        self._scheduler, self._target, self._name = scheduler, target, name
        self._task: Task | None = None

    def start(self) -> None:
        process = self._scheduler.current.process
        self._task = self._scheduler.spawn(process, self._name, self._target)

    def join(self, timeout: float) -> None:
        until = self._scheduler.time + timeout
        while self.is_alive() and self._scheduler.time < until:
            self._scheduler.sleep(0.1)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.thread.dead


class Timer(Thread):
    def __init__(self, scheduler: Scheduler, seconds: float, do: Callable[[], Any]) -> None:
        def run() -> None:
            scheduler.sleep(seconds)
            if not self._is_cancelled:
                do()

        super().__init__(scheduler, run, "timer")
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True


class Threading:
    """Stands for the module ``threading``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self._scheduler)

    def Event(self) -> Event:  # noqa: N802
        return Event(self._scheduler)

    def Thread(self, **what: Any) -> Thread:  # noqa: N802
        return Thread(self._scheduler, **what)

    def Timer(self, seconds: float, do: Callable[[], Any]) -> Timer:  # noqa: N802
        return Timer(self._scheduler, seconds, do)


class Time:
    """Stands for the module ``time``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.monotonic = scheduler.monotonic
        self.sleep = scheduler.sleep


def _wait(scheduler: Scheduler, waiting: list[Task], seconds: float = inf) -> None:
    task = scheduler.current
    waiting.append(task)
    try:
        scheduler.suspend(seconds)
    finally:
        if task in waiting:
            waiting.remove(task)


def _wake_all(scheduler: Scheduler, waiting: list[Task]) -> None:
    for task in waiting:
        scheduler.wake(task)
    waiting.clear()
