"""A merchant's last hour, from its orders' attempts."""

import time
from collections import Counter
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, event

from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import CallRecord, Entry, Key, State
from pos_gateway.reports import merchant_hour as subject
from pos_gateway.reports.merchant_hour import MINUTES, merchant_hour
from pos_gateway.runtime.clock import SystemClock
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import claimed


class Past(SystemClock):
    """A clock that is behind by this many seconds."""

    behind = 0.0

    def now(self) -> datetime:
        return super().now() - timedelta(seconds=self.behind)


class Orders:
    """Attempts of a worker whose clock the test sets."""

    def __init__(self, engine: Engine) -> None:
        self.clock = Past()
        self._ledger = Ledger(engine, Payloads(Vault(new_key())), clock=self.clock)
        self._number = 0

    def attempt(
        self, ago: float, outcome: Kind, seconds: float | None, merchant: str = "m"
    ) -> None:
        self._number += 1
        self.clock.behind = ago
        claim = claimed(self._ledger.claim(Key(merchant, f"o{self._number}"), send=True))
        call = None if seconds is None else CallRecord(0.0, 0.0, 0.0, seconds, seconds, 200)
        entry = Entry(
            State.NEW,
            at=time.time() - ago,
            attempts=1,
            outcome=outcome,
            reason=Reason("no", "words that are sealed"),
            call=call,
        )
        assert self._ledger.finish(claim, entry)


def test_attempts_are_counted_by_minute_outcome_and_reply_time(engine: Engine) -> None:
    orders = Orders(engine)
    orders.attempt(30 * 60, Kind.ACCEPTED, 0.02)
    orders.attempt(30 * 60, Kind.RETRY, 12.0)
    orders.attempt(30 * 60, Kind.EXPIRED, None)
    orders.attempt(0, Kind.ACCEPTED, 0.3)
    orders.attempt(-600, Kind.REJECTED, 0.3)  # by a clock that is ahead
    orders.attempt(90 * 60, Kind.ACCEPTED, 0.3)
    orders.attempt(0, Kind.ACCEPTED, 0.3, merchant="other")
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    hour = merchant_hour(engine, "m")
    assert len(statements) == 3
    assert (len(hour.minutes), hour.is_cut) == (MINUTES, False)
    half = [minute for minute in hour.minutes[:45] if minute.outcomes]
    assert sum((minute.outcomes for minute in half), Counter()) == {
        "accepted": 1,
        "retry": 1,
        "expired": 1,
    }
    assert [sum(replies) for replies in zip(*(each.replies for each in half), strict=True)] == [
        *(1, 0, 0, 0, 0, 0, 0, 0, 1, 0)
    ]
    late = [minute for minute in hour.minutes[-3:] if minute.outcomes]
    assert sum(minute.outcomes.total() for minute in late) == 2
    assert hour.minutes[-1].outcomes["rejected"] == 1


def test_of_many_orders_the_latest_are_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "ROWS", 3)
    orders = Orders(engine)
    for ago in range(4, 0, -1):
        orders.attempt(600.0 * ago, Kind.ACCEPTED, 0.1)
    hour = merchant_hour(engine, "m")
    assert hour.is_cut
    assert sum(minute.outcomes.total() for minute in hour.minutes) == 3
    assert merchant_hour(engine, "unknown").minutes == []
