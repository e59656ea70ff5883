"""Isolates poison orders: suspects run one at a time, so that a crash costs no neighbour.

A worker's death leaves open which of its orders in flight was to blame. One death says little,
since machines die. An order with two is a suspect, and suspects are claimed one at a time, so that
the next death has one culprit only.
"""

import threading
from collections.abc import Callable
from typing import Self

from pos_gateway.ledger.states import ClaimResult, Suspected

#: Deaths after which an order is poison and not sent any more.
POISONOUS = 3
#: Seconds that a suspect runs alone: poison kills at once, and a slow order must not delay the
#: other suspects.
ISOLATED_FOR = 2.0


class PoisonIsolation:
    """Lets suspects start one at a time. Safe for green threads."""

    def __init__(self, seconds: float = ISOLATED_FOR) -> None:
        self._seconds = seconds
        self._alone = threading.Lock()

    def turn(self) -> "Turn":
        """An attempt's turn; enter it for as long as the attempt runs."""
        return Turn(self._alone, self._seconds)


class Turn:
    """An attempt, which runs alone of all suspects from the first suspect on that it claims."""

    __slots__ = ("_alone", "_seconds", "_until")

    def __init__(self, alone: threading.Lock, seconds: float) -> None:
        self._alone, self._seconds = alone, seconds
        self._until: _End | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._until is not None:
            self._until.end()

    def claim(self, claim: Callable[[bool], ClaimResult]) -> ClaimResult:
        """What ``claim`` returns; Suspected while another suspect runs alone. Does not wait for its end.

        Args:
            claim: claims a row of the ledger; with True, unless it is a suspect's.
        """
        found = claim(self._until is None)
        # A suspect is claimed only now: one that has to wait would be left by the worker that the
        # other kills, too. The other's end is queued, and written with this claim at the latest.
        return claim(False) if isinstance(found, Suspected) and self._begin_alone() else found

    def _begin_alone(self) -> bool:
        if not self._alone.acquire(blocking=False):
            return False
        self._until = _End(self._alone, self._seconds)
        return True


class _End:
    """Releases the lock after some seconds, or before."""

    def __init__(self, lock: threading.Lock, seconds: float) -> None:
        self._lock, self._once = lock, threading.Lock()
        self._timer = threading.Timer(seconds, self.end)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Release it. Idempotent."""
        self._timer.cancel()
        if self._once.acquire(blocking=False):
            self._lock.release()
