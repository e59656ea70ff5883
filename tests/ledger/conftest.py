"""Databases with the schema, of both kinds."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import metadata
from pos_gateway.ledger import ledger
from testkit.servers.postgresql import PostgreSQL
from tests.ledger.lab import SOON, Rows, Worker
from tests.schema import make_tables

KINDS = ["sqlite", "postgresql"]


@pytest.fixture(autouse=True)
def _timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CLAIM_TIMEOUT", SOON)


@pytest.fixture(scope="session")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema, to be copied."""
    path = tmp_path_factory.mktemp("ledger") / "template.db"
    engine = open_database(f"sqlite:///{path}")
    make_tables(engine)
    engine.dispose()
    return path


@pytest.fixture
def sqlite_url(sqlite_file: Path, tmp_path: Path) -> str:
    """A SQLite file with the schema, for this test alone."""
    return f"sqlite:///{shutil.copy(sqlite_file, tmp_path / 'ledger.db')}"


@pytest.fixture(scope="session")
def postgresql_with_tables(postgresql: PostgreSQL) -> Iterator[str]:
    """A PostgreSQL database with the schema, shared by these tests."""
    postgresql.start()
    url = postgresql.database()
    engine = open_database(url)
    make_tables(engine)
    engine.dispose()
    yield url
    postgresql.start()
    postgresql.drop_database(url)


@pytest.fixture
def postgresql_url(postgresql: PostgreSQL, postgresql_with_tables: str) -> str:
    """The same with empty tables."""
    postgresql.start()
    engine = open_database(postgresql_with_tables)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(table.delete())
    engine.dispose()
    return postgresql_with_tables


@pytest.fixture(params=KINDS)
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def engine(ledger_url: str) -> Iterator[Engine]:
    engine = open_database(ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture
def rows(engine: Engine) -> Rows:
    return Rows(engine)


@pytest.fixture
def worker(engine: Engine) -> Callable[..., Worker]:
    """Makes workers on the database, each with its clock."""
    return lambda clock=None: Worker(engine, clock)
