"""A database of each kind with its tokens, and a clock that the test advances."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database
from pos_gateway.tokens.store import TokenStore
from tests.schema import make_tables

#: The time of day at the start.
START = 1_000_000_000.0


class HandClock:
    """Both clocks advance when the test says so; the time of day may be stepped besides."""

    def __init__(self) -> None:
        self.seconds = 5_000.0
        self.step = -self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(START + self.seconds + self.step, UTC)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A fresh database of each kind."""
    wanted = {"sqlite": "database_url", "postgresql": "postgres_url"}[request.param]
    engine = open_database(request.getfixturevalue(wanted))
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(engine: Engine, clock: HandClock) -> TokenStore:
    return TokenStore(engine, clock)
