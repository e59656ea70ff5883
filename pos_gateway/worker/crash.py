"""Ends the worker when a necessary thread dies.

A restart is better than a live worker with stuck orders. The worker stops as on SIGTERM, and requeues its orders.
"""

import os
import signal
import threading

import structlog

log = structlog.get_logger(__name__)

#: Errors, each the end of the worker.
_errors: list[BaseException | None] = []


def exit_code() -> int:
    """The exit code of a stop; after a crash a failure, since some supervisors restart failures only.

    Safe in signal handlers.
    """
    return os.EX_SOFTWARE if _errors else os.EX_OK


def end_worker(error: BaseException | None) -> None:
    """Log the error, and send this process SIGTERM."""
    _errors.append(error)
    log.critical("worker.crashed", error=repr(error), exc_info=error)
    os.kill(os.getpid(), signal.SIGTERM)


def watch_threads() -> None:
    """End the worker when any thread dies of an exception: the directory's, the fleet's."""

    def end(died: threading.ExceptHookArgs) -> None:
        if not issubclass(died.exc_type, SystemExit):  # a thread's regular way to end
            end_worker(died.exc_value)

    threading.excepthook = end
