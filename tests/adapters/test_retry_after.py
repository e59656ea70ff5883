"""``Retry-After`` as a date, on machines in every time zone, at every time."""

import time
from collections.abc import Iterator

import pytest

from pos_gateway.adapters.replies import retry_after
from tests.adapters.scripted import reply

NOON = "Thu, 01 Jan 2026 12:00:00 GMT"


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
        "Thu, 01 Jan 2026 12:01:30 -0000",  # without a zone, by RFC 5322
        "Thu, 01 Jan 2026 12:01:30",
        "Thu, 01 Jan 2026 17:31:30 +0530",
    ],
)
def test_a_date_is_the_same_moment_in_every_time_zone(zone: str, date: str) -> None:
    assert retry_after(reply(429, b"", retry_after=date, date=NOON)) == 90.0


@pytest.mark.parametrize("date", ["", "noon", "Thu, 01 Jan 99999 12:00:00 GMT"])
def test_a_date_is_ignored_without_the_poss_date(date: str) -> None:
    """Our clock may be an hour ahead of the POS's."""
    said = {"retry_after": "Thu, 01 Jan 2026 12:01:30 GMT", **({"date": date} if date else {})}
    assert retry_after(reply(503, b"", **said)) is None


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("Thu, 01 Jan 2026 11:00:00 GMT", 1.0),
        ("Fri, 02 Jan 2026 12:00:00 GMT", 900.0),
        ("0", 1.0),
        ("17", 17.0),
        ("86400", 900.0),
        ("soon", None),
    ],
)
def test_retry_after_is_clamped_to_a_second_and_a_quarter_of_an_hour(
    said: str, seconds: float | None
) -> None:
    assert retry_after(reply(429, b"", retry_after=said, date=NOON)) == seconds
