"""A green thread's wait for PostgreSQL."""

import gevent
from gevent.hub import Waiter
from psycopg import OperationalError


class GreenWait:
    """Waits for a connection's socket, on watchers made once.

    psycopg's own wait polls, and gevent makes an event, a watcher and a timer for each poll.

    Args:
        socket: the connection's file descriptor.
        seconds: time without an answer after which the connection counts as lost.
    """

    def __init__(self, socket: int, seconds: float) -> None:
        self._hub = gevent.get_hub()
        # Indexed by the awaited event: read (1), write (2) or either (3), as in gevent's loop.
        self._watchers = [None, *(self._hub.loop.io(socket, events) for events in (1, 2, 3))]
        self._seconds = seconds

    def until_ready(self, wanted: int) -> None:
        """Return once the socket is ready. Raises psycopg.OperationalError."""
        waiter, watcher = Waiter(self._hub), self._watchers[wanted]
        late = self._hub.loop.timer(self._seconds)
        watcher.start(waiter.switch, True)
        late.start(waiter.switch, False)
        try:
            if not waiter.get():
                raise OperationalError(f"the database has not answered for {self._seconds:g} s")
        finally:  # also when the green thread is killed
            watcher.stop()
            late.close()
