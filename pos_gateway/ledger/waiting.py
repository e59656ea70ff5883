"""How a green thread waits for PostgreSQL."""

from collections.abc import Generator
from typing import Any

import gevent
from gevent.hub import Waiter
from psycopg import OperationalError


class GreenWait:
    """psycopg's ``Connection.wait`` for one connection, on watchers that are made once.

    psycopg's own wait polls, and gevent makes an event, a watcher and a timer for each poll: more
    CPU than the exchange itself.

    Args:
        socket: the connection's file descriptor.
        seconds: time without an answer after which the connection counts as lost.
    """

    def __init__(self, socket: int, seconds: float) -> None:
        self._hub = gevent.get_hub()
        # Indexed by psycopg's wait: read (1), write (2) or either (3), as in libev.
        self._watchers = [None, *(self._hub.loop.io(socket, events) for events in (1, 2, 3))]
        # Restarted with ``again``: a libev timer that is stopped and started resumes its remainder.
        self._late = self._hub.loop.timer(seconds, seconds)
        self._seconds = seconds

    def __call__(self, talk: Generator[int, int, Any]) -> Any:
        """Run the exchange and return its result. Raises psycopg.OperationalError."""
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
