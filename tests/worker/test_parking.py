"""Orders that are parked in the broker, many to a message: none is lost, doubled or forgotten."""

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from pos_gateway.broker.bundle import BYTES_ALLOWED, PARKED_ORDERS
from testkit.servers.rabbitmq import RabbitMQ
from tests.orders import an_order
from tests.worker.lab import Lab, a_bundle, by_type
from tests.worker.test_nothing_lost import everything_ended_once


def orders_of(merchant_id: str, number: int, prefix: str = "o") -> list[dict[str, Any]]:
    return [an_order(f"{prefix}{n}", merchant_id) for n in range(number)]


def late(order: dict[str, Any]) -> dict[str, Any]:
    """The order, worthless for a second."""
    now = datetime.now(UTC)
    placed_at, deliver_by = now - timedelta(hours=1), now - timedelta(seconds=1)
    return {**order, "placed_at": placed_at.isoformat(), "deliver_by": deliver_by.isoformat()}


def test_the_backlog_of_a_dead_merchant_is_a_few_messages_and_is_delivered_when_it_is_back(
    lab: Lab,
) -> None:
    lab.open_merchants("m", "fast-1")
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(700)]
    lab.submit("m", *orders)
    lab.submit("fast-1", "behind")
    with lab.worker():
        assert by_type(lab.events(1)) == {"order.accepted": ["behind"]}
        lab.wait_until_parked(660 // 64, 20)
        lab.merchants.profile("m", {"kind": "accept", "latency": 0.01}, release=True)
        lab.events_until_all_ended(orders)
    made = {order["order_id"]: order["creates"] for order in lab.merchants.orders("m")}
    assert made == dict.fromkeys(orders, 1)


def test_a_merchant_that_answers_has_orders_in_every_second_while_some_are_parked(
    lab: Lab,
) -> None:
    lab.open_merchants("m", max_concurrency=20)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.1})
    orders = [f"o{n}" for n in range(1200)]
    lab.submit("m", *orders)  # before there is a worker: it finds all of them at once
    with lab.worker(longest_park=30):
        lab.wait_until_some_are_parked()
        lab.events_until_all_ended(orders)
    seconds = {int(at) for _, _, at in lab.merchants.arrivals()}
    assert seconds == set(range(min(seconds), max(seconds) + 1))


def test_a_worker_that_is_killed_while_it_parks_loses_nothing(lab: Lab, rabbitmq: RabbitMQ) -> None:
    """And one whose connection is cut meanwhile. What was parked before may be there twice."""
    lab.open_merchants("m", max_concurrency=2)
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(1000)]
    lab.submit("m", *orders)
    with lab.worker() as worker:
        lab.wait_until_some_are_parked()  # and it has acknowledged fewer
        worker.send(signal.SIGKILL)
        worker.wait()
    with lab.worker() as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=2, timeout=30)
        rabbitmq.drop_connections()
        lab.wait_until_queued("orders", 0)
        worker.send(signal.SIGKILL)
        worker.wait()
    lab.merchants.profile("m", {"kind": "accept", "latency": 0}, release=True)
    with lab.worker():
        everything_ended_once(lab, orders)


