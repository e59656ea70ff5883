"""A database of each kind with its stores, and a clock that the test advances."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from tests.telemetry.lab import value


class HandClock:
    """Both clocks advance when the test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(1_000_000_000 + self.seconds, UTC)


@pytest.fixture
def clock() -> HandClock:
    """The clock of all readers and writers."""
    return HandClock()


@pytest.fixture
def store(engine: Engine, clock: HandClock) -> MerchantStore:
    return MerchantStore(engine, clock)


@pytest.fixture
def catalogs(engine: Engine, clock: HandClock) -> CatalogStore:
    return CatalogStore(engine, clock)


@pytest.fixture
def polls(engine: Engine) -> Iterator[Polls]:
    polls = Polls(engine)
    yield polls
    polls.close()


@pytest.fixture
def loads() -> Callable[[str, str], float]:
    """Keys of this process's caches of a name, by the outcome of their loads, since the test began."""

    def count(cache: str, outcome: str) -> float:
        return value("pos_gateway_cache_loads_total", cache=cache, outcome=outcome)

    before = {
        (cache, outcome): count(cache, outcome)
        for cache in ("merchants", "catalogs")
        for outcome in ("loaded", "taken_over")
    }
    return lambda cache, outcome: count(cache, outcome) - before[cache, outcome]
