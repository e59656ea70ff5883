"""What anyone may have the log say, and how often."""

from types import SimpleNamespace

import pytest

from pos_gateway.server import log_limit as subject
from pos_gateway.server.log_limit import KEYS, LogLimit


class Clock:
    """Stands still until the test moves it."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_key_has_a_line_a_second_which_counts_the_others(clock: Clock) -> None:
    limit = LogLimit()
    assert [limit.lines() for _ in range(4)] == [1, 0, 0, 0]
    clock.now += 1.5
    assert [limit.lines() for _ in range(2)] == [4, 0]
    clock.now += 0.9
    assert limit.lines() == 0


def test_a_flood_of_one_key_hides_no_other(clock: Clock) -> None:
    limit = LogLimit()
    assert sum(limit.lines("a") for _ in range(1000)) == 1
    assert limit.lines("b") == 1


def test_the_keys_of_a_second_are_bounded(clock: Clock) -> None:
    limit = LogLimit()
    assert sum(bool(limit.lines(str(number))) for number in range(3 * KEYS)) == KEYS
    assert len(limit._lines) == KEYS
    clock.now += 1.0
    assert sum(bool(limit.lines(str(number))) for number in range(3 * KEYS)) == KEYS
    assert len(limit._lines) == KEYS
