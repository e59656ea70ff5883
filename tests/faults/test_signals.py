"""Containers that are told to stop at any moment from the start on: each of their commands."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pos_gateway.database.engine import open_database, require_current, upgrade
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from tests.deploy.commands import ROOT, Command, commands
from tests.deploy.container import Container
from tests.faults.lab import FaultLab

EVERY = os.environ.get("SIGNALS") == "all"
#: Seconds from a command's start to SIGTERM: before the imports, during them, and once it handles
#: signals itself.
MOMENTS = [tenths / 10 for tenths in range(0, 40, 2)] if EVERY else [0.0, 0.4, 1.2]
#: Its exit status: its own, or the signal's.
ENDED = {0, 128 + signal.SIGTERM}

pytestmark = pytest.mark.timeout(1200)


def test_only_pid_1_ignores_a_signal_without_a_handler(tmp_path: Path) -> None:
    """The trap, and how every pod and service of ours avoids it."""
    told = tmp_path / "told"
    os.mkfifo(told)
    program = f"open({str(told)!r}).read(); print('deaf')"
    for init, code in ((True, 143), (False, 0)):
        container = Container(
            [sys.executable, "-S", "-c", program],
            init=init,
            log=tmp_path / "log",
            environment=os.environ,
        )
        writer = told.open("w")  # opened once the program reads it
        container.tell(signal.SIGTERM)
        if init:
            assert container.wait(PATIENCE) == code
        writer.close()
        assert container.wait(PATIENCE) == code
        assert ("deaf" in container.log) is not init


def test_every_command_of_a_container_stops_on_sigterm_at_any_moment(
    lab: FaultLab, postgresql: PostgreSQL, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    poses = lab.open_poses()
    lab.place_some(poses, each=10)
    empty, aside = postgresql.database(), rabbitmq.add_vhost()
    environment = {
        **os.environ,
        "PYTHONPATH": lab.python_path,
        "POS_GATEWAY_BROKER_URL": lab.broker_url,
        "POS_GATEWAY_DATABASE_URL": lab.database_url,
        "POS_GATEWAY_ALLOW_PRIVATE_ADDRESSES": "true",
        "POS_GATEWAY_METRICS_PORT": "0",
    }
    others = {
        ("db", "upgrade"): {"POS_GATEWAY_DATABASE_URL": empty},  # with a migration to run
        ("enqueue",): {"POS_GATEWAY_BROKER_URL": aside},  # no worker consumes its orders here
    }

    def told_after(command: Command, seconds: float) -> str | None:
        """What is wrong with how it ended."""
        program, *words = command.words
        name = " ".join(command.words[:4]).replace("/", "-")
        special = next((e for start, e in others.items() if words[: len(start)] == [*start]), {})
        container = Container(
            [Path(sys.executable).parent / program, *map(_here, words)],
            init=command.init,
            log=tmp_path / f"{name} {seconds}.log",
            environment={**environment, **special},
        )
        try:
            time.sleep(seconds)
            container.tell(signal.SIGTERM)
            code = container.wait(PATIENCE)
        except TimeoutError:
            return f"{name}, told after {seconds} s, goes on:\n{container.log[-2000:]}"
        finally:
            container.kill()
        if code in ENDED and "Traceback" not in container.log:
            return None
        return f"{name}, told after {seconds} s, ended with {code}:\n{container.log[-2000:]}"

    cases = [(command, moment) for command in commands() for moment in MOMENTS]
    with ThreadPoolExecutor(max_workers=4) as several:
        wrong = several.map(lambda case: told_after(*case), cases)
    assert [each for each in wrong if each] == []

    database = open_database(empty)
    upgrade(database)  # half of it is missing, and nothing blocks it
    require_current(database)
    database.dispose()
    postgresql.drop_database(empty)
    rabbitmq.delete_vhost(aside)
    with lab.worker():
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def _here(word: str) -> str:
    """An argument, with its path in the container replaced by the local one."""
    return {"8080": "0", "0.0.0.0": "127.0.0.1"}.get(
        word, word.replace("/examples/", f"{ROOT}/deploy/compose/")
    )
