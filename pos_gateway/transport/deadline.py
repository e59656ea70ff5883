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

    Args:
        part: the part of its merchant's time limit that it has.
        on_begin: called when its first exchange begins.
    """

    def __init__(self, part: float = 1.0, on_begin: Callable[[], None] | None = None) -> None:
        self.part = part
        self.on_begin = on_begin
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

    def exchange_begins(self) -> None:
        """Call ``on_begin``, the first time."""
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None

    def begin(self) -> None:
        """Let ``cancel`` interrupt this green thread. Raises DeadlineExceeded once it is cancelled."""
        if self.is_cancelled:
            raise DeadlineExceeded
        self._thread = _get_current()()

    def finish(self) -> None:
        """The exchange has ended: ``cancel`` interrupts nothing."""
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
        return _Cancellable(cancel_token)
    if threading.current_thread() is threading.main_thread():
        return _alarm(seconds)
    return nullcontext()


class _Cancellable:
    """A green thread's. Not a generator, which is slower: every order has one."""

    __slots__ = ("_cancel_token",)

    def __init__(self, cancel_token: CancelToken) -> None:
        self._cancel_token = cancel_token

    def __enter__(self) -> None:
        self._cancel_token.begin()

    def __exit__(self, *_: object) -> None:
        self._cancel_token.finish()


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
