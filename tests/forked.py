"""Programs forked from a process that has their modules already, which saves a second of CPU each."""

import ctypes
import gc
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
_SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen[bytes]):
    """A child of this process that a preloaded one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.args = ("forked",)
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._communication_started = False
        self._input = self.encoding = self.errors = None
        self.text_mode = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class Preloaded:
    """A process whose module calls ``fork_each``. It ends with its input, so with this process."""

    def __init__(self, *command: str) -> None:
        found = {**os.environ, "PYTHONPATH": str(ROOT)}  # the module, which its forks do without
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=found, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def fork(self, environment: Mapping[str, str], log: Path, **job: Any) -> Forked:
        """A fork with this environment, whose output goes to the file, and that has the job.

        ``stdin`` and ``stderr`` may name other files than nothing and the same.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        log.touch()  # a test may read it before the fork has opened it,
        if log.is_file():
            os.truncate(log, 0)  # and is not to find there what one before has said
        said = {"environment": dict(environment), "log": str(log), **job}
        _adopt(True)  # the process between ends, and its child becomes ours
        try:
            process.stdin.write(json.dumps(said).encode() + b"\n")
            process.stdin.flush()
            return Forked(int(process.stdout.readline()))
        finally:
            _adopt(False)


def run_module(module: str, arguments: list[str]) -> NoReturn:
    """As ``python -P -m`` does, with this process's ``PYTHONPATH``."""
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


def _adopt(orphans: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def fork_each(
    become: Callable[..., NoReturn],
    fork: Callable[[], int] = os.fork,
    waitpid: Callable[[int, int], Any] = os.waitpid,
) -> None:
    """Fork for each job, and have ``become`` do it, in its environment."""
    sys.path.remove(str(ROOT))
    gc.freeze()  # no fork collects, at its end, what is here already
    while line := sys.stdin.buffer.readline():
        between = fork()
        if not between:
            worker = fork()
            if not worker:
                _begin(become, **json.loads(line))
            os.write(1, b"%d" % worker)
            os._exit(0)
        waitpid(between, 0)
        os.write(1, b"\n")  # only now has the fork its new parent


def _begin(
    become: Callable[..., NoReturn],
    *,
    environment: dict[str, str],
    log: str,
    stdin: str = os.devnull,
    stderr: str | None = None,
    **job: Any,
) -> NoReturn:
    for number, file in enumerate((stdin, log, stderr)):
        if file is None:
            os.dup2(1, number)
            continue
        writes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC  # not to read: a pipe breaks with its reader
        opened = os.open(file, writes if number else os.O_RDONLY, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    become(**job)