def test_a_worker_that_is_stopped_while_it_parks_leaves_every_order_there_once(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    orders = [f"o{n}" for n in range(1500)]
    lab.submit("m", *orders)
    with lab.worker() as worker:
        lab.wait_until_some_are_parked()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    with lab.worker():
        everything_ended_once(lab, orders)
    assert lab.merchants.summary()["requests"] == 1500


def test_a_bundle_that_is_back_is_let_out_to_the_queue_that_it_belongs_to(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    orders = orders_of("m", 20)
    lab.publish_bundle("m", orders, routing_key="orders.canary")
    with lab.worker("-Q", "orders.canary"):  # nobody else would take what went another way
        told = lab.events(20)
    assert sorted(event["order_id"] for event in told) == sorted(o["order_id"] for o in orders)
    assert lab.merchants.summary()["requests"] == 20


def test_orders_whose_time_is_over_are_told_so_however_long_the_others_are_parked(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    parked = orders_of("m", 10) + [late(order) for order in orders_of("m", 10, "late")]
    lab.publish_bundle("m", parked)
    with lab.worker():
        told = by_type(lab.events(10))
        lab.wait_until_parked(1, 1)
        assert sorted(told["order.expired"]) == sorted(f"late{n}" for n in range(10))
        lab.open_merchants("m")
        lab.merchants.profile("m", {"kind": "accept", "latency": 0})
        everything_ended_once(lab, [f"o{n}" for n in range(10)])


def test_an_order_that_becomes_worthless_while_it_is_parked_is_told_so_then(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    with lab.worker(longest_park=30):
        lab.wait_for_worker()  # else the order's time is over while one starts
        soon = an_order("soon", "m", seconds=4)
        lab.publish_bundle("m", [*orders_of("m", 40), soon])
        [event] = lab.events(1)
        lab.wait_until_parked(1, 1)
    assert (event["type"], event["order_id"]) == ("order.expired", "soon")
    deliver_by = datetime.fromisoformat(soon["deliver_by"])
    # Parked as far as its neighbours, it would have been back after fifteen seconds or more.
    assert datetime.fromisoformat(event["occurred_at"]) - deliver_by < timedelta(seconds=10)


def test_small_bundles_come_together_to_large_ones(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    for n in range(100):
        lab.publish_bundle("m", orders_of("m", 3, f"o{n}-"))
    with lab.worker() as worker:
        lab.wait_until_parked(300 // 64, 10)
        worker.send(signal.SIGKILL)  # nothing was let out, or is missing
        worker.wait()
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    with lab.worker():
        everything_ended_once(lab, [f"o{n}-{i}" for n in range(100) for i in range(3)])


NO_BUNDLES: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "no merchant": ({"x-merchant-id": None}, b"", "invalid_bundle"),
    "no number": ({"x-orders": "two"}, b"", "invalid_bundle"),
    "too few orders": ({"x-orders": 3}, b"", "invalid_bundle"),
    "not a bundle's body": ({}, b"[[[1,2]],{},{}]", "invalid_bundle"),
    "no JSON": ({}, b"\xff\x00", "invalid_bundle"),
    "far too long": ({}, b"x" * (BYTES_ALLOWED + 1), "too_large"),
}


def publish_no_bundles(lab: Lab) -> None:
    good = a_bundle("fast-1", orders_of("fast-1", 2))
    for name, (headers, body, _) in NO_BUNDLES.items():
        changed = {**good.headers, **headers}
        kept = {key: value for key, value in changed.items() if value is not None}
        lab.publish_raw(body or good.body, kept, message_id=name)


def set_aside(lab: Lab) -> None:
    dead = lab.dead_letters(len(NO_BUNDLES))
    codes = sorted(letter["headers"]["x-reason-code"] for letter in dead)
    assert codes == sorted(code for _, _, code in NO_BUNDLES.values())
    assert all(letter["headers"]["task"] == PARKED_ORDERS for letter in dead)
    kept = {letter["body"] for letter in dead}
    assert all(not body or body.decode("latin-1") in kept for _, body, _ in NO_BUNDLES.values())
    [whole] = [letter for letter in dead if letter["headers"].get("x-orders") == 3]
    (listed,), _, _ = json.loads(whole["body"])
    assert [listed[1][0][0]["order_id"], listed[3][0][0]["order_id"]] == ["o0", "o1"]


def test_what_is_no_bundle_is_set_aside_whole_and_the_worker_goes_on(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    publish_no_bundles(lab)
    lab.submit("fast-1", "good")
    with lab.worker():
        set_aside(lab)
        assert by_type(lab.events(1)) == {"order.accepted": ["good"]}


def test_a_small_bundle_that_is_none_does_not_spoil_those_that_it_would_be_parked_with(
    lab: Lab,
) -> None:
    lab.open_merchants("m", paused=True)
    good = a_bundle("m", orders_of("m", 2))
    lab.publish_raw(good.body, good.headers)
    lab.publish_raw(good.body, {**good.headers, "x-orders": 7})
    with lab.worker():
        [dead] = lab.dead_letters(1)
        lab.wait_until_parked(1, 1)
    assert dead["headers"]["x-orders"] == 7


def test_a_synchronous_worker_lets_every_parked_order_out(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    lab.publish_bundle("m", orders_of("m", 30))
    with lab.worker("-P", "prefork", "-c", "2", app="pos_gateway"):
        everything_ended_once(lab, [f"o{n}" for n in range(30)])
    assert lab.merchants.summary()["requests"] == 30


def test_a_synchronous_worker_sets_what_is_no_bundle_aside(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    publish_no_bundles(lab)
    lab.submit("fast-1", "good")
    with lab.worker("-P", "prefork", "-c", "2", app="pos_gateway"):
        set_aside(lab)
        assert by_type(lab.events(1)) == {"order.accepted": ["good"]}


def test_a_large_bundle_of_one_order_that_is_none_is_set_aside_whoever_it_is_for(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    tail = a_bundle("m", orders_of("m", 2)).body.rsplit(b",{},", 1)[1]
    body = b"[[[\n{},\n" + b"x" * 70_000 + b"\n]],{}," + tail
    headers = {"task": PARKED_ORDERS, "id": "x", "lang": "py", "x-merchant-id": "m", "x-orders": 1}
    with lab.worker():
        lab.publish_bundle("m", orders_of("m", 64))
        lab.wait_until_parked(1, 1)  # by now it is known that the merchant is paused
        lab.publish_raw(body, headers, message_id="x")
        [dead] = lab.dead_letters(1)
    assert dead["headers"]["x-reason-code"] == "invalid_bundle"
