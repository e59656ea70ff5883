"""A total time limit over a block of blocking calls.

Socket timeouts cannot do this: they restart with every byte that a peer drips.
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
    takes it for one of its own errors and retries.
    """


class CancelToken:
    """An attempt's time limit, and a way to cancel it. One for each attempt.

    Args:
        part: the part of its merchant's time limit that it has.
        on_begin: called when its first exchange begins.
    """

    def __init__(self, part: float = 1.0, on_begin: Callable[[], None] | None = None) -> None:
        self.part = part
        self.on_begin = on_begin
        self.is_over = False
        self._interrupt: Callable[[], None] | None = None

    def end(self) -> None:
        """Cancel the exchange in flight, and any later one, with DeadlineExceeded.

        Called from another green thread of the same process. Outside an exchange nothing is raised.
        """
        self.is_over = True
        if self._interrupt is not None:
            self._interrupt()

    def exchange_begins(self) -> None:
        """Tell ``on_begin``, the first time."""
        if self.on_begin is not None:
            self.on_begin()
            self.on_begin = None

    def begin(self) -> None:
        """Let ``end`` cancel this green thread. Raises DeadlineExceeded after ``end``."""
        import gevent  # noqa: PLC0415  (only where gevent is in use)

        if self.is_over:
            raise DeadlineExceeded
        thread = gevent.getcurrent()

        def throw() -> None:
            if self._interrupt is not None:  # the exchange may have ended meanwhile
                thread.throw(DeadlineExceeded())

        self._interrupt = lambda: gevent.get_hub().loop.run_callback(throw)

    def finish(self) -> None:
        """The exchange is over: ``end`` interrupts nothing."""
        self._interrupt = None


def deadline(seconds: float, cancel_token: CancelToken) -> AbstractContextManager[None]:
    """Raise DeadlineExceeded inside the block after ``seconds``, or when the token is cancelled.

    Each green thread has its own. Without gevent it is the main thread's interval timer (a prefork
    worker runs its task there); other native threads have only the socket timeouts.
    """
    if green():
        return _Green(seconds, cancel_token)
    if threading.current_thread() is threading.main_thread():
        return _alarm(seconds)
    return nullcontext()


class _Green:
    """A green thread's deadline. Not a generator, which is slower: every order has one."""

    __slots__ = ("_cancel_token", "_timeout")

    def __init__(self, seconds: float, cancel_token: CancelToken) -> None:
        import gevent  # noqa: PLC0415  (only where gevent is in use)

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
