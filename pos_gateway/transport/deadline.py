"""A total time limit over a call's exchanges, with their progress and a way to cancel.

Socket timeouts bound no total: every byte from a dripping peer restarts the timeout.
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
    """The exchange's time is up, or the exchange was cancelled.

    A BaseException, lest an ``except Exception`` between here and the socket treat the deadline as
    an ordinary error and retry.
    """


class TimeIsUp(DeadlineExceeded):
    """A connection's time is up: the exchange's time, or the budget for connecting."""


class CallContext:
    """An attempt's exchanges: time limit, progress, and a way to cancel.

    Enter the context for an exchange. Inside, ``cancel`` raises DeadlineExceeded.
    A connection's own waits end at the deadline. The main thread of a synchronous worker, blocked
    while resolving a name, also has the interval timer.

    Args:
        part: the attempt's part of the merchant's time limit.
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
        #: The main thread's handler of SIGALRM before the exchange; None: no interval timer runs.
        self._handler: Any = None

    def cancel(self) -> None:
        """Cancel the exchange in flight, and all later exchanges, with DeadlineExceeded.

        Called from another green thread of the same process. Outside an exchange nothing is raised.
        """
        self.is_cancelled = True
        thread = self._thread
        if thread is None:
            return
        import gevent  # noqa: PLC0415  (only where gevent is in use)

        def throw() -> None:
            if self._thread is thread:  # the exchange may have ended by now
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
    """gevent's function for the running green thread; None: the process has native threads only."""
    if not green():
        return None
    from gevent import getcurrent  # noqa: PLC0415  (only where gevent is in use)

    current: Callable[[], Any] = getcurrent
    return current


def _expire(_signal: int, _frame: FrameType | None) -> None:
    raise DeadlineExceeded
