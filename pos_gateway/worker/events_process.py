"""Runs the event pipeline as a child process of a worker without a thread to spare."""

import os
import subprocess
import sys
import threading

import structlog

log = structlog.get_logger(__name__)

#: Seconds until a process that has ended by itself is restarted.
RESTART_AFTER = 5.0
#: Seconds to publish the remaining events when stopping.
GRACE = 10.0


class EventsProcess:
    """``pos-gateway events run`` as a child, which ends when this process does, however that ends.

    ``stop`` does nothing in a fork of this process.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the child, and restart it whenever it ends. Idempotent."""
        if self._process is None:
            self._process = _started()
            threading.Thread(target=self._keep, name="companion", daemon=True).start()

    def stop(self) -> None:
        """Let the child publish the remaining events for ``GRACE`` seconds at most. Idempotent."""
        process = self._process
        if process is None or self._pid != os.getpid():
            return
        self._stopping.set()
        _terminate(process)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()

    def _keep(self) -> None:
        while self._process is not None:
            status = self._process.wait()
            if self._stopping.is_set():
                return
            log.warning("events.companion_ended", status=status, again_in=RESTART_AFTER)
            _terminate(self._process)
            self._process = self._restarted()

    def _restarted(self) -> subprocess.Popen[bytes] | None:
        """A new child, as soon as one can be started; None: this process stops."""
        while not self._stopping.wait(RESTART_AFTER):
            try:
                return _started()
            except (OSError, MemoryError) as error:  # no room for a fork, or too many processes
                log.warning(
                    "events.companion_not_started", error=str(error), again_in=RESTART_AFTER
                )
        return None


def _started() -> subprocess.Popen[bytes]:
    # Its input ends when this process does, which alone holds the other end.
    command = [sys.executable, "-P", "-m", "pos_gateway", "events", "run", "--until-eof"]
    # Ctrl-C must not reach it: orders in flight may still finish, and record events.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603


def _terminate(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
