"""The event pipeline beside a worker that has no thread to spare for it: a process of its own."""

import os
import subprocess
import sys
import threading

import structlog

log = structlog.get_logger(__name__)

#: Seconds until another is started for one that has ended by itself.
AGAIN_AFTER = 5.0
#: Seconds that it may take to publish what is left.
GRACE = 10.0


class Companion:
    """``pos-gateway events run`` as a child, which ends when this process does, however that is.

    Forked children of this process have nothing to do with it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start it, and another whenever it ends. Idempotent."""
        if self._process is None:
            self._process = _started()
            threading.Thread(target=self._keep, name="companion", daemon=True).start()

    def stop(self) -> None:
        """Return when it has published what is left, or its time is over. Idempotent."""
        process = self._process
        if process is None or self._pid != os.getpid():
            return
        self._stopping.set()
        _let_go(process)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()

    def _keep(self) -> None:
        while self._process is not None:
            status = self._process.wait()
            if self._stopping.is_set():
                return
            log.warning("events.companion_ended", status=status, again_in=AGAIN_AFTER)
            _let_go(self._process)
            if self._stopping.wait(AGAIN_AFTER):
                return
            self._process = _started()


def _started() -> subprocess.Popen[bytes]:
    # The end of its input is the end of this process: nobody else has the other end.
    command = [sys.executable, "-P", "-m", "pos_gateway", "events", "run", "--until-eof"]
    # Nor is it to hear of a Ctrl-C: what is under way here may still finish, and be told.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603


def _let_go(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
