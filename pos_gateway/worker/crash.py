"""A thread without which the worker stands still must not die quietly.

The worker is better not there, and started again, than there with orders that nobody moves: it
ends as it does when it is told to, handing back what it has.
"""

import os
import signal
import threading

import structlog

log = structlog.get_logger(__name__)


def end_worker(error: BaseException | None) -> None:
    """Say why, and stop this process as SIGTERM does."""
    log.critical("worker.crashed", error=repr(error), exc_info=error)
    os.kill(os.getpid(), signal.SIGTERM)


def watch_threads() -> None:
    """End the worker with any thread that dies of an exception: the directory's, the fleet's."""

    def end(died: threading.ExceptHookArgs) -> None:
        if not issubclass(died.exc_type, SystemExit):  # that is how a thread says that it is done
            end_worker(died.exc_value)

    threading.excepthook = end
