"""Failures around the worker: no order is lost, and none is created twice."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection
from kombu.transport.native_delayed_delivery import (
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from testkit.faults.backend import distinct
from testkit.servers.rabbitmq import RabbitMQ
from tests.orders import an_order
from tests.worker.lab import Lab, by_type


def everything_ended_once(lab: Lab, order_ids: list[str]) -> None:
    """One terminal event for each order (duplicates of the same event allowed), one create each."""
    seen: dict[str, set[str]] = {}
    for event in lab.events_until_all_ended(order_ids):
        seen.setdefault(event["order_id"], set()).add(event["id"])
    assert {order for order, ids in seen.items() if len(ids) > 1} == set()
    made = {order["order_id"]: order["creates"] for order in lab.merchants.orders()}
    assert made == dict.fromkeys(order_ids, 1)


@contextmanager
def counted_delays(broker_url: str) -> Iterator[Callable[[], int]]:
    """How many messages the broker has delayed meanwhile, for up to seven seconds each."""
    with Connection(broker_url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        channel = connection.default_channel
        queue = channel.queue_declare(exclusive=True).queue
        for level in range(3):
            channel.queue_bind(queue, level_name(level), "#")
        yield lambda: int(channel.queue_declare(queue, passive=True).message_count)


def test_a_hanging_merchant_does_not_delay_the_others(lab: Lab) -> None:
    """Ten of its orders are in flight and the rest wait; no other merchant's order waits.

    There are slots for all: otherwise calls that hang could be cut short for the others.
    """
    healthy = [f"fast-{n}" for n in range(15)]
    lab.open_merchants("hang-1", *healthy)
    lab.submit("hang-1", *[f"h{n}" for n in range(300)])
    for merchant in healthy:
        lab.submit(merchant, *[f"{merchant}-{n}" for n in range(20)])
    with lab.worker():
        told = by_type(lab.events(300))
        assert len(told["order.accepted"]) == 300
        hanging = lab.merchants.merchant("hang-1")
        assert hanging["in_flight"] == 10
        assert hanging["max_in_flight"] == 10
        # The worker would wait for these calls before it stops.
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)


def test_parked_orders_are_redelivered(lab: Lab) -> None:
    """On the canary's queue, so that they must return to that one."""
    lab.open_merchants("m", max_concurrency=2)
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(40)]
    lab.submit_to_canary("m", *orders)
    with lab.worker("-Q", "orders.canary"):
        lab.merchants.wait_until(merchant_id="m", in_flight=2)
        lab.wait_until_queued("orders.canary", 0)
        lab.merchants.profile("m", {"kind": "accept", "latency": 0.02}, release=True)
        everything_ended_once(lab, orders)


def test_a_paused_merchant_is_sent_nothing_until_it_is_resumed(lab: Lab) -> None:
    lab.open_merchants("m", paused=True)
    lab.open_merchants("fast-1")
    lab.submit("m", "o1", "o2")
    lab.submit("fast-1", "f1")
    with lab.worker():
        assert by_type(lab.events(1))["order.accepted"] == ["f1"]
        assert lab.merchants.summary()["requests"] == 1
        lab.open_merchants("m")
        assert sorted(by_type(lab.events(2))["order.accepted"]) == ["o1", "o2"]


def test_a_lost_broker_connection_loses_no_order(lab: Lab, rabbitmq: RabbitMQ) -> None:
    """Orders in flight are redelivered while they are still being sent, and join those."""
    merchants = [f"m{n}" for n in range(20)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "accept", "latency": 1.0})
    orders = [f"o{n}" for n in range(200)]
    for number, order_id in enumerate(orders):
        lab.submit(merchants[number % 20], order_id)
    with lab.worker():
        for _ in range(3):
            lab.merchants.wait_until(in_flight=100)
            rabbitmq.drop_connections()
        everything_ended_once(lab, orders)
    assert lab.merchants.summary()["requests"] == 200


def test_a_retry_is_never_taken_for_a_copy_of_its_attempt(lab: Lab) -> None:
    """A retry delivered before its publisher confirm must not be acknowledged with the attempt."""
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 1.5})
    task = {"task": "pos_gateway.submit_order", "id": "o1"}
    body = json.dumps([[an_order("o1", "m")], {}, {}]).encode()
    lab.publish_raw(body, task)
    with lab.worker():
        lab.merchants.wait_until(merchant_id="m", in_flight=1)
        lab.publish_raw(body, task)  # submitted twice: shares the outcome of the first
        lab.publish_raw(body, {**task, "x-attempts": 1})  # the first one's successor
        lab.submit("m", "o2")  # behind them
        told = lab.events(2)
    assert sorted(event["order_id"] for event in told) == ["o1", "o2"]
    assert lab.queued() == 0
    assert lab.merchants.summary()["requests"] == 2  # the ledger has its outcome
    assert lab.merchants.summary()["creates"] == 2


def test_a_broker_crash_loses_no_order(lab: Lab, rabbitmq: RabbitMQ) -> None:
    merchants = [f"m{n}" for n in range(20)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "accept", "latency": 0.5})
    orders = [f"o{n}" for n in range(300)]
    for number, order_id in enumerate(orders):
        lab.submit(merchants[number % 20], order_id)
    with lab.worker():
        lab.merchants.wait_until(in_flight=100)
        rabbitmq.kill()
        lab.merchants.wait_until(idle=True)
        rabbitmq.start()
        everything_ended_once(lab, orders)


