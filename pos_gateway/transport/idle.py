"""Connections that wait to be used again."""

import queue
from typing import Any


class Idle:
    """What urllib3 keeps a pool's idle connections in: a ``queue.LifoQueue`` that nobody waits for.

    Python's own has a lock and three conditions, 2 kB that thousands of merchants need not have:
    admission keeps a merchant's exchanges under its limit, so none waits for a connection. Safe
    from green threads, and from others.
    """

    __slots__ = ("_connections", "_size")

    def __init__(self, maxsize: int = 0) -> None:
        self._size = maxsize
        self._connections: list[Any] = []

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        """The one that was used last; ``queue.Empty`` is raised if there is none."""
        try:
            return self._connections.pop()
        except IndexError:
            raise queue.Empty from None

    def put(self, item: Any, block: bool = False, timeout: float | None = None) -> None:
        """Keep one, unless it is None; ``queue.Full`` is raised if there are enough."""
        if item is None:  # urllib3 fills its queues with places for connections
            return
        if len(self._connections) >= self._size:
            raise queue.Full
        self._connections.append(item)

    def qsize(self) -> int:
        """How many there are."""
        return len(self._connections)
