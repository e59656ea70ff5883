"""Isolates poison orders: suspects run one at a time, so that a crash costs no neighbour.

A worker's death leaves open which of its orders in flight was to blame. One death says little,
since machines die. An order with two is a suspect, and suspects are claimed one at a time, so that
the next death has one culprit only.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from pos_gateway.ledger.states import ClaimResult, Suspected

#: Deaths after which an order is poison and not sent any more.
POISONOUS = 3
#: Maximum seconds that a suspect runs alone. Poison may be in a reply, and most POSes reply within
#: these; more would delay the others: 200 suspects at POSes that hang take a quarter of an hour already.
ISOLATED_FOR = 5.0


class Turn:
    """An attempt, which runs alone of all suspects from the first suspect on that it claims.

    Enter the turn for as long as the attempt runs. Safe for green threads.

    Args:
        alone: the lock of all suspects.
    """

    __slots__ = ("_alone", "_end")

    def __init__(self, alone: threading.Lock) -> None:
        self._alone = alone
        #: Of its time alone.
        self._end: _End | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end.now()

    def claim(self, claim: Callable[[bool], ClaimResult]) -> ClaimResult:
        """What ``claim`` returns; Suspected while another suspect runs alone. Does not wait for its end.

        Args:
            claim: claims a row of the ledger; with True, unless it is a suspect's.
        """
        found = claim(self._end is None)
        if isinstance(found, Suspected) and self._alone.acquire(blocking=False):
            self._end = _End(self._alone)
            # Only now: one that has to wait would be left by the worker that the other kills, too.
            # The other's end is queued, and written with this claim at the latest.
            found = claim(False)
            self._end.after(ISOLATED_FOR)  # the claim may have taken as long
        return found


class _End:
    """The end of a time alone, which comes once."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._once = lock, threading.Lock()
        self._timer: threading.Timer | None = None

    def after(self, seconds: float) -> None:
        """Let it come after these, unless it comes before."""
        self._timer = threading.Timer(seconds, self.now)
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started: it comes with the attempt's end
            self._timer.start()

    def now(self) -> None:
        """Let it come now. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._once.acquire(blocking=False):
            self._lock.release()
