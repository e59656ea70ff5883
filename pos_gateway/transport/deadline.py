"""A total time limit over a call's exchanges, with their progress and a way to cancel.

Socket timeouts bound no total: every byte from a dripping peer restarts the timeout.
"""

from math import inf
from typing import Any

from greenlet import getcurrent


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
    """

    __slots__ = (
        *("_thread", "begun", "connect_seconds", "connecting", "is_cancelled"),
        *("replied", "sent", "until"),
    )

    def __init__(self) -> None:
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
        #: The green thread in the exchange.
        self._thread: Any = None

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
        self._thread = getcurrent()

    def __exit__(self, *_: object) -> None:
        self._thread = None
