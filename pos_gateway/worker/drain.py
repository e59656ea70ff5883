"""Stops a green worker: gracefully at the first signal, at once at the second.

Celery's handlers for a second Ctrl-C and for SIGQUIT (with ``REMAP_SIGTERM`` for SIGTERM too) block during the signal.
On green threads the handlers run in the event loop, which must not block.
"""

import signal
from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent
from celery.exceptions import WorkerShutdown
from gevent.event import Event

from pos_gateway.settings import celerys
from pos_gateway.worker.celery_internals import request_stop
from pos_gateway.worker.crash import exit_code


class Drain:
    """Handles the stop signals of this process, once ``listen`` was called.

    SIGTERM and SIGINT: consuming stops, waiting orders are requeued, orders in flight may finish. A
    second signal, or SIGQUIT: orders in flight are requeued too.

    Args:
        begin: called on a green thread at the first signal, whatever the main thread waits for.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._begun_at: float | None = None
        self._stops = False
        self._hurry = Event()

    def listen(self) -> None:
        """Install the signal handlers in place of Celery's. Call from the main thread."""
        self._main = gevent.getcurrent()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def bound(self, seconds: float, on_deadline: Callable[[], None]) -> None:
        """Call ``on_deadline`` at ``seconds`` after the first signal, or at once after the second.

        The main thread stops from here on, and is not interrupted any more, while waiting for orders in flight.
        """
        self._stops = True
        now = monotonic()
        left = seconds - (now - (self._begun_at or now))

        def wait() -> None:
            self._hurry.wait(max(0.0, left))
            on_deadline()

        gevent.spawn(wait)

    @property
    def has_begun(self) -> bool:
        """Whether this process has received a stop signal."""
        return self._begun_at is not None

    def interrupt(self) -> None:
        """Interrupt the main thread's wait with WorkerShutdown, unless the thread stops already."""
        if not self._stops:
            gevent.kill(self._main, WorkerShutdown(exit_code()))

    def end_wait(self, waits: Callable[[], bool]) -> None:
        """End the main thread's wait with TimeoutError, if ``waits`` then knows the wait.

        Not after the stop began: then the thread waits for the broker's reply.
        """

        def end() -> None:
            if not self._stops and waits():
                self._main.throw(TimeoutError())

        gevent.get_hub().loop.run_callback(end)

    def _on_signal(self, number: int, _frame: Any) -> None:
        # Runs in the event loop, or in the middle of anything: nothing here may block.
        if self._begun_at is not None or number == signal.SIGQUIT or _is_remapped(number):
            self._hurry.set()
        if self._begun_at is None:
            self._begun_at = monotonic()
            gevent.spawn(self._begin)
        request_stop(exit_code())


def _is_remapped(number: int) -> bool:
    return number == signal.SIGTERM and celerys().get("REMAP_SIGTERM") == "SIGQUIT"
