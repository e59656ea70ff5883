"""Isolates poison orders: suspects run one at a time, so that a crash costs no neighbour.

A worker's death does not show which order in flight was to blame. One death says little, since machines die. An order
with two deaths is a suspect, and suspects are claimed one at a time, so that the next death has a single culprit.
"""

import threading
from contextlib import suppress

#: Deaths after which an order is poison and not sent any more.
POISONOUS = 3
#: Maximum seconds that a suspect runs alone. Poison may be in a reply, and most POSes reply sooner; more seconds would
#: delay the rest: 200 suspects at hanging POSes take a quarter of an hour already.
ISOLATED_FOR = 5.0


class Alone:
    """An attempt's time alone of all suspects. Safe for green threads.

    Args:
        suspects: the lock of all suspects, held by the attempt.
    """

    def __init__(self, suspects: threading.Lock) -> None:
        self._suspects, self._once = suspects, threading.Lock()
        self._timer: threading.Timer | None = None

    def end_soon(self) -> None:
        """End after ``ISOLATED_FOR``, unless ``end`` comes before."""
        self._timer = threading.Timer(ISOLATED_FOR, self.end)
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started: the time ends with the attempt
            self._timer.start()

    def end(self) -> None:
        """End now. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._once.acquire(blocking=False):
            self._suspects.release()
