"""Isolates poison orders: suspects run one at a time, so that a crash costs no neighbour.

A worker's death leaves open which of its orders in flight was to blame. One death says little,
since machines die. An order with two is a suspect, and suspects are claimed one at a time, so that
the next death has one culprit only.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pos_gateway.ledger.states import SUSPECT

#: Deaths after which an order is poison and not sent any more.
POISONOUS = 3
#: Seconds that a suspect runs alone: poison kills at once, and a slow order must not delay the
#: other suspects.
ISOLATED_FOR = 2.0


class PoisonIsolation:
    """Starts suspects one at a time. Safe for green threads."""

    def __init__(self, seconds: float = ISOLATED_FOR) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()

    def if_suspect(self, deaths: int) -> AbstractContextManager[bool]:
        """Whether an order with these deaths may start; no suspect may while another runs alone.

        Does not wait: the claim of a waiting order would be left by the dead worker, too.
        """
        return nullcontext(True) if deaths < SUSPECT else self.alone()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether a suspect may start; no other may meanwhile. Does not wait."""
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
