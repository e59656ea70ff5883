"""The green worker: ``celery -A pos_gateway.gcelery worker``. Patches first, then exports the app.

Celery has imported threading, ssl and half of itself before this module, and patching then leaves
names behind that block every green thread. So does even ``-P gevent``, which patches in Celery's
first lines: while gevent looks for existing locks it wakes Celery's lazy modules, and kombu takes
``from time import sleep`` before ``time`` is patched, so that a worker that waits for its broker
blocks as a whole. Therefore the same command runs again, in this same process, under ``python -m
gevent.monkey``, before anything of Celery is imported, and without what serves a person at a
terminal (``worker/slim_celery.py``). Flags are kept.
"""

import os
import subprocess
import sys
import time

import click
from gevent import config as gevent_config
from gevent import monkey

from pos_gateway.runtime.streams import open_closed

#: Celery's class rather than its name "gevent", which would make Celery warn that patching is late.
_POOL = "celery.concurrency.gevent:TaskPool"


def _pool_flag(arguments: list[str]) -> str | None:
    """The pool that the command line names; None if it names none."""
    for position, argument in enumerate(arguments):
        if argument in ("-P", "--pool"):
            return (arguments[position + 1 :] or [""])[0]
        if argument.startswith("--pool="):
            return argument.removeprefix("--pool=")
        if argument.startswith("-P") and len(argument) > 2:
            return argument[2:]
    return None


def _celery_command() -> str | None:
    """The command of ``celery`` that this process runs, ``worker``; None: another program."""
    context = click.get_current_context(silent=True)
    return context.invoked_subcommand if context else None


def _patched_late() -> bool:
    """Whether modules were imported before they were patched, with kombu as the witness."""
    witness = sys.modules.get("kombu.utils.functional")
    return witness is not None and (
        not monkey.is_module_patched("time") or witness.sleep is not time.sleep
    )


_named = _pool_flag(sys.argv)

#: ``-P prefork`` and other pools work as usual: this is then the synchronous worker.
_green = _named in (None, "gevent")

_command = _celery_command()

if _green and _patched_late() and _command == "worker" and "gevent.monkey" not in sys.orig_argv:
    open_closed()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os.execv(  # noqa: S606  (the same command as before)
        sys.executable,
        [
            sys.executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            "-P",  # no celery.py of the working directory is taken for Celery
            *("-m", "gevent.monkey", "--module", "pos_gateway.worker.slim_celery"),
            *sys.argv[1:],
            *(() if _named else ("--pool=gevent",)),
        ],
    )

# Celery's other commands start processes, with a ``subprocess`` that late patching would break.
if _green and _command in (None, "worker") and not monkey.is_module_patched("socket"):
    monkey.patch_all()

from pos_gateway.attempt import gateway
from pos_gateway.celery import app
from pos_gateway.worker.consumer import WINDOW

if _green:
    # Each green thread would keep ten frames of its origin, for debuggers alone.
    gevent_config.track_greenlet_tree = False
    app.conf.update(
        worker_pool=_POOL,
        worker_concurrency=gateway.current().settings.slots,
        worker_prefetch_multiplier=WINDOW,
    )

__all__ = ["app"]
