"""How a green worker stops: in good order at the first signal, at once at the second.

Celery's handlers for a second Ctrl-C and for SIGQUIT (with ``REMAP_SIGTERM`` for SIGTERM too) wait
while they handle the signal. On green threads that is in the event loop, where nothing may wait.
"""

import os
import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent
from celery.exceptions import WorkerShutdown
from celery.worker import state
from gevent.event import Event


class Drain:
    """What signals do to this process, once ``listen`` was called.

    SIGTERM and SIGINT: nothing more is taken from the queue, what waits goes back, what is under
    way may finish. Another one, or SIGQUIT: what is under way goes back too.

    Args:
        begin: called on a green thread at the first signal, whatever the worker waits for then.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._begun_at: float | None = None
        self._hurry = Event()

    def listen(self) -> None:
        """Have these signals handled here, and by nobody else. In the main thread."""
        self._main = gevent.getcurrent()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def bound(self, seconds: float, let_go: Callable[[], None]) -> None:
        """Call this so many seconds after the first signal, or at once when there is a hurry."""
        now = monotonic()
        left = seconds - (now - (self._begun_at or now))

        def wait() -> None:
            self._hurry.wait(max(0.0, left))
            let_go()

        gevent.spawn(wait)

    @property
    def has_begun(self) -> bool:
        """Whether this process was told to stop."""
        return self._begun_at is not None

    def interrupt(self) -> None:
        """End what the main thread waits for."""
        gevent.kill(self._main, WorkerShutdown(os.EX_OK))

    def _on_signal(self, number: int, _frame: Any) -> None:
        # In the event loop, or in the midst of anything: nothing here may wait.
        if self._begun_at is not None or number == signal.SIGQUIT or _is_remapped(number):
            self._hurry.set()
        if self._begun_at is None:
            self._begun_at = monotonic()
            gevent.spawn(self._begin)
        state.should_stop = os.EX_OK


def _is_remapped(number: int) -> bool:
    return number == signal.SIGTERM and os.environ.get("REMAP_SIGTERM") == "SIGQUIT"
