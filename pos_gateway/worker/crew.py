"""Green threads that take order after order.

A new green thread for each order costs a stack, mapped, cleared and unmapped by the kernel, and Celery's bookkeeping:
more than admission does for an order. An idle green thread costs a stack: few stay.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gevent

Job = TypeVar("Job")

#: Idle green threads that stay.
MAX_IDLE = 64
#: Words of the outermost frame, never touched: a chunk of 64 KiB, half of the chunk free.
_STACK = 4200


class _Member(Generic[Job]):
    """A green thread, and the present job; None: the green thread is idle, or leaves."""

    __slots__ = ("job", "thread")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.thread: Any = None


class Crew(Generic[Job]):
    """Does jobs on a pool's green threads, a job at a time on each.

    Args:
        pool: returns gevent's pool, with a place for every job at a time, and for ``MAX_IDLE``.
        do: does a job.
        end: called once for each job after ``do``, also after an error or a kill, perhaps before the
            job began. Must not block.
    """

    def __init__(
        self, pool: Callable[[], Any], do: Callable[[Job], None], end: Callable[[Job], None]
    ) -> None:
        self._pool, self._do, self._end = pool, do, end
        self._hub = gevent.get_hub()
        #: Last used last: the stack is in the caches.
        self._idle: list[_Member[Job]] = []
        self._is_dismissed = False
        #: Jobs begun, or about to begin, and not ended.
        self.busy = 0

    def take(self, job: Job) -> None:
        """Begin a job, once the present green thread waits. Blocks only if the pool is full."""
        self.busy += 1
        if self._idle:
            member = self._idle.pop()
            member.job = job
            self._hub.loop.run_callback(member.thread.switch)
            return
        member = _Member(job)
        member.thread = self._pool().spawn(self._serve, member)
        # A raw link runs however the green thread ends, after the pool's release.
        member.thread.rawlink(lambda _thread: self._left(member))

    def dismiss(self) -> None:
        """Let idle green threads end, and busy green threads after their jobs. Idempotent."""
        self._is_dismissed = True
        while self._idle:
            self._hub.loop.run_callback(self._idle.pop().thread.switch)

    def _serve(self, member: _Member[Job]) -> None:
        while (job := member.job) is not None:
            self._do(job)  # after an exception the link ends the job
            member.job = None
            self.busy -= 1
            self._end(job)
            del job  # an idle green thread keeps no job
            if self._is_dismissed or len(self._idle) >= MAX_IDLE:
                return
            self._idle.append(member)
            self._hub.switch()  # until ``take``, ``dismiss`` or a kill

    # Python maps memory for frames in chunks, as large as the first frame needs. This frame begins a
    # chunk with room for an order's frames: the usual chunk has no room for the deepest frames, and each
    # order would map and unmap a second chunk.
    _serve.__code__ = _serve.__code__.replace(co_stacksize=_STACK)

    def _left(self, member: _Member[Job]) -> None:
        """Note the green thread's end: by an error, a kill, or with nothing to do."""
        if member in self._idle:
            self._idle.remove(member)
        job, member.job = member.job, None
        if job is not None:
            self.busy -= 1
            self._end(job)
