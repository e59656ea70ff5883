"""Green workers, forked from a process that has imported what they import: a second of CPU less each.

``tests/worker/test_green_worker.py`` starts the real command, and compares the two.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.forked import Forked, Preloaded, fork_each

#: What ``pos_gateway.gcelery`` imports; that itself reads its settings at once.
IMPORTED = (
    "celery.bin.worker",
    "celery.apps.worker",
    "celery.concurrency.gevent",
    "pos_gateway.processing.gateway",
    "pos_gateway.worker.consumer",
    "pos_gateway.worker.tasks",
)


def start(flags: tuple[str, ...], environment: Mapping[str, str], log: Path, path: str) -> Forked:
    """A green worker with these flags and this environment, and ``path`` first in ``sys.path``."""
    return _preloaded().fork(environment, log, flags=flags, path=path)


@cache
def _preloaded() -> Preloaded:
    """One for each process of pytest."""
    patched = ("-m", "gevent.monkey", "--module", "tests.worker.preloaded")
    return Preloaded(sys.executable, "-P", *patched)


def _serve() -> None:
    from gevent import monkey
    from gevent.os import fork_gevent

    from pos_gateway.worker.slim_celery import load

    command = load()
    for name in IMPORTED:
        importlib.import_module(name)

    def become(flags: list[str], path: str) -> NoReturn:
        sys.path[:0] = [each for each in path.split(os.pathsep) if each]
        sys.argv = [sys.argv[0], "-A", "pos_gateway.gcelery", "worker", "--pool=gevent", *flags]
        sys.exit(command(auto_envvar_prefix="CELERY", prog_name="celery"))

    fork_each(become, fork_gevent, monkey.get_original("os", "waitpid"))


if __name__ == "__main__":
    _serve()
