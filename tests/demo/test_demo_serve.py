"""``pos-gateway demo --serve``: its commands are run as they are printed, and its page is opened."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pos_gateway.cli.root import root
from pos_gateway.demo import story
from pos_gateway.demo.guide import guide
from testkit.patience import PATIENCE
from tests.page.lab import over_http

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "pos_gateway", "demo", "--serve", "--port")
#: Seconds for anything that should happen at once.
SOON = PATIENCE


class Demo:
    """The running command, and its guide."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        printed = self.read_until("has the rest")
        page, operator, self._given, *self.commands = re.findall(
            r"(?:^  .*\n)+", printed, re.MULTILINE
        )
        self.page, self.operator = page.strip(), operator.strip()

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
    """One that all is well with for a while."""
    with running(tmp_path, *COMMAND, "0") as demo:
        yield demo


@contextmanager
def running(tmp_path: Path, *command: str) -> Iterator[Demo]:
    """One whose temporary folders are in ``tmp_path``, and whose user has servers and a proxy of their own."""
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "POS_GATEWAY_BROKER_URL": "amqp://127.0.0.1:1//",
        "POS_GATEWAY_REDIS_URL": "redis://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    with subprocess.Popen(
        command,
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


def eventually(look: Callable[[], Any], what: str) -> Any:
    """What it returns, once that is something."""
    until = time.monotonic() + 2 * SOON
    while not (found := look()):
        assert time.monotonic() < until, what
        time.sleep(0.2)
    return found


def figure(text: str, name: str) -> int:
    """A number of the page Now; 0 while it is not known."""
    [found] = re.findall(rf"<dt>{name}</dt><dd><b>(.*?)</b>", text)
    digits = found.replace(",", "")
    return int(digits) if digits.isdecimal() else 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_printed_commands_show_an_order_accepted_and_one_that_hangs(
    demo: Demo, tmp_path: Path
) -> None:
    submit, see, read, submit_hanging, see_hanging = demo.commands
    assert demo.run(submit)["state"] == "submitted"
    assert demo.run(read)["events"]  # those of the page's orders are among them
    demo.read_until("your orders: 1 submitted, 1 accepted")
    seen = demo.run(see)
    assert seen["state"] == "accepted"
    assert [each["outcome"] for each in seen["attempts"]] == ["accepted"]
    assert [each["type"] for each in seen["events"]] == ["order.accepted"]
    assert demo.run(submit_hanging)["state"] == "submitted"
    demo.read_until("your orders: 2 submitted, 1 accepted")
    attempt = eventually(
        lambda: next((e for e in demo.run(see_hanging)["attempts"] if e["outcome"]), None),
        "its attempt has not ended",
    )
    assert (attempt["came"], attempt["outcome"]) == ("timeout", "in_doubt")
    demo.process.send_signal(signal.SIGINT)
    rest, _ = demo.process.communicate(timeout=SOON)
    assert demo.process.returncode == 0, rest
    assert "Traceback" not in rest and "Error" not in rest
    assert not list(tmp_path.iterdir())
    host, _, port = demo.url.removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


def test_its_page_tells_the_story_of_the_slow_merchant(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pos_gateway.demo.serve", "0", "1")
    with running(tmp_path, *command) as demo:
        assert demo.page == f"{demo.url}/"
        browser = over_http(demo.url)
        assert browser.log_in(demo.operator).status == 303
        # One that is slow, and one that does not answer.
        eventually(
            lambda: "2 merchants are in trouble" in browser.get("/").text,
            "no merchant is in trouble",
        )
        text = browser.get("/").text
        assert figure(text, "Workers") == 1
        assert 0 < figure(text, "Orders out") < figure(text, "Orders in")
        text = browser.get("/merchants").text
        assert all(f'href="/merchants/{each}"' in text for each in (story.SLOW, story.SILENT))
        # The operator's token acts.
        form = browser.get(f"/merchants/{story.SLOW}/pause").form("/merchants")
        assert browser.submit(form, reason="its kitchen is flooded").status == 303
        demo.process.send_signal(signal.SIGINT)
        rest, _ = demo.process.communicate(timeout=SOON)
    assert demo.process.returncode == 0, rest
    assert "Traceback" not in rest


def test_a_program_that_is_started_after_the_printed_line_has_url_and_token() -> None:
    printed = guide("http://127.0.0.1:1", "an operator's", "pgw_x", 30.0)
    [given] = [line.strip() for line in printed.splitlines() if "URL=" in line]
    program = 'import os; print(os.environ["URL"], os.environ["TOKEN"])'
    done = subprocess.run(
        ["sh", "-euc", f"{given}\n{shlex.join([sys.executable, '-c', program])}"],
        env={name: value for name, value in os.environ.items() if name not in ("URL", "TOKEN")},
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert (done.stdout, done.stderr) == ("http://127.0.0.1:1 pgw_x\n", "")


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
    monkeypatch.setitem(sys.modules, "fastapi", None)
    for arguments in ([], ["--serve"]):
        missing = CliRunner().invoke(root, ["demo", *arguments])
        assert missing.exit_code == 1
        assert "needs the package fastapi: pip install 'pos-gateway[worker]'" in missing.stderr
