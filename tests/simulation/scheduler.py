"""Green threads in virtual time: the one with the earliest moment runs, and time is that moment."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from random import Random
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

#: Switches after which a run counts as endless.
STEPS = 120_000
_EPOCH = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Process:
    """What dies, and is paused, together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.paused_until = -inf
        self.tasks: list[Task] = []


class Task:
    """A green thread of a process."""

    def __init__(self, process: Process, name: str, thread: greenlet) -> None:
        self.process, self.name, self.thread = process, name, thread
        #: The number of its current wait: a wake-up of an earlier one does not end a later one.
        self.wait = 0
        self.is_woken = False
        self.error: BaseException | None = None


class Scheduler:
    """Also the true clock; see ``runtime/clock.py`` for skewed ones."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = 0.0
        self.trace: list[tuple[float, str, str]] = []
        #: Exceptions that ended green threads, other than kills.
        self.crashes: list[str] = []
        #: Called at every switch point.
        self.at_point: Callable[[str], None] = lambda _name: None
        self._agenda: list[tuple[float, float, int, Task, int]] = []
        self._count = itertools.count()
        self._hub = getcurrent()
        self._current: Task | None = None
        self._tasks: list[Task] = []
        self._is_over = False
        self.steps = 0

    # A Clock.

    def monotonic(self) -> float:
        return self.time

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.time)

    # For green threads.

    @property
    def current(self) -> Task:
        assert self._current is not None
        return self._current

    def spawn(self, process: Process, name: str, do: Callable[[], object]) -> Task:
        """Start a green thread."""

        def run() -> None:
            try:
                do()
            except GreenletExit:
                pass
            except BaseException as error:  # noqa: BLE001  (told in the report)
                if not self._is_over:
                    self.crashes.append(f"{process.name} {name}: {type(error).__name__}: {error}")

        task = Task(process, name, greenlet(run, parent=self._hub))
        self._tasks.append(task)
        process.tasks.append(task)
        self._at(self.time, task)
        return task

    def say(self, what: str) -> None:
        """Write into the trace."""
        if self._is_over:
            return
        task = self._current
        self.trace.append((self.time, f"{task.process.name} {task.name}" if task else "-", what))

    def suspend(self, seconds: float = inf) -> bool:
        """Wait until this green thread is woken, which returns True, or for this long."""
        task = self.current
        if self._is_over:
            raise GreenletExit
        task.is_woken = False
        task.wait += 1
        if seconds < inf:
            self._at(self.time + seconds, task)
        self._hub.switch()
        if self._is_over:
            raise GreenletExit
        error, task.error = task.error, None
        if error is not None:
            raise error
        return task.is_woken

    def sleep(self, seconds: float) -> None:
        self.suspend(seconds)

    def wake(self, task: Task) -> None:
        """End its wait."""
        task.is_woken = True
        task.wait += 1
        self._at(self.time, task)

    def throw(self, task: Task, error: BaseException) -> None:
        """Raise the error where the green thread waits."""
        task.error = error
        self.wake(task)

    def point(self, name: str, what: str = "") -> None:
        """A switch point: other green threads run, and planned troubles happen."""
        self.say(f"{name} {what}".rstrip())
        self.at_point(name)
        draw = self.random.random()
        if draw < 0.4:
            return
        if draw < 0.9:
            self.sleep(self.random.expovariate(200))
        elif draw < 0.99:
            self.sleep(self.random.uniform(0, 0.3))
        else:
            self.sleep(self.random.uniform(0, 3))

    # For troubles.

    def kill(self, process: Process) -> None:
        """Kill its green threads. Does not return into one of them."""
        process.is_alive = False
        self.say(f"KILLED {process.name}")
        if self._current is not None and self._current.process is process:
            self.suspend()

    def pause(self, process: Process, seconds: float) -> None:
        """Pause its green threads for this long."""
        self.say(f"PAUSED {process.name} for {seconds:.1f} s")
        process.paused_until = self.time + seconds
        if self._current is not None and self._current.process is process:
            self.sleep(0)

    # For the whole run.

    def run(self, until: Callable[[], bool], limit: Callable[[], float]) -> bool:
        """Run until the predicate holds; False: time is up, or no thread can ever run again."""
        while not until():
            self.steps += 1
            if not self._agenda or self.time > limit() or self.steps > STEPS:
                return False
            at, _, _, task, wait = heapq.heappop(self._agenda)
            if wait != task.wait or task.thread.dead or not task.process.is_alive:
                continue
            if task.process.paused_until > at:
                self._at(task.process.paused_until, task)
                continue
            self.time = max(self.time, at)
            self._current = task
            task.thread.switch()
            self._current = None
        return True

    @contextmanager
    def cleaning_up(self) -> Iterator[None]:
        """End all green threads after the block, before the garbage collector does."""
        try:
            yield
        finally:
            self._is_over = True
            for task in self._tasks:
                self._current = task
                if not task.thread.dead:
                    task.thread.throw(GreenletExit)
            self._current = None

    def _at(self, time: float, task: Task) -> None:
        # At equal moments chance decides the order.
        entry: Any = (time, self.random.random(), next(self._count), task, task.wait)
        heapq.heappush(self._agenda, entry)
