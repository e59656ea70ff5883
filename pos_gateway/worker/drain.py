"""How a green worker stops: in good order at the first signal, at once at the second.

Celery's handlers for a second Ctrl-C and for SIGQUIT (with ``REMAP_SIGTERM`` for SIGTERM too) wait
while they handle the signal. On green threads that is in the event loop, where nothing may wait.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

import gevent
from celery.worker import state
from gevent.event import Event


class Drain:
    """What signals do to this process, once ``listen`` was called.

    SIGTERM and SIGINT: nothing more is taken from the queue, what waits goes back, what is under
    way may finish. Another one, or SIGQUIT: what is under way goes back too.
    """

    def __init__(self) -> None:
        self._begun = False
        self._hurry = Event()

    def listen(self) -> None:
        """Have these signals handled here, and by nobody else. In the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def bound(self, seconds: float, let_go: Callable[[], None]) -> None:
        """Call this in so many seconds, or at once when there is a hurry."""

        def wait() -> None:
            self._hurry.wait(seconds)
            let_go()

        gevent.spawn(wait)

    def _on_signal(self, number: int, _frame: Any) -> None:
        # In the event loop, or in the midst of anything: nothing here may wait.
        if self._begun or number == signal.SIGQUIT or _is_remapped(number):
            self._hurry.set()
        self._begun = True
        state.should_stop = os.EX_OK


def _is_remapped(number: int) -> bool:
    return number == signal.SIGTERM and os.environ.get("REMAP_SIGTERM") == "SIGQUIT"
