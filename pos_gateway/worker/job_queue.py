"""Jobs in a queue, for few green threads.

A waiting job is an entry in the queue. Hundreds of jobs on green threads would each hold a stack.
"""

from collections import deque
from collections.abc import Callable, Sequence

from gevent.pool import Group

Job = Callable[[], None]


class JobQueue:
    """Does jobs in turn. A green thread ends with the last job.

    Args:
        at_once: jobs at a time, at most.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._jobs: deque[Job] = deque()
        self._threads = Group()
        # Not the group's number, with ended green threads until the loop's next turn.
        self._serving = 0

    def add(self, job: Job) -> None:
        """Do a job after all waiting jobs. Never blocks."""
        self._jobs.append(job)
        self._begin()

    def add_first(self, jobs: Sequence[Job]) -> None:
        """Do jobs in this order, before waiting jobs. Never blocks."""
        self._jobs.extendleft(reversed(jobs))
        for _ in jobs:
            self._begin()

    def end(self) -> None:
        """Forget waiting jobs, and kill the green threads of further jobs. Does not block.

        A killed green thread may take a job added from now on: use a new queue.
        """
        self._jobs.clear()
        self._threads.kill(block=False)

    def join(self, timeout: float) -> bool:
        """Wait until all jobs are done, also jobs added during the wait; False after ``timeout``."""
        return bool(self._threads.join(timeout))

    def _begin(self) -> None:
        if self._serving < self._at_once:
            self._serving += 1
            self._threads.spawn(self._serve)

    def _serve(self) -> None:
        try:
            while self._jobs:
                self._jobs.popleft()()
        finally:
            self._serving -= 1
            if self._jobs:  # an error of a job stops no further job
                self._begin()
