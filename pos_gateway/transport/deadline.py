"""A total time limit over an exchange, and a way to cancel it.

Socket timeouts cannot do this: they restart with every byte that a peer drips.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
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


class CancelToken:
    """An attempt's time limit, and a way to cancel it. One for each attempt.

    Enter the token for an exchange on a green thread: ``cancel`` then interrupts the green thread.

    Args:
        part: the part of its merchant's time limit that it has.
    """

    def __init__(self, part: float = 1.0) -> None:
        self.part = part
        self.is_cancelled = False
        self._thread: Any = None

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
        self._thread = _get_current()()

    def __exit__(self, *_: object) -> None:
        self._thread = None


@cache
def _get_current() -> Callable[[], Any]:
    """gevent's function that returns the green thread that runs."""
    from gevent import getcurrent  # noqa: PLC0415  (only where gevent is in use)

    current: Callable[[], Any] = getcurrent
    return current


def deadline(seconds: float, cancel_token: CancelToken) -> AbstractContextManager[None]:
    """Raise DeadlineExceeded inside the block after ``seconds``, or when the token is cancelled.

    A connection's own waits end at the deadline, so a green thread needs a token only, and a native
    one nothing; but the main thread of a synchronous worker, which resolves names by blocking, also
    has the interval timer.
    """
    if green():
        return cancel_token
    if threading.current_thread() is threading.main_thread():
        return _alarm(seconds)
    return nullcontext()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise DeadlineExceeded

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
