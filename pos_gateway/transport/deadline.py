"""A total time limit over a block of blocking calls.

Socket timeouts cannot do this: they start anew with every byte that a peer drips.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType

from pos_gateway.runtime.green import green


class DeadlineExceeded(BaseException):
    """The block's time is up.

    A BaseException, so that no ``except Exception`` of a library between here and the socket
    takes it for one of its own errors and tries again.
    """


class CancelToken:
    """How long an attempt may take, and a way for others to end it. One for each attempt.

    Args:
        part: the part of its merchant's time limit that it has.
    """

    def __init__(self, part: float = 1.0) -> None:
        self.part = part
        self.is_over = False
        self._interrupt: Callable[[], None] | None = None

    def end(self) -> None:
        """End the exchange under way, and those to come, with DeadlineExceeded.

        From another green thread of the same process; nothing happens outside of an exchange.
        """
        self.is_over = True
        if self._interrupt is not None:
            self._interrupt()

    def begin(self) -> None:
        """``end`` reaches this green thread from now on. Raises DeadlineExceeded if it was called."""
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        if self.is_over:
            raise DeadlineExceeded
        thread = gevent.getcurrent()

        def throw() -> None:
            if self._interrupt is not None:  # the exchange may be over meanwhile
                thread.throw(DeadlineExceeded())

        self._interrupt = lambda: gevent.get_hub().loop.run_callback(throw)

    def finish(self) -> None:
        """The exchange is over; ``end`` reaches nobody."""
        self._interrupt = None


def deadline(seconds: float, cancel_token: CancelToken) -> AbstractContextManager[None]:
    """Raise DeadlineExceeded inside the block when so many seconds, or the cancel_token, are over.

    Green threads each have their own. In a process without them it is the main thread's
    interval timer (a prefork worker runs its task there); other native threads get no more than
    the socket timeouts beneath.
    """
    if green():
        return _Green(seconds, cancel_token)
    if threading.current_thread() is threading.main_thread():
        return _alarm(seconds)
    return nullcontext()


class _Green:
    """A green thread's. No generator: every order has one."""

    __slots__ = ("_cancel_token", "_timeout")

    def __init__(self, seconds: float, cancel_token: CancelToken) -> None:
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        self._timeout = gevent.Timeout(seconds, DeadlineExceeded())
        self._cancel_token = cancel_token

    def __enter__(self) -> None:
        self._cancel_token.begin()
        self._timeout.start()

    def __exit__(self, *_: object) -> None:
        self._cancel_token.finish()
        self._timeout.close()


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
