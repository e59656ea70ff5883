"""Orders parked in the broker, many to a message: none is lost, doubled or forgotten."""

import json
import signal
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from pos_gateway.broker.bundle import BYTES_ALLOWED, PARKED_ORDERS
from testkit.servers.rabbitmq import RabbitMQ
from tests.orders import an_order
from tests.worker.lab import Lab, a_bundle, by_type
from tests.worker.test_nothing_lost import everything_ended_once

#: Seconds that an order waits in the worker for a merchant that does not answer, before it is parked.
SOON: dict[str, object] = {"local_wait_timeout": 0.5}


def orders_of(merchant_id: str, number: int, prefix: str = "o") -> list[dict[str, Any]]:
    return [an_order(f"{prefix}{n}", merchant_id) for n in range(number)]


def late(order: dict[str, Any]) -> dict[str, Any]:
    """The order with a deadline one second away."""
    now = datetime.now(UTC)
    placed_at, deliver_by = now - timedelta(hours=1), now - timedelta(seconds=1)
    return {**order, "placed_at": placed_at.isoformat(), "deliver_by": deliver_by.isoformat()}


def test_a_dead_merchants_backlog_is_parked_in_few_messages_and_delivered_when_it_is_back(
    lab: Lab,
) -> None:
    lab.open_merchants("m", "fast-1")
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(300)]
    lab.submit("m", *orders)
    lab.submit("fast-1", "behind")
    with lab.worker(**SOON):
        assert by_type(lab.events(1)) == {"order.accepted": ["behind"]}
        lab.wait_until_parked(260 // 64, 10)
        lab.merchants.profile("m", {"kind": "accept", "latency": 0.01}, release=True)
        lab.events_until_all_ended(orders)
    made = {order["order_id"]: order["creates"] for order in lab.merchants.orders("m")}
    assert made == dict.fromkeys(orders, 1)


def test_a_merchant_is_kept_busy_while_some_of_its_orders_are_parked(
    lab: Lab,
) -> None:
    lab.open_merchants("m", max_concurrency=10)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.1})
    orders = [f"o{n}" for n in range(600)]
    lab.submit("m", *orders)  # published before a worker runs, which reads all of them at once
    with lab.worker(park_delay_max=30):
        lab.wait_until_some_are_parked()
        lab.events_until_all_ended(orders)
    times = sorted(at for _, _, at in lab.merchants.arrivals())
    assert max(later - earlier for earlier, later in pairwise(times)) < 5


def ends_once_after_a_lost_connection_and_a_crash(
    lab: Lab, rabbitmq: RabbitMQ, orders: list[str], *, in_flight: int
) -> None:
    """A worker loses its connection and dies while orders of m hang; the next delivers each once."""
    with lab.worker(**SOON) as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=in_flight)
        rabbitmq.drop_connections()
        lab.wait_until_queued("orders", 0)
        worker.send(signal.SIGKILL)
        worker.wait()
    lab.merchants.profile("m", {"kind": "accept", "latency": 0}, release=True)
    with lab.worker():
        everything_ended_once(lab, orders)


def test_a_worker_that_is_killed_while_it_parks_loses_no_order(
    lab: Lab, rabbitmq: RabbitMQ
) -> None:
    """And a worker whose connection is cut meanwhile. Orders parked before may be there twice."""
    lab.open_merchants("m", max_concurrency=2)
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(250)]
    lab.submit("m", *orders)
    with lab.worker(**SOON) as worker:
        lab.wait_until_some_are_parked()  # and fewer are acknowledged
        worker.send(signal.SIGKILL)
        worker.wait()
    ends_once_after_a_lost_connection_and_a_crash(lab, rabbitmq, orders, in_flight=2)


