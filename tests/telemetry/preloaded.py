"""Programs that log, forked from a process that has what they import: a fifth of a second of CPU each."""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from tests.forked import Preloaded, fork_each


def run(program: str, arguments: Sequence[str], *, green: bool, timeout: float) -> Any:
    """``python -c PROGRAM ARGUMENTS`` to its end, on green threads or not."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        preloaded = _green() if green else _plain()
        job = {"program": program, "arguments": list(arguments)}
        process = preloaded.fork(os.environ, out, stderr=str(err), **job)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())


@cache
def _plain() -> Preloaded:
    """One for each process of pytest."""
    return Preloaded(sys.executable, "-m", __name__)


@cache
def _green() -> Preloaded:
    """Patched before anything else is imported, as a worker is."""
    return Preloaded(sys.executable, "-m", "gevent.monkey", "--module", __name__, "green")


def _become(program: str, arguments: list[str]) -> NoReturn:
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    sys.exit()


def _serve() -> None:
    importlib.import_module("pos_gateway.telemetry.log")
    if "green" not in sys.argv:
        fork_each(_become)
        return
    from gevent import monkey
    from gevent.os import fork_gevent

    fork_each(_become, fork_gevent, monkey.get_original("os", "waitpid"))


if __name__ == "__main__":
    _serve()
