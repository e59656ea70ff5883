"""A worker process that does not outlive its block, nor this process."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from loadtests.bench.cores import on_any_core, on_the_workers_core
from testkit.servers.process import end

ROOT = Path(__file__).resolve().parents[2]

#: What of the caller's environment would configure the worker behind the benchmark's back.
_CONFIGURING = ("POS_GATEWAY_", "CELERY", "PLAIN_", "GEVENT", "dramatiq_")


class WorkerEndedError(RuntimeError):
    """Raised when a worker has ended by itself."""


class Worker:
    """``python …`` with what it prints in a file. Start it from the main thread.

    Args:
        is_alone: it gets the worker's core; else it runs on any, beside all else.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        is_alone: bool = True,
    ) -> None:
        self._command = [sys.executable, *command]
        self._environment = {**_neutral_environment(), **environment}
        self._log = folder / "worker.log"
        self._place = on_the_workers_core if is_alone else on_any_core
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The worker's first process, the parent of its others."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def peak(self) -> float:
        """The most memory that this process has held since it was started, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024

    def start(self) -> None:
        """Start it; returns at once."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *self._program()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
            )

    def _program(self) -> list[str]:
        return self._place(self._command)

    def check(self) -> None:
        """Raises WorkerEndedError, with what it printed last, unless it runs."""
        if self._process is not None and self._process.poll() is not None:
            said = self._log.read_text(errors="replace")[-3000:]
            raise WorkerEndedError(f"`{' '.join(self._command)}` ended. Its last output:\n{said}")

    def kill(self) -> None:
        """End it with its whole process group. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def child(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that outlives neither its block nor this process."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)], cwd=ROOT, **options
    )
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


#: Makes a worker of a command, an environment and a folder.
MakeWorker = Callable[[Sequence[str], Mapping[str, str], Path], Worker]


def _neutral_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_CONFIGURING)}
