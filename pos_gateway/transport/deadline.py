"""A total time limit over a block of blocking calls.

Socket timeouts cannot do this: they start anew with every byte that a peer drips.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pos_gateway.green import green


class DeadlineExceeded(BaseException):
    """The block's time is up.

    A BaseException, so that no ``except Exception`` of a library between here and the socket
    takes it for one of its own errors and tries again.
    """


class Patience:
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

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """``end`` reaches the block. For green threads."""
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        if self.is_over:
            raise DeadlineExceeded
        thread = gevent.getcurrent()

        def throw() -> None:
            if self._interrupt is not None:  # it may have left the block meanwhile
                thread.throw(DeadlineExceeded())

        self._interrupt = lambda: gevent.get_hub().loop.run_callback(throw)
        try:
            yield
        finally:
            self._interrupt = None


@contextmanager
def deadline(seconds: float, patience: Patience) -> Iterator[None]:
    """Raise DeadlineExceeded inside the block when so many seconds, or the patience, are over.

    Green threads each have their own. In a process without them it is the main thread's
    interval timer (a prefork worker runs its task there); other native threads get no more than
    the socket timeouts beneath.
    """
    if green():
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        with gevent.Timeout(seconds, DeadlineExceeded()), patience.interruptible():
            yield
    elif threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        yield


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
