"""A database of each kind, with the schema."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from tests.reports.lab import Reports
from tests.schema import make_tables


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A fresh database of each kind."""
    wanted = {"sqlite": "database_url", "postgresql": "postgres_url"}[request.param]
    engine = open_database(request.getfixturevalue(wanted))
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def reports(engine: Engine) -> Reports:
    return Reports(engine)
