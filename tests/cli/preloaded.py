"""Commands, forked from a process that has imported what they import: half a second of CPU less each.

What is the program's own is started as it is typed, and what has a relative path: a fork is not in
its folder.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.forked import Forked, Preloaded, fork_each, run_module

#: Commands that are forked; the others have much to do with their process.
COMMANDS = ("enqueue", "events", "merchants", "tokens")
#: Those that are forked also where they are on a terminal, and where they go on.
ON_TERMINAL, ON_AND_ON = ("audit", "events", "merchants", "tokens"), ("audit", "events")
#: What they import.
IMPORTED = (
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.sqlite",
    "pos_gateway.cli.audit",
    "pos_gateway.cli.enqueue",
    "pos_gateway.cli.events",
    "pos_gateway.cli.outbox_program",
    "pos_gateway.cli.root",
    "pos_gateway.cli.tokens",
)
#: They restart themselves on green threads, and import more.
_GREEN = (["merchants", "check"], ["merchants", "catalog", "pull"])
_THEIRS = "pos_gateway.cli.catalog_pull"


def run(
    arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[bytes]":
    """``pos-gateway ARGUMENTS`` to its end."""
    with TemporaryDirectory() as folder:
        given, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        given.write_bytes(stdin)
        process = _fork(arguments, environment, out, stdin=str(given), stderr=str(err))
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_bytes(), err.read_bytes())


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
    """``pos-gateway ARGUMENTS``; its output goes to the file."""
    return _fork(arguments, environment, log)


def piped(arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """The same, which goes on; its output is in pipes, as texts."""
    with TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        os.mkfifo(out)
        os.mkfifo(err)
        process: Any = _fork(arguments, environment, out, stderr=str(err))
        process.stdout, process.stderr = out.open(), err.open()
        return process  # type: ignore[no-any-return]


def on(terminal: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """The same, on a terminal."""
    return _fork(arguments, environment, Path(terminal), stdin=terminal)


def _fork(
    arguments: Sequence[str], environment: Mapping[str, str], out: Path, **files: str
) -> Forked:
    is_green = any(list(arguments[: len(each)]) == each for each in _GREEN)
    preloaded = _green() if is_green else _plain()
    job = {"module": "pos_gateway", "arguments": list(arguments)}
    return preloaded.fork(environment, out, **files, **job)


@cache
def _plain() -> Preloaded:
    """One for each process of pytest."""
    return Preloaded(sys.executable, "-P", "-m", __name__)


@cache
def _green() -> Preloaded:
    return Preloaded(sys.executable, "-P", "-m", "gevent.monkey", "--module", __name__, "green")


def _serve() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    if "green" not in sys.argv:
        fork_each(run_module)
    else:
        from gevent import monkey
        from gevent.os import fork_gevent

        importlib.import_module(_THEIRS)
        from pos_gateway.cache.shared import SharedValues

        # Redis on a slow machine is not to pass for one that is away.
        SharedValues.__init__.__kwdefaults__["timeout"] = 20.0
        fork_each(run_module, fork_gevent, monkey.get_original("os", "waitpid"))


if __name__ == "__main__":
    _serve()
