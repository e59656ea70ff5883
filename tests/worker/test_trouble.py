"""Merchants in trouble, from the merchants' side: what a real worker does about them."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete

from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import merchants as merchants_table
from tests.worker.lab import Lab, by_type

SOON = {"latency": 0.02}


def of(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["order_id"]


def test_a_failing_merchants_breaker_opens_and_it_gets_every_order_when_it_is_back(
    lab: Lab,
) -> None:
    lab.open_merchants("m-1", max_concurrency=5)
    lab.merchants.profile("m-1", {"kind": "reset"})
    orders = [f"o{n}" for n in range(12)]
    with lab.worker() as worker:
        lab.submit("m-1", *orders)
        worker.wait_for_log("breaker.opened")
        lab.merchants.profile("m-1", {"kind": "accept"})
        events = lab.events_until_all_ended(orders)
        worker.wait_for_log("breaker.closed")
    assert sorted(by_type(events)["order.accepted"]) == sorted(orders)
    assert lab.merchants.doubled() == []
    assert worker.log.index("breaker.opened") < worker.log.index("breaker.closed")


def test_an_order_expires_while_another_is_in_flight(lab: Lab) -> None:
    lab.open_merchants("hang-1", max_concurrency=1)
    with lab.worker(request_timeout=30):
        lab.submit("hang-1", "first")
        lab.merchants.wait_until(merchant_id="hang-1", in_flight=1)
        lab.submit("hang-1", "late", seconds=2)
        [event] = lab.events(1)
        assert of(event) == ("order.expired", "late")
        assert lab.merchants.merchant("hang-1")["in_flight"] == 1
        lab.merchants.profile("hang-1", SOON, release=True)
    assert event["attempts"] == 0
    assert lab.merchants.order("hang-1", "late") is None


def test_an_order_expires_at_once_if_the_breaker_stays_open_past_its_deadline(
    lab: Lab,
) -> None:
    """For 30 s at most, whatever Retry-After says."""
    lab.open_merchants("m-1", max_concurrency=1)
    lab.merchants.profile("m-1", {"kind": "limit", "retry_after": "600", "latency": 0.5})
    with lab.worker():
        lab.submit("m-1", "first", seconds=3000)
        lab.merchants.wait_until(merchant_id="m-1", requests=1)
        lab.submit("m-1", "late", seconds=20)
        [event] = lab.events(1)
    assert of(event) == ("order.expired", "late")
    occurred_at, deliver_by = event["occurred_at"], event["order"]["deliver_by"]
    assert datetime.fromisoformat(occurred_at) < datetime.fromisoformat(deliver_by)
    assert lab.merchants.merchant("m-1")["requests"] == 1


def test_hanging_calls_are_cut_short_when_a_healthy_merchant_waits(lab: Lab) -> None:
    """With eight slots, and eight merchants that stop answering at once, for a minute."""
    hanging = [f"hang-{n}" for n in range(8)]
    lab.open_merchants(*hanging, "fast-1", request_timeout=60)
    lab.merchants.profile("hang-*", SOON)
    with lab.worker(slots=8, slow_after=1.0):
        for merchant in hanging:
            lab.submit(merchant, f"well-{merchant}")
        lab.events(8)
        lab.merchants.profile("hang-*", "hang")
        for merchant in hanging:
            lab.submit(merchant, f"stuck-{merchant}")
        lab.merchants.wait_until(in_flight=8)
        lab.submit("fast-1", "healthy")
        [event] = lab.events(1)
        assert of(event) == ("order.accepted", "healthy")
        lab.merchants.profile("hang-*", SOON, release=True)
        events = lab.events_until_all_ended([f"stuck-{merchant}" for merchant in hanging])
    assert set(by_type(events)) == {"order.accepted"}
    assert lab.merchants.doubled() == []


def test_a_deleted_merchants_waiting_orders_are_dead_lettered(lab: Lab) -> None:
    lab.open_merchants("gone-1", paused=True)
    with lab.worker():
        lab.submit("gone-1", "o1", "o2")
        engine = open_database(lab.database_url)
        with engine.begin() as connection:
            connection.execute(delete(merchants_table))
        engine.dispose()
        lab.submit("gone-1", "o3")  # its record is loaded again, and is gone
        events = lab.events(3)
    assert {event["reason"]["code"] for event in events} == {"unknown_merchant"}
    assert sorted(by_type(events)["order.failed"]) == ["o1", "o2", "o3"]


def test_a_merchant_that_answers_503_gets_a_lower_concurrency_limit(lab: Lab) -> None:
    lab.open_merchants("m-1", max_concurrency=8)
    lab.merchants.profile("m-1", {"kind": "hang"})
    orders = [f"o{n}" for n in range(8)]
    with lab.worker():
        lab.submit("m-1", *orders)
        lab.merchants.wait_until(merchant_id="m-1", in_flight=8)
        lab.merchants.profile("m-1", {"kind": "fail", "status": 503}, release=True)
        lab.merchants.wait_until(merchant_id="m-1", requests=8, idle=True)
        assert lab.merchants.merchant("m-1")["max_in_flight"] == 8
        lab.merchants.reset()
        lab.merchants.profile("m-1", {"kind": "accept", "latency": 0.3})
        events = lab.events_until_all_ended(orders)
    assert lab.merchants.merchant("m-1")["max_in_flight"] <= 4
    assert sorted(by_type(events)["order.accepted"]) == sorted(orders)
