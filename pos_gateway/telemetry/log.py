"""Structured logs: a JSON object per line, on standard error or in a file.

Logging never blocks: a writer thread writes the lines (``writer.py``). structlog's loggers and
Python's loggers both end here; ``docs/logging.md`` lists the events.
"""

import atexit
import logging
import os
import sys
from functools import cache, partial
from time import time
from types import SimpleNamespace, TracebackType
from typing import Any

import structlog

from pos_gateway.telemetry.line import LEVELS, LONGEST, Line, Trace, kept
from pos_gateway.telemetry.stream import LogFile, standard_error
from pos_gateway.telemetry.writer import LINES, LogWriter

#: Seconds that a process's exit waits for a blocked stream.
AT_THE_END = 2.0

_writer = LogWriter(standard_error().write)


def configure(level: int = logging.INFO, *, file: str | None = None, lines: int = LINES) -> None:
    """Configure this process's logging from ``level`` on. For programs; idempotent.

    Args:
        level: the least severe level written (logging's); for libraries' lines, INFO at the least.
        file: path of the log file; None: standard error.
        lines: maximum lines buffered while the stream blocks.

    Raises:
        OSError: the file cannot be written.
    """
    write = standard_error().write
    if file is not None:
        write = LogFile(file).write
        write(b"")  # fail now: a later error could not be reported
    _writer.write = write
    _writer.ring.capacity = lines
    structlog.configure(
        processors=[],
        wrapper_class=structlog.make_filtering_bound_logger(max(level, logging.DEBUG)),
        logger_factory=lambda *_: _LOGGER,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [LibraryHandler()]
    root.setLevel(max(level, logging.INFO))  # libraries' DEBUG lines hold customers' data
    _once()


def flush(seconds: float = AT_THE_END) -> bool:
    """Wait at most ``seconds`` for all writes; returns whether all are done. For process exit."""
    return _writer.flush(seconds)


def report_crashes() -> None:
    """Log an uncaught exception as an ordinary line before the process ends."""

    def log_uncaught(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)
        else:
            structlog.get_logger(__name__).critical("process.crashed", exc_info=error)

    sys.excepthook = log_uncaught


class LibraryHandler(logging.Handler):
    """The handler of Python's loggers: those of Celery, kombu and further libraries."""

    def createLock(self) -> None:  # noqa: N802  (logging's name)
        """No lock: the writer needs no lock, and gevent's is not for native threads."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Format the message now, since the arguments may change.

        Replaces logging's own method: from Python 3.13 on that method requires a lock.
        """
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  (too few arguments for the text, or odd arguments)
            message = (
                record.msg if isinstance(record.msg, str) else f"[{type(record.msg).__name__}]"
            )
        severity = min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)
        fields = {
            "event": "library.logged",
            "logger": record.name,
            "message": message[:LONGEST],
        }
        _writer.put(Line(record.created, severity, fields, _trace(record.exc_info)))
        return True


def _say(severity: int, /, exc_info: Any = None, trace: Trace | None = None, **fields: Any) -> None:
    if exc_info is not None:
        trace = trace or _trace(exc_info)
    _writer.put(Line(time(), severity, kept(fields), trace))


#: The logger behind structlog: a method per level.
_LOGGER = SimpleNamespace(**{level: partial(_say, n) for n, level in enumerate(LEVELS)})


def _trace(exc_info: Any) -> Trace | None:
    """The trace of logging's ``exc_info``: an exception, a tuple, or True: the current exception."""
    error = sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, tuple):
        error = error[1]
    return Trace.of(error) if isinstance(error, BaseException) else None


@cache
def _once() -> None:
    os.register_at_fork(after_in_child=_writer.start_anew)
    atexit.register(_end)


def _end() -> None:
    flush()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # no later line will be written
