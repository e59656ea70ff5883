"""Structured logs: one JSON object a line, on standard error or in a file.

Whoever logs hands a line over and goes on (``writer.py``). structlog's loggers and Python's end
here; ``docs/logging.md`` says what there is to read.
"""

import atexit
import logging
import os
import sys
from functools import cache, partial
from time import time
from types import TracebackType
from typing import Any

import structlog

from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.line import LEVELS, LONGEST, Line, kept
from pos_gateway.telemetry.stream import LogFile, standard_error
from pos_gateway.telemetry.trace import Trace
from pos_gateway.telemetry.writer import LINES, Writer

#: Seconds that the end of a process waits for a stream that takes nothing.
AT_THE_END = 2.0

_writer = Writer(standard_error())


def configure(level: int = logging.INFO, *, file: str | None = None, lines: int = LINES) -> None:
    """Have this process log, from this level (logging's) on. For programs to call; idempotent.

    Args:
        level: the least severe that is written; of libraries' lines, INFO at the least.
        file: where to; None: to standard error.
        lines: how many are kept while that takes none.

    Raises:
        OSError: nothing can be written to that file.
    """
    _writer.stream = standard_error() if file is None else _opened(file)
    _writer.lines = lines
    structlog.configure(
        processors=[],
        wrapper_class=structlog.make_filtering_bound_logger(max(level, logging.DEBUG)),
        logger_factory=lambda *_: _Logger(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [LibraryHandler()]
    root.setLevel(max(level, logging.INFO))  # at DEBUG they repeat messages, customers and all
    _once()


def flush(seconds: float = AT_THE_END) -> bool:
    """Wait until all is written, for so many seconds at most; whether it is. At a process's end."""
    return _writer.flush(seconds)


def tell_of_crashes() -> None:
    """Have an exception that ends this process be a line like any other."""

    def tell(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)
        else:
            structlog.get_logger(__name__).critical("process.crashed", exc_info=error)

    sys.excepthook = tell


class LibraryHandler(logging.Handler):
    """Where Python's loggers end: Celery's, kombu's, and whoever else has one."""

    def createLock(self) -> None:  # noqa: N802  (its name in logging)
        """None is needed, and gevent's is not for native threads."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """What it says is put together here: its arguments may change.

        In place of logging's own, which does not do without a lock from Python 3.13 on.
        """
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  (too few arguments for its text, or odd ones)
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


class _Logger:
    """What structlog hands a line to: the method has the level's name."""

    def __init__(self) -> None:
        for severity, level in enumerate(LEVELS):
            setattr(self, level, partial(_say, severity))


def _say(severity: int, /, exc_info: Any = None, trace: Trace | None = None, **fields: Any) -> None:
    _writer.put(Line(time(), severity, kept(fields), trace or _trace(exc_info)))


def _trace(exc_info: Any) -> Trace | None:
    """Of all that may stand for an exception: True is the present one."""
    error = sys.exc_info()[1] if exc_info is True else exc_info
    if isinstance(error, tuple):
        error = error[1]
    return Trace.of(error) if isinstance(error, BaseException) else None


def _opened(path: str) -> LogFile:
    file = LogFile(path)
    file.write(b"")  # later there would be nobody to tell
    return file


@cache
def _once() -> None:
    metrics.log_records_dropped.keeps(
        _writer, lambda writer: {(level,): n for level, n in writer.dropped.items()}
    )
    os.register_at_fork(after_in_child=_writer.start_anew)
    atexit.register(_end)


def _end() -> None:
    flush()
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # nobody reads lines of theirs any more
