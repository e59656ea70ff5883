"""Bytes of requests that wait in memory, unparsed or untaken: over all connections their sum is bounded."""

from typing import Protocol

#: Maximum bytes of all connections together; and bytes of each that do not count: connections are limited.
HELD, FREE = 32 * 1024 * 1024, 8 * 1024


class Abortable(Protocol):
    """A connection."""

    def abort(self) -> None:
        """End it at once, with all that it keeps in memory."""


class Held:
    """Counts the bytes that wait on each connection, and aborts the longest without progress beyond ``HELD``.

    A client that behaves has its bytes taken within milliseconds, so it is none of these. For the event loop.
    """

    def __init__(self) -> None:
        #: The last to change is last.
        self._of: dict[Abortable, int] = {}
        self.bytes = 0

    def count(self, connection: Abortable, size: int) -> None:
        """A connection has this many bytes waiting now."""
        self.bytes -= self._of.pop(connection, 0)
        if size > FREE:
            self._of[connection] = size
            self.bytes += size
        while self.bytes > HELD:
            oldest = next(iter(self._of))
            self.bytes -= self._of.pop(oldest)
            oldest.abort()
