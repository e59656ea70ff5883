"""Green workers, forked from a process that has imported what they import: a second of CPU less each.

``tests/worker/test_green_worker.py`` starts the real command, and compares the two.
"""

import ctypes
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-P", "-m", "gevent.monkey", "--module", "tests.worker.preloaded")
#: What ``pos_gateway.gcelery`` imports; that itself reads its settings at once.
IMPORTED = (
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.concurrency.gevent",
    "pos_gateway.processing.gateway",
    "pos_gateway.worker.consumer",
    "pos_gateway.worker.tasks",
)
_SET_CHILD_SUBREAPER = 36


class Forked(subprocess.Popen[bytes]):
    """A child of this process that the preloaded one has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.args = COMMAND
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._communication_started = False
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


def start(flags: tuple[str, ...], environment: Mapping[str, str], log: Path, path: str) -> Forked:
    """A green worker with these flags and this environment, and ``path`` first in ``sys.path``."""
    preloaded = _preloaded()
    assert preloaded.stdin is not None
    assert preloaded.stdout is not None
    log.touch()  # a test may read it before the worker has opened it
    job = {"flags": flags, "environment": dict(environment), "log": str(log), "path": path}
    _adopt(True)  # the process between ends, and its child becomes ours
    try:
        preloaded.stdin.write(json.dumps(job).encode() + b"\n")
        preloaded.stdin.flush()
        return Forked(int(preloaded.stdout.readline()))
    finally:
        _adopt(False)


@cache
def _preloaded() -> "subprocess.Popen[bytes]":
    """One for each process of pytest; it ends with its input."""
    found = {**os.environ, "PYTHONPATH": str(ROOT)}  # this module, which no worker has
    return subprocess.Popen(
        COMMAND, cwd=ROOT, env=found, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _adopt(orphans: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve() -> None:
    from gevent import monkey
    from gevent.os import fork_gevent

    from pos_gateway.worker.slim_celery import load

    sys.path.remove(str(ROOT))
    command = load()
    for name in IMPORTED:
        importlib.import_module(name)
    waitpid = monkey.get_original("os", "waitpid")
    while line := sys.stdin.buffer.readline():
        between = fork_gevent()
        if not between:
            worker = fork_gevent()
            if not worker:
                _become(command, **json.loads(line))
            os.write(1, b"%d" % worker)
            os._exit(0)
        waitpid(between, 0)
        os.write(1, b"\n")  # only now has the worker its new parent


def _become(
    command: Any, *, flags: list[str], environment: dict[str, str], log: str, path: str
) -> NoReturn:
    for number, file in ((0, os.devnull), (1, log)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number > 0), 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.path[:0] = [each for each in path.split(os.pathsep) if each]
    sys.argv = [sys.argv[0], "-A", "pos_gateway.gcelery", "worker", "--pool=gevent", *flags]
    sys.exit(command(auto_envvar_prefix="CELERY", prog_name="celery"))


if __name__ == "__main__":
    _serve()
