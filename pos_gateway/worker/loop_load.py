"""How busy gevent's loop is: the seconds from finding events until the next wait.

Busy seconds include a stop of the process by a control group's quota, or by a busy node. On less than a core they
include the CPU of further threads, too: a quota stops the loop for that CPU. A turn costs two calls, and no green
thread or timer.
"""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic, process_time
from typing import Any

#: After gevent's own watcher, which runs ready callbacks (libev's lowest priority).
_LAST = -2


class LoopLoad:
    """Reports each turn of a loop at its beginning.

    Args:
        loop: gevent's.
        turned: called with the busy seconds of the last turn, and all seconds of the turn; must not block.
        cores: the CPU that this process may use.
        now: seconds of a monotonic clock.
        spent: seconds of CPU that the process has taken.
    """

    def __init__(
        self,
        loop: Any,
        turned: Callable[[float, float], None],
        cores: float = 1.0,
        now: Callable[[], float] = monotonic,
        spent: Callable[[], float] = process_time,
    ) -> None:
        self._turned, self._now = turned, now
        self._spent = spent if cores < 1 else lambda: 0.0
        self._began, self._spent_before = now(), self._spent()
        self._busy = 0.0
        self._watchers: tuple[Any, ...] = ()
        with suppress(TypeError):  # libuv has no watchers: then no turn is seen
            self._watchers = (loop.prepare(ref=False, priority=_LAST), loop.check(ref=False))

    def start(self) -> None:
        """Tell from now on."""
        for watcher, do in zip(self._watchers, (self._waits, self._found), strict=False):
            watcher.start(do)

    def stop(self) -> None:
        """Tell no more."""
        for watcher in self._watchers:
            watcher.close()

    def _waits(self) -> None:
        """The loop is about to wait."""
        self._busy = self._now() - self._began

    def _found(self) -> None:
        """The loop has found events, or due timers."""
        now = self._now()
        began, self._began = self._began, now
        before, self._spent_before = self._spent_before, self._spent()
        self._turned(max(self._busy, self._spent_before - before), now - began)
