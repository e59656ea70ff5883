"""The quick start's commands deliver an order, as they stand there."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.servers.process import free_port
from tests.cli.conftest import PATIENCE, ROOT, Program

PAGE = (ROOT / "docs/quick-start.md").read_text()
LISTEN = ROOT / "docs/examples/listen.py"


@pytest.fixture
def delivered(connected: Program) -> Iterator[Program]:
    """The page's commands have run in a shell; the worker and the merchants go on."""
    [script] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    script = script.replace("8090", str(free_port()))
    environment = connected.environment({})
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    said = connected.folder / "said"
    with said.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=connected.folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        assert shell.wait(PATIENCE) == 0, said.read_text()
        yield connected
    finally:
        os.killpg(shell.pid, signal.SIGKILL)


def test_an_order_of_ones_own_is_delivered_and_heard_of(delivered: Program) -> None:
    listener = subprocess.Popen(
        [sys.executable, LISTEN, delivered.settings["POS_GATEWAY_BROKER_URL"]],
        stdout=subprocess.PIPE,
        text=True,
    )
    with listener:
        assert listener.stdout is not None
        lines = sorted(listener.stdout.readline().split(maxsplit=1)[1] for _ in range(2))
        listener.kill()
    assert lines == ["order.accepted order-1\n", "order.failed order-2\n"]


def test_the_page_shows_the_consumer_as_it_is() -> None:
    [shown] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert LISTEN.read_text().endswith(shown)
