"""A pool's idle connections."""

import queue
from typing import Any


class Idle:
    """urllib3's store of a pool's idle connections: a ``queue.LifoQueue`` without waiting.

    Python's has a lock and three conditions, 2 kB for each of thousands of merchants: the
    concurrency limit bounds a merchant's exchanges, so none waits for a connection. Safe from green
    and native threads.
    """

    __slots__ = ("_connections", "_size")

    def __init__(self, maxsize: int = 0) -> None:
        self._size = maxsize
        self._connections: list[Any] = []

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        """The connection used last; raises ``queue.Empty`` if there is none."""
        try:
            return self._connections.pop()
        except IndexError:
            raise queue.Empty from None

    def put(self, item: Any, block: bool = False, timeout: float | None = None) -> None:
        """Keep a connection, unless it is None; raises ``queue.Full`` at the limit."""
        if item is None:  # urllib3 fills its queue with placeholders
            return
        if len(self._connections) >= self._size:
            raise queue.Full
        self._connections.append(item)

    def qsize(self) -> int:
        """The number of idle connections."""
        return len(self._connections)
