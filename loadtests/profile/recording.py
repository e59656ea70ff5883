"""A worker that is sampled while it works, by py-spy on another core."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from loadtests.bench.worker import Worker, WorkerEndedError

PROFILER = Path(sys.executable).with_name("py-spy")
#: Samples a second.
RATE = 200
#: Seconds for the worker's process to begin, and for the profiler to write.
_PATIENCE = 30.0

#: What the gateway's command becomes by itself: a profiler does not follow it through that.
COMMAND = (
    *("-m", "gevent.monkey", "--module", "celery", "-A", "pos_gateway.gcelery", "worker"),
    *("--pool=gevent", "--loglevel", "INFO"),
)


class Sampled(Worker):
    """A worker whose stacks are in the file when it has ended.

    The profiler starts it: a user other than root may look only into a child of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        into: Path,
    ) -> None:
        super().__init__(command, environment, folder)
        self._into = into
        self._worker = 0

    @property
    def pid(self) -> int:
        """The worker's process, not its profiler's."""
        return self._worker

    def start(self) -> None:
        """Start both; returns when the worker's process runs the worker's command."""
        super().start()
        profiler, deadline = psutil.Process(super().pid), time.monotonic() + _PATIENCE
        while not (workers := [one for one in profiler.children() if self._runs(one)]):
            self.check()
            if time.monotonic() >= deadline:
                raise WorkerEndedError("py-spy did not start the worker")
            time.sleep(0.01)
        self._worker = workers[0].pid

    def _runs(self, child: psutil.Process) -> bool:
        """Whether it has become the worker: before, it is a copy of its parent."""
        with suppress(psutil.NoSuchProcess):
            return child.cmdline() == self._command
        return False

    def kill(self) -> None:
        """Have the profiler write what it has seen, then end both."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
        super().kill()

    def _program(self) -> list[str]:
        how = ("record", "--rate", str(RATE), "--nolineno", "--format", "raw", "--output")
        return [str(PROFILER), *how, str(self._into), "--", *super()._program()]
