"""What every server of ours promises: it is our own, and it leaves nothing behind."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import kombu
import psutil
import pytest
from amqp.exceptions import NotAllowed

from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import ServerFailedError, ServerMissingError, program
from testkit.servers.redis import Redis

PARENT = """
import json
from contextlib import ExitStack
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from testkit.servers.redis import Redis

with ExitStack() as stack:
    servers = [stack.enter_context(server()) for server in (RabbitMQ, PostgreSQL, Redis)]
    stack.enter_context(Proxy(servers[0].url))
    folders = [str(server.folder) for server in servers]
    print(json.dumps({"url": servers[0].url, "folders": folders}), flush=True)
    input()
"""


def test_servers_run_beside_others_and_leave_nothing_behind(broker_url: str) -> None:
    with parent_of_servers() as (parent, told):
        family = psutil.Process(parent.pid).children(recursive=True)
        vhost = broker_url.rpartition("/")[2]
        stranger = kombu.Connection(told["url"].removesuffix("/") + vhost)
        with stranger, pytest.raises(NotAllowed, match=f"vhost {vhost} not found"):
            stranger.connect()

        parent.communicate("\n")

        assert parent.returncode == 0
        assert not alive(family)
        assert not [folder for folder in told["folders"] if Path(folder).exists()]


def test_servers_die_with_a_parent_that_was_killed() -> None:
    with parent_of_servers() as (parent, told):
        family = psutil.Process(parent.pid).children(recursive=True)
        names = {process.name() for process in family}
        assert {"beam.smp", "epmd", "postgres", "redis-server"} <= names

        parent.kill()

        wait_for_end(family)
        for folder in told["folders"]:
            shutil.rmtree(folder)


def test_a_server_that_ended_by_itself_is_started_again() -> None:
    with Redis() as redis:
        ended = psutil.Process(redis.pid)
        ended.kill()
        ended.wait()

        redis.start()

        assert redis.pid != ended.pid


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerFailedError, match="no_such_setting"):
        PostgreSQL(no_such_setting=1).__enter__()


def test_a_missing_program_names_its_package_and_the_command_that_installs_it() -> None:
    with pytest.raises(ServerMissingError, match="package no-such-package, or run `make test`"):
        program("no-such-program", "no-such-package")


@contextmanager
def parent_of_servers() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that runs one server of each kind until it reads a line."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as parent:
        try:
            assert parent.stdout is not None
            yield parent, json.loads(parent.stdout.readline())
        finally:
            parent.kill()


def wait_for_end(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + PATIENCE
    while alive(processes):
        assert time.monotonic() < deadline, f"still alive: {alive(processes)}"


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; a zombie has, where no init reaps orphans."""
    left = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                left.append(process)
    return left
