"""A bulk whose hydration is expensive, with helpers, without, and with helpers that all die."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from sqlalchemy import Engine, text

from loadtests.bench.events import bulk, relaying
from loadtests.bench.events.stream import Stream
from loadtests.bench.filling import declare
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import child
from pos_gateway.database.engine import open_database, upgrade

#: Seconds that an event's hydration takes, and events.
COST, SIZES = 0.005, {False: 6000, True: 4000}
SERIAL, HELPED, DYING = "serial", "two helpers", "helpers that die"
_LIVES: dict[str, str] = {}
_DIES = {"POS_GATEWAY_FAILPOINTS": "events.leased=kill"}
_WAYS: Mapping[str, Sequence[Mapping[str, str]]] = {
    SERIAL: (),
    HELPED: (_LIVES, _LIVES),
    DYING: (_DIES, _DIES),
}


def play(servers: Servers, turn: int, *, quick: bool) -> dict[str, float]:
    """One round: seconds until all of the bulk was received, each way."""
    ways = list(_WAYS)[:: 1 if turn % 2 == 0 else -1]
    return {way: _played(servers, way, SIZES[quick]) for way in ways}


def _played(servers: Servers, way: str, size: int) -> float:
    with ExitStack() as stack:
        broker_url = stack.enter_context(servers.vhost())
        database_url = stack.enter_context(servers.database(Path()))
        engine = open_database(database_url)
        stack.callback(engine.dispose)
        upgrade(engine)
        declare(broker_url)
        stream = stack.enter_context(Stream(broker_url))
        stack.enter_context(_relay(broker_url, database_url, {}))
        _wait(engine, "select count(*) from pipeline where leader is not null", 1)
        for environment in _WAYS[way]:
            stack.enter_context(_relay(broker_url, database_url, environment))
        _wait(engine, "select count(*) from workers", 1 + len(_WAYS[way]))
        time.sleep(1.5)  # they have seen who leads
        committed = bulk.write(engine, "bulk", size)
        came = stream.wait_for("bulk", size, seconds=4 * size * COST)
        stream.check_order()
        return max(came) - committed


def _relay(
    broker_url: str, database_url: str, environment: Mapping[str, str]
) -> AbstractContextManager[object]:
    return child(
        [sys.executable, "-m", relaying.__name__, broker_url, database_url, COST],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _wait(engine: Engine, query: str, number: int) -> None:
    until = time.monotonic() + 30
    while True:
        with engine.connect() as connection:
            if connection.scalar(text(query)) == number:
                return
        if time.monotonic() >= until:
            raise InvalidRunError(f"not {number}: {query}")
        time.sleep(0.05)
