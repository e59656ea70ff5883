"""``pos-gateway worker``: executes a Celery worker."""

import importlib.util
import os
import sys

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Run a worker that sends orders to merchants. ARGUMENTS are those of celery worker.

    The same as celery -A pos_gateway.gcelery worker, in this process.

    \b
    Examples:
      pos-gateway worker                      # orders, and what no canary worker can take
      pos-gateway worker -Q orders.canary     # only the canary's orders
      pos-gateway worker -- --help            # Celery's other options
    """
    for needed in ("celery", "gevent"):  # the client's install has neither
        if importlib.util.find_spec(needed) is None:
            raise ModuleNotFoundError(f"No module named {needed!r}", name=needed)
    os.execv(sys.executable, command(arguments))  # noqa: S606  (deliberately no shell)


def command(arguments: tuple[str, ...]) -> list[str]:
    """The command line to execute."""
    # -P: ignore a celery.py in the current folder.
    celery = [sys.executable, "-P", "-m", "celery", "-A", "pos_gateway.gcelery", "worker"]
    names_pool = any(each.startswith(("-P", "--pool")) for each in arguments)
    return [*celery, *([] if names_pool else ["--pool=gevent"]), *arguments]
