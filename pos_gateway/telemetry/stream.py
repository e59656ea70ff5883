"""Destinations of log lines: standard error, or a file, possibly rotated."""

import os
import select
import sys
from pathlib import Path

from pos_gateway.runtime.green import native


class Descriptor:
    """An open file, pipe or terminal. For a single native thread, the only thread to block on writes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._write = native("os", "write")
        #: The last line was not written completely: the next write starts a new line.
        self._torn = False

    def write(self, data: bytes) -> None:
        """Return after all data is written. Raises OSError: nothing was written, or a part."""
        left = whole = memoryview(b"\n" + data if self._torn else data)
        try:
            while left:
                try:
                    left = left[self._write(self.number, left) :]
                except BlockingIOError:  # another process set the shared pipe non-blocking
                    self._wait()
        except OSError:
            self._torn = self._torn or len(left) < len(whole)
            raise
        self._torn = False

    def _wait(self) -> None:
        poller = native("select", "poll")()
        poller.register(self.number, select.POLLOUT)
        poller.poll()


class LogFile:
    """A file to append lines to; reopened after a move or a removal (``logrotate``)."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._open: Descriptor | None = None

    def write(self, data: bytes) -> None:
        """As ``Descriptor.write``. Raises OSError also when the file cannot be opened."""
        if self._open is not None and self._was_moved(self._open.number):
            before, self._open = self._open, None
            os.close(before.number)
        if self._open is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._open = Descriptor(os.open(self._path, flags, 0o666))
        self._open.write(data)

    def _was_moved(self, number: int) -> bool:
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(number))
        except FileNotFoundError:
            return True


def standard_error() -> Descriptor:
    """This process's standard error, whatever Python's ``sys.stderr`` is."""
    try:
        return Descriptor(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
    except (OSError, ValueError):
        return Descriptor(2)
