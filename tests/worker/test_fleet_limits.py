"""Two workers and a Redis: a merchant's limit and its breaker are shared by the fleet."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.servers.redis import Redis
from tests.worker.lab import Lab, WorkerProcess, by_type

ORDERS = [f"o{n}" for n in range(60)]


def test_two_workers_together_stay_within_a_merchants_limit(lab: Lab, redis_url: str) -> None:
    lab.open_merchants("m-1", max_concurrency=3)
    lab.merchants.profile("m-1", {"kind": "accept", "latency": 0.1})
    with _two(lab, redis_url) as (first, second):
        lab.submit("m-1", *ORDERS)
        events = lab.events_until_all_ended(ORDERS)
        assert "fleet.joined" in first.log
        assert "fleet.joined" in second.log
    assert len(by_type(events)["order.accepted"]) == len(ORDERS)
    assert lab.merchants.merchant("m-1")["max_in_flight"] == 3
    assert lab.merchants.doubled() == []


def test_a_breaker_that_one_worker_opens_is_open_in_the_other(lab: Lab, redis_url: str) -> None:
    lab.open_merchants("m-1", max_concurrency=1)
    lab.merchants.profile("m-1", {"kind": "limit", "retry_after": "12"})
    with lab.worker(redis_url=redis_url) as first:
        lab.submit("m-1", *ORDERS[:3])
        first.wait_for_log("breaker.opened")
        lab.merchants.profile("m-1", {"kind": "accept"})
        with lab.worker(redis_url=redis_url) as second:
            second.wait_for_log('"why": "fleet"')
            events = lab.events_until_all_ended(ORDERS[:3])
    assert len(by_type(events)["order.accepted"]) == 3
    # From the worker that was told, and from no other.
    assert lab.merchants.merchant("m-1")["requests"] == 4


def test_a_killed_workers_permits_go_to_the_other(lab: Lab, redis_url: str) -> None:
    lab.open_merchants("hang-1", max_concurrency=2)
    with _two(lab, redis_url, request_timeout=100) as (first, second):
        lab.submit("hang-1", *ORDERS[:10])
        lab.merchants.wait_until(merchant_id="hang-1", in_flight=2)
        first.send(signal.SIGKILL)
        second.send(signal.SIGKILL)
        lab.merchants.profile("hang-1", {"kind": "accept", "latency": 0.1}, release=True)
        with lab.worker(redis_url=redis_url):
            events = lab.events_until_all_ended(ORDERS[:10])
    assert set(by_type(events)) == {"order.accepted"}
    assert lab.merchants.merchant("hang-1")["max_in_flight"] == 2


def test_orders_are_delivered_without_redis_and_after_its_return(
    lab: Lab, redis: Redis, redis_url: str
) -> None:
    lab.open_merchants("fast-1")
    with lab.worker("--loglevel", "info", redis_url=redis_url) as worker:
        lab.submit("fast-1", "before")
        lab.events(1)
        redis.kill()
        worker.wait_for_log("fleet.lost")
        lab.submit("fast-1", "without")
        [event] = lab.events(1)
        assert event["order_id"] == "without"
        redis.start()
        lab.submit("fast-1", "after")
        assert [each["order_id"] for each in lab.events(1)] == ["after"]


def test_a_worker_that_starts_without_redis_delivers(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    lab.submit("fast-1", "o1")
    with lab.worker(redis_url="redis://127.0.0.1:1/0") as worker:
        [event] = lab.events(1)
        assert "fleet.lost" in worker.log
    assert event["type"] == "order.accepted"


@contextmanager
def _two(
    lab: Lab, redis_url: str, **settings: Any
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    with (
        lab.worker("--loglevel", "info", redis_url=redis_url, **settings) as first,
        lab.worker("--loglevel", "info", redis_url=redis_url, **settings) as second,
    ):
        first.wait_for_log("ready")
        second.wait_for_log("ready")
        yield first, second
