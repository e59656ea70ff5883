from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.servers.mariadb import MariaDB
from tests.outbox.lab import Backend, Gateway


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


def _backend(request: pytest.FixtureRequest, kind: str) -> Backend:
    if kind == "postgresql":
        return Backend(request.getfixturevalue("postgres_url"), "postgresql")
    if kind == "mariadb":
        server = request.getfixturevalue("mariadb")
        server.start()
        return Backend(server.database(), "mysql")
    path: Path = request.getfixturevalue("tmp_path")
    return Backend(f"sqlite:///{path / 'backend.db'}", "sqlite")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend on each database."""
    return _backend(request, request.param)


@pytest.fixture(params=["postgresql", "mariadb"])
def locking(request: pytest.FixtureRequest) -> Backend:
    """A backend on each database in which several relays work."""
    return _backend(request, request.param)


@pytest.fixture
def local(request: pytest.FixtureRequest) -> Any:
    """A backend on SQLite, for what no database matters to."""
    return _backend(request, "sqlite")


@pytest.fixture
def on_postgresql(request: pytest.FixtureRequest) -> Backend:
    """A backend on PostgreSQL."""
    return _backend(request, "postgresql")


@pytest.fixture
def on_mariadb(request: pytest.FixtureRequest) -> Backend:
    """A backend on MariaDB."""
    return _backend(request, "mariadb")


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()
