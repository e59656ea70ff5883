"""The ledger's databases, and pods on them."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from tests.events.lab import Broker, Pod
from tests.ledger.conftest import (
    engine,
    ledger_url,
    postgresql_url,
    postgresql_with_tables,
    rows,
    sqlite_file,
    sqlite_url,
)
from tests.ledger.lab import Clock

__all__ = [
    "engine",
    "ledger_url",
    "postgresql_url",
    "postgresql_with_tables",
    "rows",
    "sqlite_file",
    "sqlite_url",
]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def pod(engine: Engine, clock: Clock, broker: Broker) -> Callable[..., Pod]:
    """Makes pods on the database, which share a clock and a broker."""
    return lambda **options: Pod(engine, clock, broker, **options)
