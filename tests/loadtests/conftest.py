"""What the benchmark's runs need."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from loadtests.bench.candidate import OURS
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker
from testkit.faults.site import Site
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli import preloaded as commands
from tests.worker import preloaded as workers

#: Where the flags begin in the command of a worker of the gateway.
_FLAGS = len(OURS.command)


@pytest.fixture
def servers(rabbitmq: RabbitMQ, postgresql: PostgreSQL) -> Servers:
    """Those of a benchmark, whatever another test did to them."""
    rabbitmq.start()
    postgresql.start()
    return Servers(rabbitmq, postgresql)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and commands are forked from processes that have their modules: a second of CPU less each.

    Not for tests of what a worker weighs: a fork shares its memory.
    """
    start = Worker.start

    def start_benched(worker: Worker) -> None:
        command = worker._command[1:]
        if tuple(command[:_FLAGS]) != OURS.command:
            start(worker)
            return
        environment = worker._environment
        path = environment.get("PYTHONPATH", "")
        worker._process = workers.start(tuple(command[_FLAGS:]), environment, worker._log, path)

    def start_on_site(
        _: Site, app: str, flags: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> "subprocess.Popen[bytes]":
        begin = workers.start if app == "pos_gateway.gcelery" else workers.start_synchronous
        return begin(tuple(flags), environment, log, environment.get("PYTHONPATH", ""))

    def operate(site: Site, *arguments: str) -> str:
        done = commands.run(arguments, b"", site._environment, timeout=PATIENCE)
        done.check_returncode()
        return done.stdout.decode()

    monkeypatch.setattr(Worker, "start", start_benched)
    monkeypatch.setattr(Site, "_started", start_on_site)
    monkeypatch.setattr(Site, "operate", operate)
