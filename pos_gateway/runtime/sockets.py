"""Socket I/O with fewer system calls: an order used to take dozens."""

from collections.abc import Callable
from typing import Any

#: Bytes read at once.
AHEAD = 64 * 1024


def send_all(socket: Any, data: bytes | memoryview) -> None:
    """Write all of it; usually the socket accepts it at once.

    gevent's ``sendall`` first asks the socket for its buffer's size, each time.
    """
    sent = socket.send(data)
    if sent < len(data):
        socket.sendall(memoryview(data)[sent:])


class ReadAhead:
    """``recv`` for a reader of few bytes at a time; further bytes are buffered.

    Args:
        recv: the socket's. Its errors are raised, and lose no buffered bytes.
    """

    __slots__ = ("_at", "_kept", "_recv")

    def __init__(self, recv: Callable[[int], bytes]) -> None:
        self._recv = recv
        self._kept, self._at = b"", 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is buffered."""
        return self._at >= len(self._kept)

    def fill(self) -> None:
        """Wait for bytes, and buffer them; for an empty one."""
        self._kept, self._at = self._recv(AHEAD), 0

    def __call__(self, most: int) -> bytes:
        """Up to ``most`` bytes; none at the end."""
        if self.is_empty:
            self._kept, self._at = self._recv(max(most, AHEAD)), 0
        start = self._at
        self._at = start + most
        return self._kept[start : self._at]
