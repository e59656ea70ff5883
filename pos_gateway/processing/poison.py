"""Orders that workers died of: found out one at a time, so that their neighbours live.

A worker's death takes all that it had in its hands, and which of it was to blame nobody knows. One
death says little, since machines die. An order that was there twice is a suspect, and suspects
start one after the other, so that the next death has one culprit only.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

#: Deaths after which an order is a suspect, and after which it is sent no more.
SUSPECT, POISONOUS = 2, 3
#: Seconds that a suspect is alone: what kills a worker does so at once, and what only takes its
#: time is not to keep the others waiting.
ALONE_FOR = 2.0


class PoisonIsolation:
    """Lets suspects start one at a time. Safe from green threads."""

    def __init__(self, seconds: float = ALONE_FOR) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()

    def if_suspect(self, deaths: int) -> AbstractContextManager[bool]:
        """Whether it may start: not while another one is alone, after so many deaths of its own.

        It is not waited for: a claim that waits would be in the dead worker's hands, too.
        """
        return nullcontext(True) if deaths < SUSPECT else self._alone()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        if not self._turn.acquire(blocking=False):
            yield False
            return
        done = _Once(self._turn)
        timer = threading.Timer(self._seconds, done.release)
        timer.daemon = True
        timer.start()
        try:
            yield True
        finally:
            timer.cancel()
            done.release()


class _Once:
    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._released = lock, False

    def release(self) -> None:
        if not self._released:
            self._released = True
            self._lock.release()
