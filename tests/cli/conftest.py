"""The real program in a subprocess, and what it left on the broker."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.cli.root import root
from pos_gateway.database import engine
from pos_gateway.database.engine import open_database
from pos_gateway.routing import splits
from testkit.patience import PATIENCE
from tests.cli import preloaded
from tests.cli.books import Books, Letters
from tests.schema import make_tables

ROOT = Path(__file__).parents[2]


@dataclass
class Program:
    """``pos-gateway`` in a folder and an environment of its own."""

    folder: Path
    settings: dict[str, str]
    _running: ExitStack = field(default_factory=ExitStack)

    def run(
        self, *arguments: str, stdin: str | bytes = b"", **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        environment = self.environment(settings)
        if arguments[0] in preloaded.COMMANDS and not any(
            name.startswith("PYTHON") for name in settings
        ):
            done = preloaded.run(arguments, given, environment, PATIENCE)
        else:
            done = subprocess.run(
                [sys.executable, "-m", "pos_gateway", *arguments],
                input=given,
                capture_output=True,
                cwd=self.folder,
                env=environment,
                timeout=PATIENCE,
                check=False,
            )
        stdout, stderr = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in stderr, stderr
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)

    def invoke(self, *arguments: str, stdin: str = "", **settings: str) -> Result:
        """Run a command in this process, which is ten times as fast."""
        environment = {**self.settings, **settings}
        result = CliRunner().invoke(root, arguments, input=stdin, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command that goes on until it is told to stop."""
        process: Any
        if arguments[0] in preloaded.ON_AND_ON:
            process = preloaded.piped(arguments, self.environment({}))
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "pos_gateway", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.folder,
                env=self.environment({}),
            )
        self._running.enter_context(process)
        self._running.callback(process.kill)
        return process  # type: ignore[no-any-return]

    def close(self) -> None:
        self._running.close()

    def environment(self, settings: dict[str, str]) -> dict[str, str]:
        inherited = {
            name: os.environ[name] for name in ("PATH", "HOME", "TZ") if name in os.environ
        }
        return {**inherited, "PYTHONPATH": str(ROOT), **self.settings, **settings}


def press_ctrl_c(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Interrupt a program, and return the rest of its output."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE)


def on_terminal(program: Program, *arguments: str, **settings: str) -> str:
    """What a command shows on a terminal."""
    ours, theirs = pty.openpty()
    environment = program.environment({"TERM": "xterm", **settings})
    process: subprocess.Popen[bytes]
    if arguments[0] in preloaded.ON_TERMINAL:
        process = preloaded.on(os.ttyname(theirs), arguments, environment)
    else:
        process = subprocess.Popen(
            [sys.executable, "-m", "pos_gateway", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=program.folder,
            env=environment,
        )

    def close_after_it() -> None:  # a fork opens the terminal by its name
        process.wait()
        os.close(theirs)

    closing = threading.Thread(target=close_after_it)
    closing.start()
    shown = bytearray()
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # Linux's way to say that the other end is closed
        pass
    closing.join()
    os.close(ours)
    return shown.decode()


@pytest.fixture
def program(tmp_path: Path, database_url: str) -> Iterator[Program]:
    """The program with a database of its own and a broker that is down."""
    program = Program(
        tmp_path,
        {
            "POS_GATEWAY_BROKER_URL": "amqp://127.0.0.1:1//",
            "POS_GATEWAY_DATABASE_URL": database_url,
            "POS_GATEWAY_METRICS_PORT": "0",
            "USER": "kim",
        },
    )
    yield program
    program.close()


@pytest.fixture
def migrated(program: Program, database_url: str) -> Program:
    """The program with the tables made."""
    opened = open_database(database_url)
    make_tables(opened)
    opened.dispose()
    return program


@pytest.fixture
def connected(program: Program, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program with a broker that runs, and has no split for the canary: none is waited for."""
    monkeypatch.setattr(splits, "THERE", 0.0)
    program.settings["POS_GATEWAY_BROKER_URL"] = broker_url
    return program


@dataclass
class Orders:
    """Reads what arrives in the queue of orders."""

    connection: Connection

    def take(self, count: int) -> list[str]:
        """The ids of the next orders, in the order of arrival; waits until they are there."""
        received: list[Any] = []
        consumer = self.connection.Consumer(
            [topology.orders_queue], no_ack=True, on_message=received.append
        )
        with consumer:
            while len(received) < count:
                self.connection.drain_events(timeout=PATIENCE)
        return [message.headers["id"] for message in received]

    def left(self) -> int:
        """How many there are in the queue."""
        with self.connection.channel() as channel:
            return int(topology.orders_queue.bind(channel).queue_declare(passive=True)[1])


@pytest.fixture
def orders(broker_url: str) -> Iterator[Orders]:
    """The broker's queue of orders, declared."""
    with Connection(broker_url) as connection:
        topology.declare(connection)
        yield Orders(connection)


@pytest.fixture
def order() -> Callable[..., dict[str, Any]]:
    """Makes orders that are right but for the fields given."""

    def make(order_id: str = "o-1", **fields: Any) -> dict[str, Any]:
        now = datetime.now(UTC)
        return {
            "order_id": order_id,
            "merchant_id": "m-1",
            "placed_at": now.isoformat(),
            "deliver_by": (now + timedelta(hours=1)).isoformat(),
            "currency": "EUR",
            "items": [{"sku": "s", "name": "Soup", "quantity": 1, "unit_price": 450}],
            "total": 450,
            **fields,
        }

    return make


@pytest.fixture
def books(
    database_url: str, program: Program, order: Callable[..., dict[str, Any]]
) -> Iterator[Books]:
    """The program's ledger."""
    books = Books(database_url, order, None)
    yield books
    books.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_books(
    request: pytest.FixtureRequest,
    program: Program,
    order: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Books]:
    """The same on each database. A slow machine's command may stand still within a transaction."""
    monkeypatch.setattr(engine, "_IDLE", f"{PATIENCE}s")
    wanted = {"sqlite": "database_url", "postgresql": "postgres_url"}[request.param]
    url = request.getfixturevalue(wanted)
    program.settings["POS_GATEWAY_DATABASE_URL"] = url
    books = Books(url, order, None)
    yield books
    books.close()


@pytest.fixture
def letters(broker_url: str) -> Iterator[Letters]:
    """The broker's queues."""
    letters = Letters(broker_url)
    yield letters
    letters.close()
