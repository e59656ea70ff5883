"""A total time limit over a call's exchanges, their progress, and a way to cancel them.

Socket timeouts cannot do this: they restart with every byte that a peer drips.
"""

import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from math import inf
from types import FrameType
from typing import Any

from pos_gateway.runtime.green import green


class DeadlineExceeded(BaseException):
    """The exchange's time is up, or it was cancelled.

    A BaseException, so that no ``except Exception`` between here and the socket takes it for an
    error of its own and retries.
    """


class TimeIsUp(DeadlineExceeded):
    """A connection's time is up: that of the exchange, or its budget for connecting."""


class CallContext:
    """One attempt's exchanges: their time limit, their progress, and a way to cancel them.

    Enter the context for an exchange, within which DeadlineExceeded is raised once ``cancel`` is called.
    A connection's own waits end at the deadline; but the main thread of a synchronous worker, which
    resolves names by blocking, also has the interval timer.

    Args:
        part: the part of its merchant's time limit that the attempt has.
    """

    __slots__ = (
        *(
            "begun",
            "connect_seconds",
            "connecting",
            "is_cancelled",
            "part",
            "replied",
            "sent",
            "until",
        ),
        *("_handler", "_thread"),
    )

    def __init__(self, part: float = 1.0) -> None:
        self.part = part
        self.is_cancelled = False
        #: When the present exchange ends (``time.monotonic``).
        self.until = inf
        #: The exchange has begun to connect, or to send.
        self.begun = False
        #: A byte of the exchange's request may have left this process.
        self.sent = False
        #: The exchange is connecting: DNS, TCP, TLS.
        self.connecting = False
        #: Seconds spent on connecting, in all exchanges.
        self.connect_seconds = 0.0
        #: When the last reply began (``time.perf_counter``).
        self.replied: float | None = None
        self._thread: Any = None
        #: What the main thread does without the interval timer.
        self._handler: Any = None

    def cancel(self) -> None:
        """Cancel the exchange in flight, and any later one, with DeadlineExceeded.

        Called from another green thread of the same process. Outside an exchange nothing is raised.
        """
        self.is_cancelled = True
        thread = self._thread
        if thread is None:
            return
        import gevent  # noqa: PLC0415  (only where gevent is in use)

        def throw() -> None:
            if self._thread is thread:  # the exchange may have ended meanwhile
                thread.throw(DeadlineExceeded())

        gevent.get_hub().loop.run_callback(throw)

    def __enter__(self) -> None:
        """Raises DeadlineExceeded once the attempt is cancelled."""
        if self.is_cancelled:
            raise DeadlineExceeded
        get_current = _getcurrent()
        if get_current is not None:
            self._thread = get_current()
        elif threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGALRM, _expire) or signal.SIG_DFL
            left = self.until - time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6))

    def __exit__(self, *_: object) -> None:
        self._thread = None
        if self._handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            self._handler = None


@cache
def _getcurrent() -> Callable[[], Any] | None:
    """gevent's function that returns the green thread that runs; None: this process has native threads alone."""
    if not green():
        return None
    from gevent import getcurrent  # noqa: PLC0415  (only where gevent is in use)

    current: Callable[[], Any] = getcurrent
    return current


def _expire(_signal: int, _frame: FrameType | None) -> None:
    raise DeadlineExceeded