def test_a_stopping_worker_finishes_orders_in_flight_and_requeues_the_rest(
    lab: Lab,
) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(60)]
    lab.submit("m", *orders)
    with lab.worker(max_waiting=60, request_timeout=60) as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=10)
        worker.send(signal.SIGTERM)
        # Requeued at once, while the others are still in flight.
        lab.wait_until_queued("orders", 50)
        assert lab.merchants.merchant("m")["in_flight"] == 10
        lab.merchants.profile("m", {"kind": "accept", "latency": 0.01}, release=True)
        assert worker.wait() == 0
    sent = lab.merchants.summary()["requests"]
    assert sent < 60
    told = by_type(lab.events(sent))
    assert len(told["order.accepted"]) == sent  # every order that was sent has its event
    lab.wait_until_queued("orders", 60 - sent)  # and every other one is requeued
    with lab.worker():
        rest = by_type(lab.events(60 - sent))
    assert sorted(told["order.accepted"] + rest["order.accepted"]) == sorted(orders)
    assert lab.merchants.summary()["requests"] == 60


def test_an_outcome_during_shutdown_is_stored_and_its_message_acknowledged(
    lab: Lab,
) -> None:
    comes_to: dict[str, dict[str, Any]] = {
        "accepted": {"kind": "accept", "latency": 0.01},
        "failed": {"kind": "fail", "status": 403},
        "put-off": {"kind": "limit", "retry_after": "60"},
    }
    lab.open_merchants(*comes_to, max_concurrency=1)
    for merchant in comes_to:
        lab.merchants.profile(merchant, {"kind": "hang"})
    lab.submit("accepted", "accepted", "waits")
    lab.submit("failed", "failed")
    lab.submit("put-off", "put-off")
    with lab.worker(request_timeout=60) as worker:
        lab.merchants.wait_until(in_flight=3)
        worker.send(signal.SIGTERM)
        lab.wait_until_queued("orders", 1)
        for merchant, profile in comes_to.items():
            lab.merchants.profile(merchant, profile, release=True)
        assert worker.wait() == 0
    assert (lab.queued(), lab.delayed(), lab.queued("orders.dead")) == (1, 1, 1)
    with lab.worker():  # it publishes what the first one did not within its last two seconds
        events = lab.events_until_all_ended(["accepted", "waits", "failed"])
    # One that the first did publish may come again.
    assert by_type(distinct(events)) == {
        "order.accepted": ["accepted", "waits"],
        "order.failed": ["failed"],
    }


def test_a_killed_worker_loses_no_order(lab: Lab, rabbitmq: RabbitMQ) -> None:
    """In flight, between its merchant's answer and its event, or waiting for its retry.

    No event can be published while the alarm is raised. A retry waits in the worker; its message
    stays unacknowledged until there is an outcome.
    """
    failing = [f"failing-{n}" for n in range(10)]
    lab.open_merchants("fast-1", *failing)
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "hang"})
    lab.merchants.profile("failing-*", {"kind": "fail", "status": 503})
    in_flight, answered = [f"o{n}" for n in range(100)], [f"answered-{n}" for n in range(20)]
    lab.submit("m", *in_flight)
    lab.submit("fast-1", *answered)
    for merchant in failing:
        lab.submit(merchant, merchant)
    with rabbitmq.memory_alarm(), lab.worker() as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=50)
        lab.merchants.wait_until(merchant_id="fast-1", creates=20, idle=True)
        for merchant in failing:
            lab.merchants.wait_until(merchant_id=merchant, requests=1, idle=True)
        worker.send(signal.SIGKILL)
        worker.wait()
    lab.merchants.profile("m", {"kind": "accept"}, release=True)
    lab.merchants.profile("failing-*", {"kind": "accept"})
    with lab.worker():
        everything_ended_once(lab, [*in_flight, *answered, *failing])


def test_a_stopped_worker_loses_no_waiting_retry(lab: Lab) -> None:
    merchants = [f"m{n}" for n in range(10)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "fail", "status": 503})
    for merchant in merchants:
        lab.submit(merchant, merchant)
    with lab.worker() as worker:
        lab.merchants.wait_until(requests=10, idle=True)
        assert worker.stop() == 0
    lab.merchants.profile("m*", {"kind": "accept"})
    with lab.worker():
        everything_ended_once(lab, merchants)


def test_a_retry_that_is_due_soon_is_not_published(lab: Lab) -> None:
    """The broker has one message of the order, and delays none."""
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "fail", "status": 503})
    lab.submit("m", "o1")
    with lab.worker(), counted_delays(lab.broker_url) as delays:
        lab.merchants.wait_until(requests=2, idle=True)
        lab.merchants.profile("m", {"kind": "accept"})
        everything_ended_once(lab, ["o1"])
        assert delays() == 0


def test_a_memory_alarm_delays_orders_and_loses_none(lab: Lab, rabbitmq: RabbitMQ) -> None:
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    orders = [f"o{n}" for n in range(100)]
    lab.submit("m", *orders)
    with lab.worker():
        lab.merchants.wait_until(merchant_id="m", in_flight=50)
        with rabbitmq.memory_alarm():
            # Merchants go on answering while the broker blocks publishes.
            lab.merchants.wait_until(merchant_id="m", creates=100)
        everything_ended_once(lab, orders)
