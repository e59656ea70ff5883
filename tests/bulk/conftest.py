"""A database of each kind; operators of a real broker."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from pos_gateway.administration.bulk import letters
from pos_gateway.administration.bulk.store import BulkStore
from pos_gateway.database.engine import open_database
from pos_gateway.routing import splits
from tests.bulk.lab import Desk
from tests.schema import make_tables


@pytest.fixture
def books(database_url: str) -> Iterator[Engine]:
    """A fresh SQLite database."""
    engine = open_database(database_url)
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> BulkStore:
    return BulkStore(engine)


@pytest.fixture
def kim(books: Engine, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """An operator; the broker has no split for the canary, and none is waited for."""
    monkeypatch.setattr(splits, "THERE", 0.0)
    monkeypatch.setattr(letters, "PAUSE", 0.05)
    return Desk(books, broker_url, "kim")


@pytest.fixture
def sam(kim: Desk, books: Engine, broker_url: str) -> Desk:
    """Another one."""
    return Desk(books, broker_url, "sam")
