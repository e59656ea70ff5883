"""Committed is submitted at least once, rolled back never, whatever is killed, and whenever."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import pytest
from kombu import Connection

from pos_gateway.client import OrderClient, outbox
from pos_gateway.runtime.failpoints import OF_OUTBOX
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from tests.forked import Preloaded
from tests.outbox.lab import SOON, Backend, orders

IN_RELAY = sorted(OF_OUTBOX - {"outbox.added"})
#: How many other connections to the database there are. SQLite is the program itself.
OTHERS = {
    "postgresql": "select count(*) from pg_stat_activity where datname = current_database() "
    "and backend_type = 'client backend' and pid <> pg_backend_pid()",
    "mysql": "select count(*) from information_schema.processlist where db = database() "
    "and id <> connection_id()",
    "sqlite": "select 0",
}


@cache
def preloaded() -> Preloaded:
    """One for each process of pytest: to import what a program needs takes most of its CPU."""
    return Preloaded(sys.executable, "-m", "tests.outbox.program", "preloaded")


@contextmanager
def running(role: str, *arguments: str, at: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """The program, once it has begun; killed at the end."""
    with TemporaryDirectory() as folder:
        log = Path(folder) / "output"
        process = preloaded().fork(os.environ, log, arguments=[role, *arguments, at])
        try:
            until = time.monotonic() + SOON
            while True:
                has_ended = process.poll() is not None
                if log.read_bytes():
                    break
                assert not has_ended and time.monotonic() < until, "it did not begin"
                time.sleep(0.005)
            yield process
        finally:
            process.kill()
            process.wait()


def in_queue(broker_url: str) -> list[tuple[str, str]]:
    """Every message, as the task and the order's id, in order; the queue is empty afterwards."""
    with Connection(broker_url) as connection:
        channel = connection.default_channel
        found = []
        while (message := channel.basic_get("orders", no_ack=True)) is not None:
            task = message.headers["task"].removeprefix("pos_gateway.").removesuffix("_order")
            found.append((task, message.properties["message_id"]))
        return found


def settle(backend: Backend) -> None:
    """Wait until the database has done what killed programs had sent: it may be a commit."""
    ends = time.monotonic() + SOON
    while backend.run(OTHERS[backend.dialect])[0][0]:
        assert time.monotonic() < ends
        time.sleep(0.01)


def drain(backend: Backend, broker_url: str) -> None:
    with OrderClient(broker_url) as client:
        ends = time.monotonic() + SOON
        while backend.kept():
            backend.due()
            outbox.Relay(client, backend.url).drain()
            assert time.monotonic() < ends


def require_exact(backend: Backend, broker_url: str) -> int:
    """Submitted is what was committed, cancel requests behind their orders; how many repeats."""
    settle(backend)
    drain(backend, broker_url)
    found = in_queue(broker_url)
    committed = {order_id for (order_id,) in backend.run("select order_id from placed")}
    submitted = [order_id for task, order_id in found if task == "submit"]
    assert {*submitted} == committed
    seen: set[str] = set()
    for task, order_id in found:
        if task == "submit":
            seen.add(order_id)
        else:
            assert order_id in seen, f"the cancel request of {order_id} has overtaken it"
    return len(found) - len({*found})


def test_a_backend_killed_in_a_transaction_leaves_no_order(
    backend: Backend, broker_url: str
) -> None:
    for visit in (1, 2, 3, 4, 5, 9, 14):
        with running(
            "backend", backend.url, f"k{visit}", at=f"outbox.added=kill:{visit + 1}"
        ) as process:
            assert process.wait(SOON) == -signal.SIGKILL
    assert require_exact(backend, broker_url) == 0


@pytest.mark.parametrize("place", IN_RELAY)
def test_a_relay_killed_at_a_failpoint_loses_nothing(
    backend: Backend, broker_url: str, place: str
) -> None:
    for visit in (1, 2, 3):
        ids = [f"{visit}-{number}" for number in range(25)]
        backend.run(*(f"insert into placed values ('{each}')" for each in ids))
        backend.place(*orders(*ids))
        for each in ids[::4]:
            backend.cancel(each)
        with running("relay", backend.url, broker_url, at=f"{place}=kill:{visit}") as process:
            assert process.wait(SOON) == -signal.SIGKILL
        assert backend.kept()
    repeats = require_exact(backend, broker_url)
    # What was confirmed and not removed comes twice, a batch a kill, and nothing else does.
    assert (repeats > 0) is (place == "outbox.confirmed")
    assert repeats <= 3 * 7


class Fleet:
    """Two backends and two relays at work."""

    def __init__(self, backend: Backend, broker_url: str) -> None:
        self._backend, self._broker_url = backend, broker_url
        self._names = count()
        self._stacks = [ExitStack() for _ in range(4)]

    def __enter__(self) -> Self:
        for number in range(len(self._stacks)):
            self._start(number)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._stacks:
            each.close()

    def kill(self, number: int) -> None:
        """Kill one of them, and start another: a backend is even, a relay odd."""
        self._stacks[number].close()
        self._start(number)

    def _start(self, number: int) -> None:
        role = "relay" if number % 2 else "backend"
        last = self._broker_url if number % 2 else f"r{next(self._names)}"
        self._stacks[number].enter_context(running(role, self._backend.url, last))


def grown(backend: Backend, by: int) -> None:
    """Wait until the backends have placed some more."""
    count_placed = "select count(*) from placed"
    [(before,)] = backend.run(count_placed)
    ends = time.monotonic() + SOON
    while backend.run(count_placed)[0][0] < before + by:
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_backends_and_relays_are_killed_at_random(backend: Backend, broker_url: str) -> None:
    with Fleet(backend, broker_url) as fleet:
        for _ in range(5):
            grown(backend, 10)
            fleet.kill(random.randrange(4))
    require_exact(backend, broker_url)


def test_broker_and_database_are_killed_as_well(
    on_postgresql: Backend, broker_url: str, postgresql: PostgreSQL, rabbitmq: RabbitMQ
) -> None:
    with Fleet(on_postgresql, broker_url) as fleet:
        for server in (rabbitmq, postgresql):
            grown(on_postgresql, 10)
            server.kill()
            server.start()
            for number in (0, 2):  # a backend of this test ends with its connection
                fleet.kill(number)
        grown(on_postgresql, 10)
    require_exact(on_postgresql, broker_url)
