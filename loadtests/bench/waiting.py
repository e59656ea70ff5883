"""Waiting for another process, for so long and no longer."""

import time
from collections.abc import Callable

from kombu import Connection

from loadtests.bench.filling import consumers
from loadtests.bench.worker import Worker
from pos_gateway.broker import topology

_LOOK = 0.1
#: Seconds for a worker to begin to take orders.
_START = 120.0


class InvalidRunError(RuntimeError):
    """Raised when a run says nothing about the worker."""


def wait_until(reached: Callable[[], bool], deadline: float, *, look: float = _LOOK) -> bool:
    """Whether it happened before the deadline, which ``time.monotonic()`` reaches."""
    while not reached():
        if time.monotonic() >= deadline:
            return False
        time.sleep(look)
    return True


def wait_for_consumer(broker_url: str, worker: Worker) -> float:
    """Return when the worker began to take orders, by the wall clock.

    Raises:
        WorkerEndedError: it ended instead.
        InvalidRunError: it did not begin.
    """
    with Connection(broker_url) as connection:

        def ready() -> bool:
            worker.check()
            return consumers(connection, topology.orders_queue) > 0

        if not wait_until(ready, time.monotonic() + _START, look=0.02):
            raise InvalidRunError(f"no worker took orders within {_START:g} s")
    return time.time()
