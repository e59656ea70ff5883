"""A database of each kind with its tokens, and a clock that the test advances."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine

from pos_gateway.tokens.store import TokenStore

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


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def store(engine: Engine, clock: HandClock) -> TokenStore:
    return TokenStore(engine, clock)
