"""Workers, forked from a process that has imported what they import: a second of CPU less each.

``tests/worker/test_green_worker.py`` starts the real commands, and compares the green ones.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.forked import Forked, Preloaded, fork_each

#: What ``pos_gateway.gcelery`` and ``pos_gateway.celery`` import (they read their settings at once),
#: and what a worker imports that has this database, a Redis, or tracing.
IMPORTED = (
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.bin.worker",
    "celery.events.dispatcher",
    "celery.events.receiver",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace.export",
    "pos_gateway.database.confirmed",
    "pos_gateway.database.psycopg_internals",
    "pos_gateway.ledger.waiting",
    "pos_gateway.attempt.gateway",
    "pos_gateway.telemetry.log",
    "pos_gateway.telemetry.tracing",
    "pos_gateway.worker.consumer",
    "pos_gateway.worker.tasks",
    "psycopg",
    "redis",
    "sqlite3",
)


def start(flags: tuple[str, ...], environment: Mapping[str, str], log: Path, path: str) -> Forked:
    """A green worker with these flags and this environment, and ``path`` first in ``sys.path``."""
    return _green().fork(environment, log, flags=flags, path=path)


def start_synchronous(
    flags: tuple[str, ...], environment: Mapping[str, str], log: Path, path: str
) -> Forked:
    """The same of a worker with processes."""
    return _synchronous().fork(environment, log, flags=flags, path=path)


@cache
def _green() -> Preloaded:
    """One for each process of pytest."""
    patched = ("-m", "gevent.monkey", "--module", __name__)
    return Preloaded(sys.executable, "-P", *patched)


@cache
def _synchronous() -> Preloaded:
    return Preloaded(sys.executable, "-P", "-m", __name__, "prefork")


def _serve() -> None:
    from gevent import monkey
    from gevent.os import fork_gevent

    from pos_gateway.worker.slim_celery import load

    command = load()
    _import("celery.concurrency.gevent")

    def become(flags: list[str], path: str) -> NoReturn:
        _find(path)
        sys.argv = [sys.argv[0], "-A", "pos_gateway.gcelery", "worker", "--pool=gevent", *flags]
        sys.exit(command(auto_envvar_prefix="CELERY", prog_name="celery"))

    fork_each(become, fork_gevent, monkey.get_original("os", "waitpid"))


def _serve_synchronous() -> None:
    from celery.__main__ import main

    _import("celery.concurrency.prefork", "celery.bin.celery")

    def become(flags: list[str], path: str) -> NoReturn:
        _find(path)
        sys.argv = ["celery", "-A", "pos_gateway", "worker", *flags]
        sys.exit(main())

    fork_each(become)


def _import(*pool: str) -> None:
    for name in (*IMPORTED, *pool):
        importlib.import_module(name)


def _find(path: str) -> None:
    sys.path[:0] = [each for each in path.split(os.pathsep) if each]


if __name__ == "__main__":
    (_serve_synchronous if "prefork" in sys.argv else _serve)()
