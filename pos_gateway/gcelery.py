"""The green worker: ``celery -A pos_gateway.gcelery worker``. Patches first, then hands on the app.

Celery has imported threading, ssl and half of itself before it comes here, and patching under
their feet leaves locks and ``sleep`` behind that stop every green thread. So when the worker was
started without naming a pool, the same command runs again, in this same process, as
``... worker --pool=gevent``, which is Celery's own way to patch before anything else. Named
flags are kept.
"""

import os
import sys
from pathlib import Path

from gevent import monkey

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


def _is_worker_command(arguments: list[str]) -> bool:
    program = Path(arguments[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return name == "celery" and "worker" in arguments[1:]


_patched = monkey.is_module_patched("socket")
_named = _pool_flag(sys.argv)

if not _patched and _is_worker_command(sys.argv) and _named is None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(  # noqa: S606  (the same command as before)
        sys.executable, [sys.executable, *sys.orig_argv[1:], "--pool=gevent"]
    )

#: Somebody who names another pool gets it: this is then the synchronous worker.
_green = _named in (None, "gevent")

if _green and not _patched:
    monkey.patch_all()

from pos_gateway import gateway
from pos_gateway.celery import app
from pos_gateway.worker.consumer import WINDOW

if _green:
    app.conf.update(
        worker_pool=_POOL,
        worker_concurrency=gateway.current().settings.slots,
        worker_prefetch_multiplier=WINDOW,
    )

__all__ = ["app"]
