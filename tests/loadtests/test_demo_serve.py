"""``pos-gateway demo --serve``: its commands are run as they are printed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pos_gateway.cli.root import root

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "pos_gateway", "demo", "--serve", "--port")
#: Seconds for anything that should happen at once.
SOON = 30.0


class Demo:
    """The running command, and its guide."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        printed = self.read_until("has the rest")
        self._given, *self.commands = re.findall(r"(?:^  .*\n)+", printed, re.MULTILINE)

    @property
    def url(self) -> str:
        return re.findall(r"URL=(\S+)", self._given)[0]

    def read_until(self, text: str) -> str:
        """What it prints, up to the line with this text."""
        assert self.process.stdout is not None
        printed = ""
        for line in self.process.stdout:
            printed += line
            if text in line:
                return printed
        raise AssertionError(f"it has ended without {text!r}: {printed}")

    def run(self, command: str) -> Any:
        """The reply to a printed command."""
        script = self._given + command
        done = subprocess.run(
            ["sh", "-euc", script], capture_output=True, text=True, timeout=2 * SOON, check=True
        )
        return json.loads(done.stdout)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """One whose temporary folders are in ``tmp_path``, and whose user has servers and a proxy of their own."""
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "POS_GATEWAY_BROKER_URL": "amqp://127.0.0.1:1//",
        "POS_GATEWAY_REDIS_URL": "redis://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    with subprocess.Popen(
        [*COMMAND, "0"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Demo(process)
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_commands_show_an_order_accepted_and_one_that_hangs(
    demo: Demo, tmp_path: Path
) -> None:
    submit, see, read, submit_hanging, see_hanging = demo.commands
    assert demo.run(submit)["state"] == "submitted"
    [event] = demo.run(read)["events"]
    assert (event["type"], event["order_id"]) == ("order.accepted", "order-1")
    seen = demo.run(see)
    assert seen["state"] == "accepted"
    assert [each["outcome"] for each in seen["attempts"]] == ["accepted"]
    assert [each["type"] for each in seen["events"]] == ["order.accepted"]
    assert demo.run(submit_hanging)["state"] == "submitted"
    for in_flight in (1, 0):
        demo.read_until(f"orders: 2 submitted, 1 accepted, {in_flight} in flight")
    attempt = demo.run(see_hanging)["attempts"][0]
    assert (attempt["came"], attempt["outcome"]) == ("timeout", "in_doubt")
    demo.process.send_signal(signal.SIGINT)
    rest, _ = demo.process.communicate(timeout=SOON)
    assert demo.process.returncode == 0, rest
    assert "Traceback" not in rest and "Error" not in rest
    assert not list(tmp_path.iterdir())
    host, _, port = demo.url.removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, port], cwd=ROOT, capture_output=True, text=True, timeout=SOON
        )
    assert done.returncode == 1
    sentence = f"cannot listen at 127.0.0.1 port {port}: Address already in use"
    assert done.stderr == f"pos-gateway: {sentence}; choose another with --port\n"
    assert done.stdout == ""


def test_what_is_missing_or_wrong_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert CliRunner().invoke(root, ["demo", "--port", "8080"]).exit_code == 2
    wrong = CliRunner().invoke(root, ["demo", "--serve"], env={"POS_GATEWAY_SLOTS": "many"})
    assert wrong.exit_code == 78 and "POS_GATEWAY_SLOTS" in wrong.stderr
    monkeypatch.setitem(sys.modules, "fastapi", None)
    missing = CliRunner().invoke(root, ["demo", "--serve"])
    assert missing.exit_code == 1
    assert "needs the package fastapi: pip install 'pos-gateway[worker]'" in missing.stderr
