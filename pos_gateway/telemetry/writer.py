"""Writes lines to a stream on a native thread. Whoever says something never waits for it.

A stream may stand still for as long as it likes: a full pipe stops the thread that writes to it, and
on green threads that would be all of them.
"""

import select
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pos_gateway.runtime.green import native
from pos_gateway.telemetry.line import LEVELS, Line
from pos_gateway.telemetry.ring import Ring, Taken
from pos_gateway.telemetry.stream import Stream

#: Lines that are kept while the stream takes none, if nothing else is said.
LINES = 8192
#: Seconds that the first line after a pause waits for others: writing them together costs less, and
#: the others' threads are held up less often.
GATHER = 0.05
#: Lines that are made into bytes at a time: for as long, nobody else computes.
_AT_ONCE = 16
_WARNING, _ERROR = LEVELS.index("warning"), LEVELS.index("error")


class Writer:
    """What is said, until it is written. Any thread may call anything, at any time.

    The native thread begins with the first line, in a forked child too: nothing of the parent's is
    written there again. It lives as long as the process.

    Args:
        stream: where lines go.
        lines: how many are kept at most.
    """

    def __init__(self, stream: Stream, lines: int = LINES) -> None:
        self.stream = stream
        self._begin(lines)

    @property
    def lines(self) -> int:
        """How many are kept at most."""
        return self._ring.capacity

    @lines.setter
    def lines(self, lines: int) -> None:
        self._ring.capacity = lines

    @property
    def dropped(self) -> dict[str, int]:
        """Lines that were dropped, by level: there were too many, or the stream refused them."""
        return dict(zip(LEVELS, self._ring.dropped, strict=True))

    def put(self, line: Line) -> None:
        """Have it written. Takes microseconds, whatever the stream does."""
        self._ring.put(line.severity, line)
        if self._idle:
            self._wake()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was said before is written, for so many seconds at most.

        Blocks the native thread that calls it, and all of its green threads: for the end of a
        process. Returns whether it is written.
        """
        if not self._runs and not len(self._ring):
            return True
        written = native("_thread", "allocate_lock")()
        written.acquire()
        self._flushes.append(written)
        self._wake()
        return self._runs and bool(written.acquire(timeout=seconds))

    def start_anew(self) -> None:
        """In a child that was forked: its own thread, and nothing of its parent's."""
        self._begin(self.lines)

    def _begin(self, lines: int) -> None:
        self._ring = Ring[Line](lines, len(LEVELS))
        #: How many were dropped when a line last said so.
        self._told: Sequence[int] = (0,) * len(LEVELS)
        self._runs = False
        #: The thread waits for a line, or has not begun.
        self._idle = True
        #: Locks of those who wait in ``flush``.
        self._flushes: deque[Any] = deque()
        self._awake = native("_thread", "allocate_lock")()
        self._awake.acquire()
        self._starting = native("_thread", "allocate_lock")()

    def _wake(self) -> None:
        self._idle = False
        with suppress(RuntimeError):  # somebody else has
            self._awake.release()
        if not self._runs:
            self._start()

    def _start(self) -> None:
        if not self._starting.acquire(False):
            return  # somebody else does
        try:
            if not self._runs:
                native("_thread", "start_new_thread")(self._run, ())
                self._runs = True
        except RuntimeError:  # no thread is to be had; with the next line, perhaps
            self._idle = True
        finally:
            self._starting.release()

    def _run(self) -> None:
        waiting: list[Any] = []
        while True:
            while self._flushes:  # looked at first: what they wait for is in the ring by now
                waiting.append(self._flushes.popleft())
            taken = self._ring.take(_AT_ONCE)
            if taken.items:
                self._write(taken)
            elif waiting:
                for written in waiting:
                    written.release()
                waiting.clear()
            else:
                self._rest()

    def _rest(self) -> None:
        """Wait for a line, and for others that come soon after it."""
        self._idle = True
        if not len(self._ring) and not self._flushes:  # from now on it is woken
            self._awake.acquire()
        self._idle = False
        if not self._flushes:
            self._awake.acquire(timeout=GATHER)

    def _write(self, taken: Taken[Line]) -> None:
        """The lines, and before them, how many are missing there."""
        if taken.dropped != self._told:
            missing = _missing(self._told, taken.dropped, before=taken.items[0][1])
            if self._takes(missing.rendered()):
                self._told = taken.dropped
        for part in _parts(taken.items):
            if not self._takes(b"".join(data for _, data in part)):
                for severity, _ in part:
                    self._ring.lose(severity)

    def _takes(self, data: bytes) -> bool:
        """Whether the stream takes it, which may be a matter of hours."""
        try:
            self.stream.write(data)
        except OSError:  # its reader is gone, the disk is full: there is nobody to tell
            return False
        return True


def _parts(items: Iterable[tuple[int, Line]]) -> Iterator[list[tuple[int, bytes]]]:
    """Lines to be written at once: as many as a pipe takes whole, whoever else writes to it."""
    part: list[tuple[int, bytes]] = []
    size = 0
    for severity, line in items:
        data = _rendered(line)
        if part and size + len(data) > select.PIPE_BUF:
            yield part
            part, size = [], 0
        part.append((severity, data))
        size += len(data)
    yield part


def _rendered(line: Line) -> bytes:
    try:
        return line.rendered()
    except Exception as error:  # noqa: BLE001  (the thread must live on, whatever is in a line)
        fields = {"event": "log.unreadable", "error": type(error).__name__}
        return Line(line.at, line.severity, fields).rendered()


def _missing(told: Sequence[int], dropped: Sequence[int], before: Line) -> Line:
    """A line that stands where others are missing, in time too."""
    new = [now - before for now, before in zip(dropped, told, strict=True)]
    fields = {
        f"dropped_{level}": number for level, number in zip(LEVELS, new, strict=True) if number
    }
    severity = _ERROR if any(new[_ERROR:]) else _WARNING
    return Line(before.at, severity, {"event": "log.dropped", "records": sum(new), **fields})
