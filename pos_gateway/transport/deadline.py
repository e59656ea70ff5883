"""A total time limit over a block of blocking calls.

Socket timeouts cannot do this: they start anew with every byte that a peer drips.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DeadlineExceeded(BaseException):
    """The block's time is up.

    A BaseException, so that no ``except Exception`` of a library between here and the socket
    takes it for one of its own errors and tries again.
    """


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise DeadlineExceeded inside the block when so many seconds have passed.

    Green threads each have their own. In a process without them it is the main thread's
    interval timer (a prefork worker runs its task there); other native threads get no more than
    the socket timeouts beneath.
    """
    if green():
        import gevent  # noqa: PLC0415  (only where somebody has already chosen gevent)

        with gevent.Timeout(seconds, DeadlineExceeded()):
            yield
    elif threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        yield


def green() -> bool:
    """Whether this process runs on green threads."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


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
