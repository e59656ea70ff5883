"""``pos-gateway outbox``, with what a backend has installed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from kombu import Connection

from pos_gateway.cli.outbox_program import main
from pos_gateway.client import outbox
from pos_gateway.domain.errors import OrderDiffers
from testkit.patience import PATIENCE
from tests.cli import preloaded
from tests.outbox.lab import SOON, Backend, Gateway, orders
from tests.planting import ROOT
from tests.server.scripted import Scripted
from tests.test_client_install import run as run_with_the_base_install


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = preloaded.run(
        ("outbox", *arguments), b"", {**os.environ, **environment}, timeout=PATIENCE
    )
    said = (done.stdout.decode(), done.stderr.decode())
    return subprocess.CompletedProcess(done.args, done.returncode, *said)


@pytest.fixture
def with_refusals(backend: Backend, gateway: Gateway) -> Backend:
    """A backend with two refused rows, and a waiting one."""
    backend.place(*orders("o1", "o2"))
    gateway.errors = {
        "o1": OrderDiffers("the id is taken"),
        "o2": OrderDiffers("\x1b[31mred\ttab"),
    }
    outbox.Relay(gateway, backend.url).drain()
    backend.place(*orders("o3"))
    return backend


def test_the_printed_statements_create_the_table(tmp_path: Path) -> None:
    done = command("ddl", "--dialect", "sqlite")
    assert (done.returncode, done.stderr) == (0, "")
    with closing(sqlite3.connect(tmp_path / "backend.db")) as connection:
        connection.executescript(done.stdout)
        assert outbox.lag(connection) == outbox.Lag(0, 0.0, 0)


@pytest.mark.parametrize("dialect", list(outbox.Dialect))
def test_the_base_install_prints_them(dialect: str) -> None:
    done = run_with_the_base_install(
        f"sys.argv = ['pos-gateway', 'outbox', 'ddl', '--dialect', '{dialect}']\n"
        "from pos_gateway.cli import main\nmain()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{each};\n" for each in outbox.ddl(dialect))


def test_the_base_install_relays(local: Backend, broker_url: str) -> None:
    local.place(*orders("o1", "o2"))
    done = run_with_the_base_install(
        f"sys.argv = ['pos-gateway', 'outbox', 'relay', '--once', '--database-url', '{local.url}',"
        f" '--broker-url', '{broker_url}']\n"
        "from pos_gateway.cli import main\nmain()"
    )
    assert (done.returncode, done.stdout) == (0, "2 submitted\n"), done.stderr
    with Connection(broker_url) as connection:
        message = connection.default_channel.basic_get("orders", no_ack=True)
    assert message.properties["message_id"] == "o1"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_runs_until_it_is_told_to_stop(
    local: Backend, broker_url: str, stop: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pos_gateway", "outbox", "relay", "--poll", "0.02"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "POS_GATEWAY_OUTBOX_URL": local.url,
            "POS_GATEWAY_BROKER_URL": broker_url,
        },
    )
    try:
        assert process.stderr is not None
        assert "has started" in process.stderr.readline()
        local.place(*orders("o1"))
        relay = outbox.Relay(Gateway(), local.url)
        while relay.lag().rows:
            assert process.poll() is None
        process.send_signal(stop)
        assert "has stopped" in process.communicate(timeout=SOON)[1]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_ends_a_relay_whose_database_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[object] = []

    def run(_relay: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        handlers.extend(map(signal.getsignal, (signal.SIGTERM, signal.SIGINT)))

    monkeypatch.setattr("pos_gateway.cli.outbox_program.Relay.run", run)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        arguments = ["relay", "--database-url", f"sqlite:///{tmp_path}/x.db"]
        assert main([*arguments, "--broker-url", "memory://"]) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]


def test_a_relay_over_http(local: Backend) -> None:
    local.place(*orders("o1", "o2"))
    local.cancel("o1")
    batch = [
        {"status": 202, "order_id": "o1", "merchant_id": "fast-1", "state": "submitted"},
        {
            "type": "urn:pos-gateway:problem:order_differs",
            "title": "Conflict",
            "status": 409,
            "code": "order_differs",
            "detail": "the id is taken",
        },
    ]
    cancelled = {"order_id": "o1", "merchant_id": "fast-1", "state": "submitted"}
    server = Scripted(
        (207, {}, json.dumps(batch).encode()), (202, {}, json.dumps(cancelled).encode())
    )
    try:
        done = command(
            "relay", "--once", "--http-url", server.url, "--database-url", local.url,
            POS_GATEWAY_TOKEN="pgw_x",
        )  # fmt: skip
    finally:
        server.close()
    assert (done.returncode, done.stdout) == (0, "2 submitted\n"), done.stderr
    assert [each.path for each in server.asked] == [
        "/v1/orders/batch",
        "/v1/merchants/fast-1/orders/o1/cancel",
    ]
    assert "row 2 of the outbox is refused (OrderDiffers)" in done.stderr
    assert local.kept() == ["o2"]


def test_once_says_that_something_is_left(local: Backend) -> None:
    local.place(*orders("o1"))
    done = command(
        "relay", "--once", "--broker-url", "amqp://127.0.0.1:1//", "--database-url", local.url
    )
    assert (done.returncode, done.stdout) == (1, "0 submitted\n")
    assert "the gateway: BrokerUnavailable: cannot reach the broker" in done.stderr
    assert "Traceback" not in done.stderr


def test_rows_are_listed(with_refusals: Backend) -> None:
    done = command("list", POS_GATEWAY_OUTBOX_URL=with_refusals.url)
    assert done.returncode == 0, done.stderr
    head, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert head == ["id", "action", "merchant_id", "order_id", "age", "attempts", "state", "reason"]
    assert [line[3] for line in lines] == ["o1", "o2"]
    assert lines[0][6:] == ["refused", "OrderDiffers: the id is taken"]
    assert lines[1][7] == r"OrderDiffers: \x1b[31mred\ttab"
    done = command("list", "--all", "--json", "--limit", "3", "--database-url", with_refusals.url)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["state"] for each in found] == ["refused", "refused", "waiting"]
    assert found[1]["reason"] == "OrderDiffers: \x1b[31mred\ttab"


def test_the_lag_is_shown(with_refusals: Backend) -> None:
    done = command("lag", "--database-url", with_refusals.url)
    assert done.stdout.startswith("1 waiting, the oldest for ")
    assert done.stdout.endswith(" s; 2 refused\n")
    done = command("lag", "--json", "--database-url", with_refusals.url)
    assert {*json.loads(done.stdout)} == {"rows", "seconds", "refused"}


def test_refused_rows_are_retried_and_discarded(with_refusals: Backend, gateway: Gateway) -> None:
    url = with_refusals.url
    done = command("discard", "1", "4711", "--database-url", url)
    assert (done.returncode, done.stdout) == (1, "1 discarded\n")
    done = command("retry", "3", "--database-url", url)
    assert (done.returncode, done.stdout) == (1, "0 to be submitted again\n")
    done = command("retry", "--all", "--database-url", url)
    assert (done.returncode, done.stdout) == (0, "1 to be submitted again\n")
    gateway.errors = {}
    assert outbox.Relay(gateway, url).drain() == 2
    assert gateway.stored == ["o2", "o3"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        ([], 2, "the following arguments are required: COMMAND"),
        (["lag"], 78, "POS_GATEWAY_OUTBOX_URL: is not set, and no --database-url is given"),
        (["lag", "--database-url", "oracle://x"], 78, "must start with"),
        (["lag", "--database-url", "sqlite:////nowhere/x.db"], 1, "unable to open database file"),
        (["retry"], 2, "name the rows' ids, or all of them with --all"),
        (["retry", "--all", "7"], 2, "name the rows' ids, or all of them with --all"),
        (["retry", "x"], 2, "is 'x'; should be from 1"),
        (["relay", "--poll", "nan"], 2, "should be from 0.01 to 3600 seconds"),
        (["relay", "--batch", "0"], 2, "should be from 1 to 1000"),
        (["relay", "--broker-url", "a", "--http-url", "b"], 2, "not allowed with"),
        (["ddl", "--dialect", "oracle"], 2, "invalid choice: 'oracle'"),
    ],
)
def test_a_mistake_is_a_sentence(
    arguments: list[str], exit_code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    said = capsys.readouterr().err
    assert code == exit_code, said
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["ddl", "relay", "list", "lag", "retry", "discard"])
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert f"Examples:\n  pos-gateway outbox {name}" in capsys.readouterr().out


def test_it_is_listed_among_the_commands() -> None:
    from click.testing import CliRunner

    from pos_gateway.cli.root import root

    assert "outbox" in CliRunner().invoke(root, ["--help"]).output
    result = CliRunner().invoke(root, ["outbox", "ddl", "--dialect", "sqlite"])
    assert result.exit_code == 0
    assert outbox.TABLE in result.output
    assert "ddl" in CliRunner().invoke(root, ["outbox", "--help"]).output
