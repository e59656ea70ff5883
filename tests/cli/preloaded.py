"""Commands, forked from a process that has imported what they import: half a second of CPU less each.

What is on a terminal, goes on, or is the program's own is started as it is typed.
"""

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.forked import Forked, Preloaded, fork_each, run_module

#: Commands that are forked; the others have much to do with their process.
COMMANDS = ("enqueue", "events", "merchants", "tokens")
#: What they import.
IMPORTED = (
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.sqlite",
    "pos_gateway.cli.enqueue",
    "pos_gateway.cli.events",
    "pos_gateway.cli.outbox_program",
    "pos_gateway.cli.root",
    "pos_gateway.cli.tokens",
)
#: It restarts itself on green threads, and imports more.
_GREEN, _ITS = ("merchants", "check"), "pos_gateway.cli.merchants_check"


def run(
    arguments: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[bytes]":
    """``pos-gateway ARGUMENTS`` to its end."""
    started = _green() if tuple(arguments[:2]) == _GREEN else _plain()
    with TemporaryDirectory() as folder:
        given, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        given.write_bytes(stdin)
        job = {"module": "pos_gateway", "arguments": list(arguments)}
        process = started.fork(environment, out, stdin=str(given), stderr=str(err), **job)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, out.read_bytes(), err.read_bytes())


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
    """``pos-gateway ARGUMENTS``; its output goes to the file."""
    return _plain().fork(environment, log, module="pos_gateway", arguments=list(arguments))


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

        importlib.import_module(_ITS)
        fork_each(run_module, fork_gevent, monkey.get_original("os", "waitpid"))


if __name__ == "__main__":
    _serve()
