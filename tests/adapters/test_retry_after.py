"""``Retry-After`` as a date, on machines in any time zone."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from pos_gateway.adapters.replies import retry_after
from tests.adapters.scripted import reply

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["UTC", "Asia/Kolkata", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The machine's time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "date",
    [
        "Thu, 01 Jan 2026 12:01:30 GMT",
        "Thu, 01 Jan 2026 12:01:30 -0000",  # of no zone, by RFC 5322: read without one
        "Thu, 01 Jan 2026 12:01:30",
        "Thu, 01 Jan 2026 17:31:30 +0530",
    ],
)
def test_a_date_is_the_same_moment_wherever_the_machine_is(zone: str, date: str) -> None:
    assert retry_after(reply(429, b"", retry_after=date), NOON) == 90.0
