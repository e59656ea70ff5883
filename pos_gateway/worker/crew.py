"""Green threads that take order after order.

A green thread of its own for each order costs a stack, which the kernel maps, clears and unmaps, and
Celery's bookkeeping: more than admission does for an order. An idle one costs its stack, so few stay.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gevent

Job = TypeVar("Job")

#: Idle green threads that stay.
MAX_IDLE = 64
#: Words that the outermost frame asks for, without touching them: a chunk of 64 KiB, half of it free.
_STACK = 4200


class _Member(Generic[Job]):
    """One green thread, and its job; None: it is idle, or leaves."""

    __slots__ = ("job", "thread")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.thread: Any = None


class Crew(Generic[Job]):
    """Does jobs on a pool's green threads, each of which does one at a time.

    Args:
        pool: returns gevent's pool. It has a place for every job that is done at a time, and for
            ``MAX_IDLE``.
        do: does a job.
        end: called once for each job when ``do`` has ended, however it did: it may have been killed
            before it began. Must not block.
    """

    def __init__(
        self, pool: Callable[[], Any], do: Callable[[Job], None], end: Callable[[Job], None]
    ) -> None:
        self._pool, self._do, self._end = pool, do, end
        self._hub = gevent.get_hub()
        #: Last used last: its stack is in the caches.
        self._idle: list[_Member[Job]] = []
        self._is_dismissed = False
        #: Jobs that have begun, or are about to, and have not ended.
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
        # A raw link runs however the green thread ends, after the pool has released it.
        member.thread.rawlink(lambda _thread: self._left(member))

    def dismiss(self) -> None:
        """Let all green threads end that have no job, and the others after theirs. Idempotent."""
        self._is_dismissed = True
        while self._idle:
            self._hub.loop.run_callback(self._idle.pop().thread.switch)

    def _serve(self, member: _Member[Job]) -> None:
        while member.job is not None:
            self._do(member.job)  # if it raises, the link ends the job
            self._ends(member)
            if self._is_dismissed or len(self._idle) >= MAX_IDLE:
                return
            self._idle.append(member)
            self._hub.switch()  # until ``take``, ``dismiss`` or a kill

    # Python maps memory for frames in chunks, as large as the frame needs that begins them. This one
    # begins a chunk with room for an order's frames: the usual one has none for the deepest, for which
    # each order would map another and unmap it.
    _serve.__code__ = _serve.__code__.replace(co_stacksize=_STACK)

    def _ends(self, member: _Member[Job]) -> None:
        job, member.job = member.job, None
        if job is not None:
            self.busy -= 1
            self._end(job)

    def _left(self, member: _Member[Job]) -> None:
        """Its green thread has ended: by an error, a kill, or with nothing to do."""
        if member in self._idle:
            self._idle.remove(member)
        self._ends(member)
