"""Servers and addresses for tests. A missing server fails the test that needs it; none is skipped."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.merchants.client import SimulatedMerchants
from loadtests.servers.postgresql import PostgreSQL
from loadtests.servers.rabbitmq import RabbitMQ
from loadtests.servers.redis import Redis

# A shell's background job ignores Ctrl-C, and so would every program that a test starts and presses
# it in.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Times without an offset pass for UTC only where a machine is in UTC, as build machines are: the tests
# are elsewhere, east by a number of hours that is none, unless TZ says where.
os.environ.setdefault("TZ", "<+0530>-05:30")
time.tzset()

# Whoever runs the tests may have a gateway, a Celery or a PostgreSQL configured: none of it may
# reach a test. This happens at import, before any test module reads its settings.
_CONFIGURING = ("POS_GATEWAY_", "CELERY_", "PG", "OTEL_")
for _name in [name for name in os.environ if name.startswith(_CONFIGURING)]:
    del os.environ[_name]


#: The files that take longest, the longest first. Three run at once (see the Makefile): begun last,
#: one of these would leave the others idle.
_LONGEST = (
    "worker/test_parking.py",
    "worker/test_nothing_lost.py",
    "loadtests/test_canary_demo.py",
    "faults/test_canary.py",
    "faults/test_database_failover.py",
    "faults/test_broker_cluster.py",
    "admission/test_admission_machine.py",
    "worker/test_green_worker.py",
    "worker/test_tracing.py",
    "deploy/test_image.py",
    "faults/test_stopping.py",
    "faults/test_signals.py",
    "worker/test_orders.py",
    "worker/test_fleet_limits.py",
    "faults/test_killed_workers.py",
    "faults/test_poison.py",
    "faults/test_half_open.py",
    "simulation/test_simulation.py",
    "admission/test_planted_faults.py",
    "worker/test_markers.py",
    "faults/test_orders_in_doubt.py",
    "worker/test_broker_away.py",
    "transport/test_catalogue.py",
    "loadtests/test_load_run.py",
    "broker/test_publisher.py",
    "worker/test_trouble.py",
    "loadtests/test_demo.py",
    "faults/test_long_outages.py",
    "faults/test_broker.py",
    "faults/test_database.py",
    "faults/test_schema.py",
    "events/test_planted_faults.py",
    "faults/test_paused_workers.py",
    "faults/test_restore.py",
    "ledger/test_synchronous_standby.py",
    "compatibility/test_wire.py",
    "faults/test_cancelled_orders.py",
    "servers/test_process.py",
    "loadtests/test_bench.py",
    "loadtests/test_bench_attacks.py",
    "loadtests/test_comparison.py",
    "capacity/test_plan.py",
    "transport/test_guard.py",
    "events/test_pipeline.py",
    "fleet/test_fleet_machine.py",
    "cli/test_dead_command.py",
    "ledger/test_planted_faults.py",
    "fleet/test_processes.py",
    "broker/test_order_client.py",
)


#: Files whose tests are long and share nothing: each of them goes wherever there is time for it.
_APART = (
    "admission/test_admission_machine.py",
    "faults/test_half_open.py",
    "faults/test_stopping.py",
    "worker/test_fleet_limits.py",
    "worker/test_green_worker.py",
    "worker/test_nothing_lost.py",
    "worker/test_orders.py",
    "worker/test_parking.py",
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, the others as they are; a file's tests stay together."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    if config.getoption("dist", "no") == "loadgroup":
        for item in items:
            name = item.path.relative_to(tests).as_posix()
            if name not in _APART:
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """The RabbitMQ node that the tests share; `broker_url` has it running again after a kill."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """The PostgreSQL cluster that the tests share; `postgres_url` has it running again."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """The Redis server that the tests share; `redis_url` has it running again."""
    with Redis() as server:
        yield server


@pytest.fixture
def broker_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """An empty virtual host, this test's own."""
    rabbitmq.start()
    url = rabbitmq.add_vhost()
    yield url
    rabbitmq.start()
    rabbitmq.delete_vhost(url)


@pytest.fixture
def redis_url(redis: Redis) -> str:
    """An empty Redis."""
    redis.start()
    redis.flush()
    return redis.url


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """A fresh SQLite file, the database that a gateway has by default."""
    return f"sqlite:///{tmp_path / 'pos_gateway.db'}"


@pytest.fixture
def postgres_url(postgresql: PostgreSQL) -> Iterator[str]:
    """An empty PostgreSQL database, this test's own."""
    postgresql.start()
    url = postgresql.database()
    yield url
    postgresql.start()
    postgresql.drop_database(url)


@pytest.fixture(scope="session")
def simulated_merchants() -> Iterator[SimulatedMerchants]:
    """The simulated merchants that the tests share; whoever uses them resets them."""
    with SimulatedMerchants() as merchants:
        yield merchants
