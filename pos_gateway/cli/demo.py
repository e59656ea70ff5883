"""``pos-gateway demo``: executes the demo, which is in ``loadtests``."""

import importlib.util
import os
import sys
from pathlib import Path

import click

from pos_gateway.cli.failure import Failure


@click.command()
def demo() -> None:
    """See the gateway at work: under a minute, nothing to set up, nothing left behind.

    Simulated merchants (most healthy, some slow, some that never answer), the real green worker
    and a stream of orders, on an in-memory broker, or on yours if POS_GATEWAY_BROKER_URL is set.
    Ends by itself; exit code 0 only if every order is accounted for.
    """
    sys.path.insert(0, str(Path.cwd()))
    if importlib.util.find_spec("loadtests") is None:
        raise Failure("the demo is part of the source: run it in the repository's folder")
    os.execv(sys.executable, [sys.executable, "-m", "loadtests.demo"])  # noqa: S606
