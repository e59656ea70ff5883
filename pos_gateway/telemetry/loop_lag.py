"""Event-loop lag: the delay that every order sees before any work on it.

A histogram, since a gauge of the maximum is lost to a second scraper and to a missed scrape. Four
samples a second find every tenth of a second for which the loop stood still.
"""

import threading
import time
from collections.abc import Callable

from pos_gateway.telemetry import metrics

#: Waits for a turn of the event loop, for a number of seconds at most (None: no bound); returns whether it had one.
Turn = Callable[[float | None], bool]

#: Seconds between samples.
PERIOD = 0.25


def own_turn(_timeout: float | None) -> bool:
    """A green thread's: where this runs, the loop runs."""
    return True


class LoopLag:
    """A thread (green in a green worker) that measures how late the loop is.

    Args:
        turn: the loop's, if its threads are no part of it.
    """

    def __init__(self, turn: Turn = own_turn) -> None:
        self._turn = turn
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="loop lag", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop. Idempotent."""
        self._stopping.set()

    def _run(self) -> None:
        due = time.monotonic() + PERIOD
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._turn(None)
            now = time.monotonic()
            metrics.loop_lag.observe(max(0.0, now - due))
            due = now + PERIOD
