"""How busy gevent's loop is: the seconds from the events that it finds until it waits for the next ones.

A stop of the process by its control group's quota, or by a busy node, is a part of them. A turn costs
two calls, and no green thread or timer.
"""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

#: After gevent's own, which runs what is ready (libev's lowest priority).
_LAST = -2


class LoopLoad:
    """Tells of each turn of a loop as it begins.

    Args:
        loop: gevent's.
        turned: called with the seconds of the last turn that were busy, and all of them; it must not block.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        loop: Any,
        turned: Callable[[float, float], None],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._turned, self._now = turned, now
        self._began = now()
        self._busy = 0.0
        self._watchers: tuple[Any, ...] = ()
        with suppress(TypeError):  # libuv has none: then no turn is seen
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
        """The loop has found events, or timers that are due."""
        now = self._now()
        began, self._began = self._began, now
        self._turned(self._busy, now - began)
