"""Sockets with fewer system calls: an order took dozens of them."""

from collections.abc import Callable
from typing import Any

#: Bytes that are asked for at once.
AHEAD = 64 * 1024


def send_all(socket: Any, data: bytes | memoryview) -> None:
    """Write all of it; as a rule the socket takes it at once.

    gevent's own ``sendall`` asks the socket for its buffer's size first, each time.
    """
    sent = socket.send(data)
    if sent < len(data):
        socket.sendall(memoryview(data)[sent:])


class ReadAhead:
    """``recv`` for a reader that asks for few bytes at a time; what else has come is kept for it.

    Args:
        recv: the socket's own. What it raises is raised, and nothing is lost by it.
    """

    __slots__ = ("_at", "_kept", "_recv")

    def __init__(self, recv: Callable[[int], bytes]) -> None:
        self._recv = recv
        self._kept, self._at = b"", 0

    def __call__(self, most: int) -> bytes:
        """Up to so many bytes; none at the end."""
        if self._at >= len(self._kept):
            self._kept, self._at = self._recv(max(most, AHEAD)), 0
        start = self._at
        self._at = start + most
        return self._kept[start : self._at]
