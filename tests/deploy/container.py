"""A container's PID namespace, without a container runtime, and the process that it signals."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from testkit.patience import PATIENCE


class Container:
    """A command in a new PID namespace, which ends with this process at the latest.

    Args:
        init: whether another process is PID 1 (a pod's pause, Docker's init), or the command.
        log: the file for its output.

    Raises:
        AssertionError: this machine does not allow the namespace; has the reason.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        init: bool,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._log = log
        # bash does not exec the command, since another one follows (and dash breaks at vfork).
        pid_1 = ["bash", "-c", '"$@"; exit $?', "bash"] if init else []
        with log.open("wb") as output:
            self._unshare = subprocess.Popen(
                [*_NAMESPACES, *pid_1, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
            )
        first = self._child_of(self._unshare.pid)
        #: What a runtime signals, by its PID outside.
        self.pid = self._child_of(first) if init else first

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def tell(self, number: signal.Signals) -> None:
        """Signal the command, as a runtime does; nothing if it has ended."""
        if self._unshare.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Its exit code, as a shell prints it. Raises TimeoutError."""
        try:
            return self._unshare.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def kill(self) -> None:
        """Kill everything in it. Idempotent."""
        self._unshare.kill()
        self._unshare.wait()

    def _child_of(self, pid: int) -> int:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        until = time.monotonic() + PATIENCE
        while self._unshare.poll() is None and time.monotonic() < until:
            if found := children.read_text().split():
                return int(found[0])
            time.sleep(0.001)
        self.kill()
        raise AssertionError(f"no process in a PID namespace: {self.log}")


#: In a user namespace, too: so no root is needed.
_NAMESPACES = (
    *("unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"),
    *("--kill-child=SIGKILL", "--"),
)
