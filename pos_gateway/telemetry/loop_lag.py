"""Event-loop lag: every order's delay before any work on the order.

A histogram, since a gauge of the maximum is lost to a second scraper and to a missed scrape. Four
samples a second find every standstill of the loop of a tenth of a second.
"""

import threading
import time
from collections.abc import Callable

from pos_gateway.telemetry import metrics

#: Waits for a turn of the event loop, within seconds (None: no bound). Returns whether the turn came.
Turn = Callable[[float | None], bool]

#: Seconds between samples.
PERIOD = 0.25


def own_turn(_timeout: float | None) -> bool:
    """The turn of a green thread: while a green thread runs, the loop runs."""
    return True


class LoopLag:
    """A thread (green in a green worker) that measures the loop's lateness.

    Args:
        turn: waits for the loop's turn, if the measuring thread is not on the loop.
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
