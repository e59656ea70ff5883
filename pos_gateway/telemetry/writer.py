"""Writes lines to a stream on a native thread. Logging never waits for the stream.

A stream may block without limit: a full pipe blocks the writing thread, and all green threads on the
writing thread.
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

#: Lines buffered while the stream blocks, by default.
LINES = 8192
#: Seconds for which the first line after a pause waits for more lines: a joint write costs less, and
#: interrupts the rest of the process less often.
GATHER = 0.05
#: Maximum lines rendered at a time, while the other threads wait for the interpreter.
_BATCH_SIZE = 16
_WARNING, _ERROR = LEVELS.index("warning"), LEVELS.index("error")


class LogWriter:
    """Buffers lines for the writing thread. Any thread may call any method, at any time.

    The native thread starts with the first line, and lives as long as the process. A forked child
    starts a thread of its own, and does not write the parent's lines again.

    Args:
        stream: the destination of lines.
        lines: maximum lines buffered.
    """

    def __init__(self, stream: Stream, lines: int = LINES) -> None:
        self.stream = stream
        self._begin(lines)

    @property
    def lines(self) -> int:
        """Maximum lines buffered."""
        return self._ring.capacity

    @lines.setter
    def lines(self, lines: int) -> None:
        self._ring.capacity = lines

    @property
    def dropped(self) -> dict[str, int]:
        """Lines dropped, by level: the buffer was full, or the stream failed."""
        return dict(zip(LEVELS, self._ring.dropped, strict=True))

    def put(self, line: Line) -> None:
        """Buffer a line. Takes microseconds, whatever the state of the stream."""
        self._ring.put(line.severity, line)
        if self._idle:
            self._wake()

    def flush(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the writes of earlier lines; returns whether all are done.

        Blocks the calling native thread, and all green threads there: for process exit.
        """
        if not self._runs and not len(self._ring):
            return True
        written = native("_thread", "allocate_lock")()
        written.acquire()
        self._flushes.append(written)
        self._wake()
        return self._runs and bool(written.acquire(timeout=seconds))

    def start_anew(self) -> None:
        """Begin again in a forked child, without the parent's thread and lines."""
        self._begin(self.lines)

    def _begin(self, lines: int) -> None:
        self._ring = Ring[Line](lines, len(LEVELS))
        #: Drops by severity when last logged.
        self._logged_drops: Sequence[int] = (0,) * len(LEVELS)
        self._runs = False
        #: The thread waits for a line, or has not started.
        self._idle = True
        #: Locks of ``flush`` callers.
        self._flushes: deque[Any] = deque()
        self._awake = native("_thread", "allocate_lock")()
        self._awake.acquire()
        self._starting = native("_thread", "allocate_lock")()

    def _wake(self) -> None:
        self._idle = False
        with suppress(RuntimeError):  # a different thread has released the lock
            self._awake.release()
        if not self._runs:
            self._start()

    def _start(self) -> None:
        if not self._starting.acquire(False):
            return  # a different thread starts the writer
        try:
            if not self._runs:
                native("_thread", "start_new_thread")(self._run, ())
                self._runs = True
        except RuntimeError:  # no thread available: the next line retries
            self._idle = True
        finally:
            self._starting.release()

    def _run(self) -> None:
        waiting: list[Any] = []
        while True:
            while self._flushes:  # first: the lines before a flush are in the ring by now
                waiting.append(self._flushes.popleft())
            taken = self._ring.take(_BATCH_SIZE)
            if taken.items:
                self._write(taken)
            elif waiting:
                for written in waiting:
                    written.release()
                waiting.clear()
            else:
                self._rest()

    def _rest(self) -> None:
        """Wait for a line, and briefly for further lines."""
        self._idle = True
        if not len(self._ring) and not self._flushes:  # from here on ``put`` wakes the thread
            self._awake.acquire()
        self._idle = False
        if not self._flushes:
            self._awake.acquire(timeout=GATHER)

    def _write(self, taken: Taken[Line]) -> None:
        """Write the lines, after a line with the number of dropped lines, if any."""
        if taken.dropped != self._logged_drops:
            missing = _missing(self._logged_drops, taken.dropped, before=taken.items[0][1])
            if self._takes(missing.rendered()):
                self._logged_drops = taken.dropped
        for part in _parts(taken.items):
            if not self._takes(b"".join(data for _, data in part)):
                for severity, _ in part:
                    self._ring.lose(severity)

    def _takes(self, data: bytes) -> bool:
        """Whether the stream accepts the data. May block for hours."""
        try:
            self.stream.write(data)
        except OSError:  # the reader is gone, or the disk full: cannot be logged
            return False
        return True


def _parts(items: Iterable[tuple[int, Line]]) -> Iterator[list[tuple[int, bytes]]]:
    """Batches of lines, each small enough for an atomic write into a shared pipe."""
    part: list[tuple[int, bytes]] = []
    size = 0
    for severity, line in items:
        try:
            data = line.rendered()
        except Exception as error:  # noqa: BLE001  (no line may end the thread)
            fields = {"event": "log.unreadable", "error": type(error).__name__}
            data = Line(line.at, line.severity, fields).rendered()
        if part and size + len(data) > select.PIPE_BUF:
            yield part
            part, size = [], 0
        part.append((severity, data))
        size += len(data)
    yield part


def _missing(reported: Sequence[int], dropped: Sequence[int], before: Line) -> Line:
    """A line in place of dropped lines, with the timestamp of the next line."""
    new = [now - before for now, before in zip(dropped, reported, strict=True)]
    fields = {
        f"dropped_{level}": number for level, number in zip(LEVELS, new, strict=True) if number
    }
    severity = _ERROR if any(new[_ERROR:]) else _WARNING
    return Line(before.at, severity, {"event": "log.dropped", "records": sum(new), **fields})
