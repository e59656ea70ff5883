"""Buffers lines, and writes them to a stream on a native thread. Logging never waits for the stream.

A stream may block without limit: a full pipe blocks the writing thread, and all green threads on the
writing thread.
"""

import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from pos_gateway.runtime.green import native
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.line import LEVELS, Line

#: Lines buffered while the stream blocks, by default.
LINES = 8192
#: Seconds for which the first line after a pause waits for more lines: a joint write costs less, and
#: interrupts the rest of the process less often.
GATHER = 0.05
#: Maximum lines rendered at a time, while the other threads wait for the interpreter.
_BATCH_SIZE = 16
_DROPS = tuple(map(metrics.log_records_dropped.labels, LEVELS))
_WARNING, _ERROR = LEVELS.index("warning"), LEVELS.index("error")


class Ring:
    """Keeps the newest and the most severe items. Any thread may call any method, at any time.

    A full ring drops the oldest of the least severe items: an error only among errors. The lock is
    held for a few steps in memory only. The lock is re-entrant, since a signal or a garbage collection
    may make a second call within a call; the inner call leaves the item to the outer, at any step.

    Args:
        capacity: maximum items.
        severities: number of severities; 0 is the least severe.
    """

    def __init__(self, capacity: int, severities: int) -> None:
        self.capacity = capacity
        self._lanes = tuple(deque[tuple[int, Any]]() for _ in range(severities))
        #: Items not yet in a lane.
        self._coming: deque[tuple[int, Any]] = deque()
        self._numbers = count()
        #: Items dropped, by severity.
        self.dropped = [0] * severities
        self._lock = native("_thread", "RLock")()
        #: The lock's owner is changing the lanes.
        self._at_work = False

    def __len__(self) -> int:
        return len(self._coming) + sum(map(len, self._lanes))

    def put(self, severity: int, item: Any) -> None:
        """Add an item. Never waits for ``take``."""
        with self._lock:
            self._coming.append((severity, item))
            if self._at_work:  # this thread, in an outer call
                return
            self._at_work = True
            try:
                self._take_in()
            finally:
                self._at_work = False

    def take(self, most: int) -> tuple[list[tuple[int, Any]], list[int]]:
        """Remove the oldest items, ``most`` at most, each with its severity; and drops by then."""
        items: list[tuple[int, Any]] = []
        with self._lock:
            self._at_work = True
            try:
                self._take_in()
                while len(items) < most:
                    oldest = [(lane[0][0], n) for n, lane in enumerate(self._lanes) if lane]
                    if not oldest:
                        break
                    _, severity = min(oldest)
                    items.append((severity, self._lanes[severity].popleft()[1]))
                return items, self.dropped.copy()
            finally:
                self._at_work = False

    def lose(self, severity: int) -> None:
        """Count an item as dropped that was taken and then lost."""
        with self._lock:
            self._count_drop(severity)

    def _take_in(self) -> None:
        while self._coming:
            severity, item = self._coming.popleft()
            self._lanes[severity].append((next(self._numbers), item))
            while sum(map(len, self._lanes)) > self.capacity:
                self._drop()

    def _drop(self) -> None:
        least = next(severity for severity, lane in enumerate(self._lanes) if lane)
        self._lanes[least].popleft()
        self._count_drop(least)

    def _count_drop(self, severity: int) -> None:
        self.dropped[severity] += 1
        _DROPS[severity].inc()


class LogWriter:
    """Buffers lines for the writing thread. Any thread may call any method, at any time.

    The native thread starts with the first line, and lives as long as the process. A forked child
    starts a thread of its own, and does not write the parent's lines again.

    Args:
        write: returns after all data is written, however late. Raises OSError: a part is unwritten.
        lines: maximum lines buffered.
    """

    def __init__(self, write: Callable[[bytes], None], lines: int = LINES) -> None:
        self.write = write
        self._begin(lines)

    def put(self, line: Line) -> None:
        """Buffer a line. Takes microseconds, whatever the state of the stream."""
        self.ring.put(line.severity, line)
        if self._idle:
            self._wake()

    def flush(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the writes of earlier lines; returns whether all are done.

        Blocks the calling native thread, and all green threads there: for process exit.
        """
        if not self._runs and not len(self.ring):
            return True
        written = native("_thread", "allocate_lock")()
        written.acquire()
        self._flushes.append(written)
        self._wake()
        return self._runs and bool(written.acquire(timeout=seconds))

    def start_anew(self) -> None:
        """Begin again in a forked child, without the parent's thread and lines."""
        self._begin(self.ring.capacity)

    def _begin(self, lines: int) -> None:
        self.ring = Ring(lines, len(LEVELS))
        #: Drops by severity when last logged.
        self._logged_drops: Sequence[int] = [0] * len(LEVELS)
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
            items, dropped = self.ring.take(_BATCH_SIZE)
            if items:
                self._write(items, dropped)
            elif waiting:
                for written in waiting:
                    written.release()
                waiting.clear()
            else:
                self._rest()

    def _rest(self) -> None:
        """Wait for a line, and briefly for further lines."""
        self._idle = True
        if not len(self.ring) and not self._flushes:  # from here on ``put`` wakes the thread
            self._awake.acquire()
        self._idle = False
        if not self._flushes:
            self._awake.acquire(timeout=GATHER)

    def _write(self, items: Sequence[tuple[int, Line]], dropped: Sequence[int]) -> None:
        """Write the lines, after a line with the number of dropped lines, if any."""
        if dropped != self._logged_drops:
            missing = _missing(self._logged_drops, dropped, before=items[0][1])
            if self._takes(missing.rendered()):
                self._logged_drops = dropped
        for part in _parts(items):
            if not self._takes(b"".join(data for _, data in part)):
                for severity, _ in part:
                    self.ring.lose(severity)

    def _takes(self, data: bytes) -> bool:
        """Whether the stream accepts the data. May block for hours."""
        try:
            self.write(data)
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