def test_a_worker_that_is_stopped_while_it_parks_leaves_every_order_there_once(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    orders = [f"o{n}" for n in range(300)]
    lab.submit("m", *orders)
    with lab.worker(**SOON) as worker:
        lab.wait_until_some_are_parked()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    with lab.worker():
        everything_ended_once(lab, orders)
    assert lab.merchants.summary()["requests"] == 300


def test_a_worker_that_dies_with_orders_out_of_a_bundle_loses_and_doubles_none(
    lab: Lab, rabbitmq: RabbitMQ
) -> None:
    """They are delivered again: after a lost connection, and after a crash."""
    lab.open_merchants("m", max_concurrency=4)
    lab.merchants.profile("m", {"kind": "hang"})
    orders = orders_of("m", 20)
    lab.publish_bundle("m", orders)
    ids = [order["order_id"] for order in orders]
    ends_once_after_a_lost_connection_and_a_crash(lab, rabbitmq, ids, in_flight=4)


def test_a_worker_that_stops_leaves_the_orders_out_of_a_bundle_that_have_not_started(
    lab: Lab,
) -> None:
    lab.open_merchants("m", max_concurrency=1)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    orders = [order["order_id"] for order in orders_of("m", 20)]
    lab.publish_bundle("m", orders_of("m", 20))
    with lab.worker() as worker:
        ended = {event["order_id"] for event in lab.events(2)}
        assert worker.stop() == 0
    left = len(orders) - lab.merchants.summary()["requests"]
    assert 0 < left <= len(orders) - len(ended)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    with lab.worker():
        lab.events_until_all_ended(order for order in orders if order not in ended)
    assert lab.merchants.summary()["requests"] == len(orders)


def test_a_bundle_is_unparked_to_its_orders_queue(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    orders = orders_of("m", 20)
    lab.publish_bundle("m", orders, routing_key="orders.canary")
    with lab.worker("-Q", "orders.canary"):  # no other worker would take orders from another queue
        told = lab.events(20)
    assert sorted(event["order_id"] for event in told) == sorted(o["order_id"] for o in orders)
    assert lab.merchants.summary()["requests"] == 20


def test_expired_orders_in_a_bundle_have_their_events_before_the_others_are_back(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    parked = orders_of("m", 10) + [late(order) for order in orders_of("m", 10, "late")]
    lab.publish_bundle("m", parked)
    with lab.worker(**SOON):
        told = by_type(lab.events(10))
        lab.wait_until_parked(1, 1)
        assert sorted(told["order.expired"]) == sorted(f"late{n}" for n in range(10))
        lab.open_merchants("m")
        lab.merchants.profile("m", {"kind": "accept", "latency": 0})
        everything_ended_once(lab, [f"o{n}" for n in range(10)])


def test_an_order_that_expires_while_parked_has_its_event_then(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    with lab.worker(park_delay_max=30, **SOON):
        lab.wait_for_worker()  # otherwise the order expires while the worker starts
        soon = an_order("soon", "m", seconds=4)
        lab.publish_bundle("m", [*orders_of("m", 40), soon])
        [event] = lab.events(1)
        lab.wait_until_parked(1, 1)
    assert (event["type"], event["order_id"]) == ("order.expired", "soon")
    deliver_by = datetime.fromisoformat(soon["deliver_by"])
    # Parked with its neighbours' delay, it would be back after fifteen seconds or more.
    assert datetime.fromisoformat(event["occurred_at"]) - deliver_by < timedelta(seconds=10)


def test_small_bundles_are_merged_into_large_ones(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    for n in range(50):
        lab.publish_bundle("m", orders_of("m", 3, f"o{n}-"))
    with lab.worker(**SOON) as worker:
        lab.wait_until_parked(150 // 64, 6)
        worker.send(signal.SIGKILL)  # no order was unparked, and none is missing
        worker.wait()
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    with lab.worker():
        everything_ended_once(lab, [f"o{n}-{i}" for n in range(50) for i in range(3)])


NO_BUNDLES: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "no merchant": ({"x-merchant-id": None}, b"", "invalid_bundle"),
    "no number": ({"x-orders": "two"}, b"", "invalid_bundle"),
    "too few orders": ({"x-orders": 3}, b"", "invalid_bundle"),
    "not a bundle's body": ({}, b"[[[1,2]],{},{}]", "invalid_bundle"),
    "no JSON": ({}, b"\xff\x00", "invalid_bundle"),
    "far too long": ({}, b"x" * (BYTES_ALLOWED + 1), "too_large"),
}


def publish_invalid_bundles(lab: Lab) -> None:
    good = a_bundle("fast-1", orders_of("fast-1", 2))
    for name, (headers, body, _) in NO_BUNDLES.items():
        changed = {**good.headers, **headers}
        kept = {key: value for key, value in changed.items() if value is not None}
        lab.publish_raw(body or good.body, kept, message_id=name)


def dead_lettered(lab: Lab) -> None:
    dead = lab.dead_letters(len(NO_BUNDLES))
    codes = sorted(letter["headers"]["x-reason-code"] for letter in dead)
    assert codes == sorted(code for _, _, code in NO_BUNDLES.values())
    assert all(letter["headers"]["task"] == PARKED_ORDERS for letter in dead)
    kept = {letter["body"] for letter in dead}
    assert all(not body or body.decode("latin-1") in kept for _, body, _ in NO_BUNDLES.values())
    [whole] = [letter for letter in dead if letter["headers"].get("x-orders") == 3]
    (listed,), _, _ = json.loads(whole["body"])
    assert [listed[1][0][0]["order_id"], listed[3][0][0]["order_id"]] == ["o0", "o1"]


def test_an_invalid_bundle_is_dead_lettered_whole_and_the_worker_goes_on(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    publish_invalid_bundles(lab)
    lab.submit("fast-1", "good")
    with lab.worker():
        dead_lettered(lab)
        assert by_type(lab.events(1)) == {"order.accepted": ["good"]}


def test_an_invalid_bundle_does_not_spoil_the_bundles_it_would_be_merged_with(lab: Lab) -> None:
    """Nor does a large one of one invalid order, once the merchant is known to be paused."""
    lab.open_merchants("m", paused=True)
    good = a_bundle("m", orders_of("m", 2))
    tail = good.body.rsplit(b",{},", 1)[1]
    large = b"[[[\n{},\n" + b"x" * 70_000 + b"\n]],{}," + tail
    headers = {"task": PARKED_ORDERS, "id": "x", "lang": "py", "x-merchant-id": "m", "x-orders": 1}
    lab.publish_raw(good.body, good.headers)
    lab.publish_raw(good.body, {**good.headers, "x-orders": 7})
    with lab.worker(**SOON):
        [small] = lab.dead_letters(1)
        lab.wait_until_parked(1, 1)
        lab.publish_raw(large, headers, message_id="x")
        [dead] = lab.dead_letters(1)
    assert small["headers"]["x-orders"] == 7
    assert dead["headers"]["x-reason-code"] == "invalid_bundle"


def test_a_synchronous_worker_unparks_every_order_and_dead_letters_an_invalid_bundle(
    lab: Lab,
) -> None:
    lab.open_merchants("m", "fast-1")
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    publish_invalid_bundles(lab)
    lab.publish_bundle("m", orders_of("m", 30))
    lab.submit("fast-1", "good")
    with lab.worker("-P", "prefork", "-c", "2", app="pos_gateway"):
        dead_lettered(lab)
        everything_ended_once(lab, [*(f"o{n}" for n in range(30)), "good"])
    assert lab.merchants.summary()["requests"] == 31
    assert lab.queued() == 0
