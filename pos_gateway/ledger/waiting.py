"""How a green thread waits for PostgreSQL."""

from collections.abc import Generator
from typing import Any

import gevent
from gevent.hub import Waiter
from psycopg import OperationalError


class GreenWait:
    """psycopg's ``Connection.wait`` for one connection, on watchers that are made once.

    Its own polls, and for a poll gevent makes an event, a watcher and a timer: more CPU than what
    is said meanwhile.

    Args:
        socket: the connection's file descriptor.
        seconds: without an answer for so long the connection counts as lost.
    """

    def __init__(self, socket: int, seconds: float) -> None:
        self._hub = gevent.get_hub()
        # By what psycopg wants: to read (1), to write (2), or either (3). libev has the same numbers.
        self._watchers = [None, *(self._hub.loop.io(socket, events) for events in (1, 2, 3))]
        # Begun anew each time (``again``): a libev timer that is stopped and started goes on with what
        # it had left.
        self._late = self._hub.loop.timer(seconds, seconds)
        self._seconds = seconds

    def __call__(self, talk: Generator[int, int, Any]) -> Any:
        """What the talk returns. Raises psycopg.OperationalError."""
        try:
            wanted = next(talk)
            while True:
                self._until_ready(self._watchers[wanted])
                wanted = talk.send(wanted)
        except StopIteration as end:
            return end.value

    def _until_ready(self, watcher: Any) -> None:
        waiter = Waiter(self._hub)
        watcher.start(waiter.switch, True)
        self._late.again(waiter.switch, False)
        try:
            if not waiter.get():
                raise OperationalError(f"the database has not answered for {self._seconds:g} s")
        finally:  # also when the green thread is killed
            watcher.stop()
            self._late.stop()
