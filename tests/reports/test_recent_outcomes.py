"""Merchants whose orders fail, by the events of their outcomes, on a database of each kind."""

import itertools
import time
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert

from pos_gateway.database.schema import events
from pos_gateway.reports import fleet_view, recent_outcomes
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.reports.report import EVENTS, SYNCHRONOUS, Trouble
from pos_gateway.reports.words import in_words, outcomes
from tests.reports.lab import Reports

_numbers = itertools.count()


def record(
    engine: Engine, merchant: str, *kinds: str, code: str | None = None, ago: float = 1.0
) -> None:
    """Outcomes as the ledger records them."""
    rows: list[dict[str, Any]] = [
        {
            "event_id": f"e-{next(_numbers)}",
            "type": kind,
            "merchant_id": merchant,
            "order_id": f"o-{next(_numbers)}",
            "occurred_at": time.time() - ago,
            "reason_code": code,
            "attempts": 1,
        }
        for kind in kinds
    ]
    with engine.begin() as connection:
        connection.execute(insert(events), rows)


def test_a_merchant_most_of_whose_orders_fail_is_in_trouble_though_its_calls_are_answered(
    engine: Engine, reports: Reports
) -> None:
    record(engine, "refuses", *["failed"] * 56, code="http_401")
    record(engine, "mixed", "failed", "rejected", "rejected", "expired", "accepted", code="x")
    record(engine, "half", *["failed"] * 4, *["accepted"] * 4)
    record(engine, "few", "failed", "failed")
    record(engine, "resolved", *["in_doubt", "accepted"] * 9)
    record(engine, "cooking", *["accepted", "preparing", "ready"] * 3, *["failed"] * 4)
    record(engine, "earlier", *["failed"] * 9, ago=700.0)
    reports.worker("w").report(Trouble("slow", waiting=2, agreed=4))
    fleet = reports.view.now()
    assert list(fleet.failing) == ["refuses", "cooking", "mixed"]
    assert (fleet.reported, fleet.in_trouble) == (1, 4)
    worst = fleet.troubles()
    assert [each.merchant_id for each in worst][:3] == ["refuses", "cooking", "mixed"]
    assert in_words(worst[0]) == "56 of 56 orders in 10 min failed (http_401)"
    assert outcomes(fleet.failing["mixed"]) == (
        "of 5 orders in 10 min 1 failed (x), 2 were rejected (x) and 1 expired (x)"
    )
    assert outcomes(fleet.failing["cooking"]) == "4 of 7 orders in 10 min failed"
    slow = fleet.trouble("slow")
    assert slow is not None
    assert slow.failing is None
    assert fleet.trouble("half") is None


def test_why_most_of_a_merchants_orders_fail_is_said_alike_for_each_outcome(
    engine: Engine, reports: Reports
) -> None:
    record(engine, "closed", *["rejected"] * 3, code="store_closed")
    record(engine, "late", *["expired"] * 3, code="http_503")
    record(engine, "menu", *["rejected"] * 3, code="item_unavailable")
    record(engine, "menu", *["rejected"] * 4, code="store_closed")
    record(engine, "menu", *["rejected"] * 3)
    record(engine, "quotes", *["rejected"] * 3, code="Mrs. Smith is allergic")
    said = {name: outcomes(each) for name, each in reports.view.now().failing.items()}
    assert said == {
        "closed": "3 of 3 orders in 10 min were rejected (store_closed)",
        "late": "3 of 3 orders in 10 min expired (http_503)",
        "menu": "10 of 10 orders in 10 min were rejected (store_closed, …)",
        "quotes": "3 of 3 orders in 10 min were rejected (other)",
    }


def test_what_workers_see_and_what_the_outcomes_say_are_said_together(
    engine: Engine, reports: Reports
) -> None:
    record(engine, "m", *["expired"] * 3)
    reports.worker("w").report(Trouble("m", breaker="open", breaker_for=9.0, agreed=4))
    trouble = reports.view.now().trouble("m")
    assert trouble is not None
    said = in_words(trouble)
    assert said.startswith("breaker open for ")
    assert said.endswith("; 3 of 3 orders in 10 min expired")


def test_the_read_is_bounded_and_shared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_outcomes, "ROWS", 5)
    record(engine, "old", *["failed"] * 5)
    record(engine, "new", *["failed"] * 3, *["accepted"] * 2)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    view = FleetView(engine)
    assert list(view.now().failing) == ["new"]
    assert list(view.now().failing) == ["new"]
    assert sum("events" in each for each in statements) == 1
    monkeypatch.setattr(fleet_view, "_FRESH", 0.0)
    assert list(FleetView(engine).now().failing) == ["new"]


def test_a_process_that_publishes_events_alone_delivers_nothing_and_a_synchronous_one_watches_none(
    reports: Reports,
) -> None:
    reports.worker("e").report(kind=EVENTS)
    assert (reports.view.now().delivering, reports.view.now().watching) == (0, 0)
    reports.worker("s").report(kind=SYNCHRONOUS)
    assert (reports.view.now().delivering, reports.view.now().watching) == (1, 0)
    reports.worker("g").report()
    assert (reports.view.now().delivering, reports.view.now().watching) == (2, 1)
