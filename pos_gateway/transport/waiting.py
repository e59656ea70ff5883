"""How a thread waits for one connection's socket: a green one on the loop, a native one by poll."""

import select
import time
from functools import cache
from math import ceil
from typing import Any, Protocol

from pos_gateway.runtime.green import green, native

#: What is waited for, as in gevent's loop.
READ, WRITE = 1, 2
_EVENTS = {READ: select.POLLIN, WRITE: select.POLLOUT}


class Wait(Protocol):
    """Waits for a socket."""

    def __call__(self, events: int, until: float) -> bool:
        """Whether the socket is ready, or has failed, before this time (``time.monotonic``)."""
        ...

    def close(self) -> None:
        """Before the socket is closed."""
        ...


def waiting_for(fileno: int) -> Wait:
    """How the threads of this process wait for the socket."""
    return GreenTransportWait(fileno) if green() else NativeWait(fileno)


class GreenTransportWait:
    """A green thread's, on a watcher that is made once; only for its own thread's loop.

    gevent's sockets read before they wait, in vain, and make a second timer.
    """

    __slots__ = ("_fileno", "_hub", "_new_waiter", "_reading")

    def __init__(self, fileno: int) -> None:
        import gevent  # noqa: PLC0415  (only where gevent is in use)
        from gevent.hub import Waiter  # noqa: PLC0415

        self._hub, self._new_waiter = gevent.get_hub(), Waiter
        self._fileno = fileno
        self._reading = self._hub.loop.io(fileno, READ)

    def __call__(self, events: int, until: float) -> bool:
        while (left := until - time.monotonic()) > 0:
            # By the loop's time, which may be behind: then it is up too early, and waited for again.
            if self._ready_within(events, left):
                return True
        return False

    def _ready_within(self, events: int, left: float) -> bool:
        loop = self._hub.loop
        waiter = self._new_waiter(self._hub)
        watcher = self._reading if events == READ else loop.io(self._fileno, events)
        timer = loop.timer(left)
        watcher.start(waiter.switch, True)
        timer.start(waiter.switch, False)
        try:
            # The loop may have come late: then the socket became ready before the time was up.
            is_found: bool = waiter.get()
            return is_found or is_ready(self._fileno, events)
        finally:  # also when the green thread is killed
            watcher.stop()
            timer.close()
            if watcher is not self._reading:
                watcher.close()

    def close(self) -> None:
        self._reading.close()


class NativeWait:
    """A native thread's."""

    __slots__ = ("_fileno",)

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno

    def __call__(self, events: int, until: float) -> bool:
        left = until - time.monotonic()
        return left > 0 and is_ready(self._fileno, events, ceil(left * 1000))

    def close(self) -> None:
        """Nothing is held."""


@cache
def _poll() -> Any:
    return native("select", "poll")


def is_ready(fileno: int, events: int, milliseconds: int = 0) -> bool:
    """Whether the socket is ready, or has failed, within the milliseconds, which block the thread.

    By the system's poll, which gevent removes from ``select``: a system call, and no turn of the loop.
    """
    poller = _poll()()
    poller.register(fileno, _EVENTS[events])
    return bool(poller.poll(milliseconds))
