"""Two workers and a Redis: a merchant's limit and its breaker are the fleet's."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testkit.servers.redis import Redis
from tests.worker.lab import Lab, WorkerProcess, by_type

ORDERS = [f"o{n}" for n in range(60)]


def test_two_workers_together_keep_to_a_merchants_limit(lab: Lab, redis_url: str) -> None:
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


def test_what_one_worker_finds_out_about_a_merchant_the_other_knows(
    lab: Lab, redis_url: str
) -> None:
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
    assert lab.merchants.merchant("m-1")["requests"] == 4  # the one that was told, and no other


def test_a_killed_workers_part_of_the_limit_is_the_others(lab: Lab, redis_url: str) -> None:
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


def test_orders_go_on_without_redis_and_with_it_again(
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


def test_a_worker_whose_redis_is_away_when_it_starts_delivers_all_the_same(lab: Lab) -> None:
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
