"""Servers and addresses for tests. A missing server fails the test that needs it; none is skipped."""

import gc
import inspect
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import psutil
import pytest
import structlog
from hypothesis import settings

from pos_gateway.settings import forget_environment
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ
from testkit.servers.redis import Redis

if TYPE_CHECKING:
    from sqlalchemy import Engine

pytest_plugins = ["tests.browser_fixtures", "tests.distribution"]

# A shell's background job ignores SIGINT, and so would every program that a test starts and
# interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Times without an offset pass for UTC only where the machine is in UTC, as build machines are: the
# tests run elsewhere, at an offset that is no whole number of hours, unless TZ says where.
os.environ.setdefault("TZ", "<+0530>-05:30")
time.tzset()

# On a busy machine an example may stand still for longer than any deadline.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Until all is collected: see pytest_collection_finish.
gc.disable()

# A thread that outlives its test must not log into the output of a later test's command.
structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.__stderr__))

# The environment may configure a gateway, Celery or PostgreSQL: none of it may reach a test. This
# happens at import, before any test module reads its settings.
forget_environment()


# Files of tests, and the servers' data, are in memory where there is enough of it: databases and
# queues wait for the disk at each commit. Nothing here breaks a machine's power, only processes.
_MEMORY, _ENOUGH = "/dev/shm", 8 * 1024**3
if (
    "TMPDIR" not in os.environ
    and os.access(_MEMORY, os.W_OK)
    and min(psutil.virtual_memory().available, psutil.disk_usage(_MEMORY).free) > _ENOUGH
):
    os.environ["TMPDIR"] = _MEMORY
    tempfile.tempdir = None

# No test calls a server with a public authority's certificate, and to load those authorities takes
# 20 ms of CPU for each TLS context, so for each gateway. Only pip needs them (deploy/dockerfile.py).
os.environ.setdefault("SSL_CERT_FILE_OF_PIP", os.environ.get("SSL_CERT_FILE", ""))
os.environ["SSL_CERT_FILE"] = os.devnull

# Each gateway looks for adapters of others in all installed packages, which opens 150 files.
_find_entry_points = metadata.entry_points


@cache
def _entry_points(path: tuple[str, ...], **which: str) -> metadata.EntryPoints:
    return _find_entry_points(**which)


metadata.entry_points = lambda **which: _entry_points(tuple(sys.path), **which)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each of the processes of a whole run imports other test files first.

    Pytest compiles a test file anew, which takes longer than all else of its import. So each is
    compiled by the first that comes to it, and the others find the result.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    sys.dont_write_bytecode = False
    folder = Path(__file__).parent
    files = sorted(
        each for each in folder.rglob("test_*.py") if (each.parent / "__init__.py").exists()
    )
    first = int(worker["workerid"][2:]) * len(files) // worker["workercount"]
    for file in files[first:] + files[:first]:
        with suppress(Exception):  # which it shows when it is collected
            import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "retries' jitter and other chances of each test begin from its name and this number"
    parser.addoption("--chance", type=int, default=0, metavar="N", help=what)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that fails by a retry's jitter fails each time, until its name or ``--chance`` is another."""
    random.seed(f"{item.nodeid} {item.config.getoption('chance')}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not walk it."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """The shared RabbitMQ node; `broker_url` restarts it after a kill."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """The shared PostgreSQL cluster; `postgres_url` restarts it."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """The shared Redis server; `redis_url` restarts it."""
    with Redis() as server:
        yield server


@pytest.fixture
def broker_url(request: pytest.FixtureRequest, rabbitmq: RabbitMQ) -> Iterator[str]:
    """An empty virtual host for this test."""
    rabbitmq.start()
    # A test that has the node, and may kill it, has no queue by a name that was deleted just now.
    has_node = "rabbitmq" in inspect.signature(request.function).parameters
    url = rabbitmq.add_vhost(f"own-{uuid4().hex}" if has_node else None)
    yield url
    rabbitmq.start()
    if has_node:
        rabbitmq.delete_vhost(url)
    else:
        rabbitmq.give_back(url)


@pytest.fixture
def redis_url(redis: Redis) -> str:
    """An empty Redis."""
    redis.start()
    redis.flush()
    return redis.url


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """A fresh SQLite file, the gateway's default database."""
    return f"sqlite:///{tmp_path / 'pos_gateway.db'}"


@pytest.fixture
def postgres_url(postgresql: PostgreSQL) -> Iterator[str]:
    """An empty PostgreSQL database for this test."""
    postgresql.start()
    url = postgresql.database()
    yield url
    postgresql.start()
    postgresql.drop_database(url)


@pytest.fixture
def postgres_url_with_tables(postgresql: PostgreSQL) -> Iterator[str]:
    """A PostgreSQL database for this test, with the tables."""
    from tests.schema import database_with_tables

    postgresql.start()
    url = database_with_tables(postgresql)
    yield url
    postgresql.start()
    postgresql.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator["Engine"]:
    """A fresh database of each kind, with the tables."""
    from pos_gateway.database.engine import open_database  # after a fault is planted in it
    from tests.schema import make_tables

    wanted = {"sqlite": "database_url", "postgresql": "postgres_url_with_tables"}[request.param]
    engine = open_database(request.getfixturevalue(wanted))
    if request.param == "sqlite":
        make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def simulated_merchants() -> Iterator[SimulatedMerchants]:
    """The shared simulated merchants; a test that uses them resets them."""
    with SimulatedMerchants() as merchants:
        yield merchants


@pytest.fixture(autouse=True)
def _no_gate_stays_open() -> Iterator[None]:
    """Close the files of a test's gates: ``select`` takes no number above 1,023, and a process runs thousands of tests."""
    yield
    gate = sys.modules.get("tests.gate")
    while gate is not None and gate.OPEN:
        with suppress(Exception):  # of a gate whose making failed, say
            gate.OPEN.pop().disconnect()
