"""``pos-gateway demo``: executes the demo, a process of its own that gevent patches first."""

import importlib.util
import os
import sys

import click

from pos_gateway.cli.failure import Failure

#: Packages without which server or worker do not run; the base install has none of them.
_NEEDED = ("celery", "gevent", "fastapi", "uvicorn", "uvloop", "httptools")


@click.command()
@click.option(
    "--serve",
    is_flag=True,
    help="Show it on the operations page, and take your orders over HTTP, until Ctrl-C.",
)
@click.option("--quick", is_flag=True, help="A few seconds of it, to try an installation.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="The server's, with --serve; 0: a free one. Default: 8080.",
)
def demo(serve: bool, quick: bool, port: int | None) -> None:
    """See the gateway at work: under a minute, nothing to set up, nothing left behind.

    Simulated merchants (most healthy, some slow, some that never answer), the real green worker
    and a stream of orders. The broker is in memory and the database is temporary, whatever the
    environment says: no order of yours is taken, and none of the demo's leaves this machine.

    With --serve it is on the operations page: the real HTTP server (pos-gateway serve) listens on
    this machine alone. It prints a link, a token to log in with, and curl commands for orders of
    your own, which the worker delivers among the others. One merchant becomes slow after half a
    minute, another one does not answer any more. Ctrl-C ends it.

    \b
    Examples:
      pos-gateway demo
      pos-gateway demo --quick
      pos-gateway demo --serve --port 8081

    Exit code: 0 if every order is accounted for, else 1; with --serve, 0 after Ctrl-C.
    """
    if port is not None and not serve:
        raise click.UsageError("--port goes with --serve")
    if quick and serve:
        raise click.UsageError("--quick goes without --serve, which runs until Ctrl-C")
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise Failure(f"it needs the package {package}: pip install 'pos-gateway[worker]'")
    module = ["pos_gateway.demo", *(["--quick"] if quick else [])]
    if serve:
        module = ["pos_gateway.demo.serve", str(8080 if port is None else port)]
    os.execv(sys.executable, [sys.executable, "-m", *module])  # noqa: S606
