"""Jobs that few green threads do, one after the other.

A job that waits for its turn is an entry in a queue. Hundreds that waited on green threads of their
own would each hold a stack.
"""

from collections import deque
from collections.abc import Callable, Sequence

from gevent.pool import Group

Job = Callable[[], None]


class JobQueue:
    """Does jobs in turn. A green thread ends with the last one.

    Args:
        at_once: jobs that are done at a time.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._jobs = _Jobs()
        self._threads = Group()

    def add(self, job: Job) -> None:
        """Do a job after all others. Never blocks."""
        self._jobs.waiting.append(job)
        self._begin(self._jobs)

    def add_first(self, jobs: Sequence[Job]) -> None:
        """Do these in this order, before those that wait. Never blocks."""
        self._jobs.waiting.extendleft(reversed(jobs))
        for _ in jobs:
            self._begin(self._jobs)

    def drop(self) -> None:
        """Forget the jobs that wait, and kill the green threads of the others. Does not block."""
        self._jobs.waiting.clear()
        # A green thread that is being killed must take no job that is added from now on.
        self._jobs = _Jobs()
        threads, self._threads = self._threads, Group()
        threads.kill(block=False)

    def join(self, timeout: float) -> bool:
        """Wait until all jobs are done, those that are added meanwhile too; whether they are."""
        return bool(self._threads.join(timeout))

    def _begin(self, jobs: "_Jobs") -> None:
        # Not the group's number: it counts green threads that have ended, until the loop's next turn.
        if jobs.served_by < self._at_once:
            jobs.served_by += 1
            self._threads.spawn(self._serve, jobs)

    def _serve(self, jobs: "_Jobs") -> None:
        try:
            while jobs.waiting:
                jobs.waiting.popleft()()
        finally:
            jobs.served_by -= 1
            if jobs.waiting:  # what one job raises stops no other
                self._begin(jobs)


class _Jobs:
    """Those that wait, until they are dropped."""

    def __init__(self) -> None:
        self.waiting: deque[Job] = deque()
        #: Green threads that take them.
        self.served_by = 0
