"""What goes wrong around the worker, and that no order is lost or made twice over it."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.native_delayed_delivery import (
    declare_native_delayed_delivery_exchanges_and_queues,
    level_name,
)

from testkit.servers.rabbitmq import RabbitMQ
from tests.orders import an_order
from tests.worker.lab import Lab, by_type


def everything_ended_once(lab: Lab, order_ids: list[str]) -> None:
    """One terminal event for each order (repeats of the same event aside), one create each."""
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


def test_a_hanging_merchant_takes_nothing_from_the_others(lab: Lab) -> None:
    """Ten of its orders are out at once and the rest wait: nobody else waits for them.

    There are slots for all: else calls that hang may be ended for the others' sake.
    """
    healthy = [f"fast-{n}" for n in range(15)]
    lab.open_merchants("hang-1", *healthy)
    lab.submit("hang-1", *[f"h{n}" for n in range(500)])
    for merchant in healthy:
        lab.submit(merchant, *[f"{merchant}-{n}" for n in range(20)])
    with lab.worker():
        told = by_type(lab.events(300))
        assert len(told["order.accepted"]) == 300
        hanging = lab.merchants.merchant("hang-1")
        assert hanging["in_flight"] == 10
        assert hanging["max_in_flight"] == 10
        # It has no end to wait for: the worker would, before it stops.
        lab.merchants.profile("hang-1", {"kind": "accept"}, release=True)


def test_orders_that_were_parked_come_back_by_themselves(lab: Lab) -> None:
    """On the canary's queue, so that they must find their way back to the right one."""
    lab.open_merchants("m", max_concurrency=2)
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(40)]
    lab.submit_to_canary("m", *orders)
    with lab.worker("-Q", "orders.canary"):
        lab.merchants.wait_until(merchant_id="m", in_flight=2, timeout=30)
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


def test_a_connection_to_the_broker_that_is_cut_loses_nothing(lab: Lab, rabbitmq: RabbitMQ) -> None:
    """Orders under way when it is cut come again while they are still being sent: they join."""
    merchants = [f"m{n}" for n in range(20)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "accept", "latency": 1.0})
    orders = [f"o{n}" for n in range(200)]
    for number, order_id in enumerate(orders):
        lab.submit(merchants[number % 20], order_id)
    with lab.worker():
        for _ in range(3):
            lab.merchants.wait_until(in_flight=100, timeout=30)
            rabbitmq.drop_connections()
        everything_ended_once(lab, orders)
    assert lab.merchants.summary()["requests"] == 200


def test_what_follows_from_an_attempt_is_never_taken_for_a_copy_of_it(lab: Lab) -> None:
    """A retry whose delay is over before its confirm is here must not be acknowledged with it."""
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 1.5})
    task = {"task": "pos_gateway.submit_order", "id": "o1"}
    body = json.dumps([[an_order("o1", "m")], {}, {}]).encode()
    lab.publish_raw(body, task)
    with lab.worker():
        lab.merchants.wait_until(merchant_id="m", in_flight=1, timeout=30)
        lab.publish_raw(body, task)  # submitted twice: shares the fate of the first
        lab.publish_raw(body, {**task, "x-attempts": 1})  # the first one's successor
        lab.submit("m", "o2")  # behind them
        told = lab.events(2)
    assert sorted(event["order_id"] for event in told) == ["o1", "o2"]
    assert lab.queued() == 0
    assert lab.merchants.summary()["requests"] == 2  # the ledger knows what came of it
    assert lab.merchants.summary()["creates"] == 2


def test_a_broker_that_is_killed_and_comes_back_loses_nothing(lab: Lab, rabbitmq: RabbitMQ) -> None:
    merchants = [f"m{n}" for n in range(20)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "accept", "latency": 0.5})
    orders = [f"o{n}" for n in range(300)]
    for number, order_id in enumerate(orders):
        lab.submit(merchants[number % 20], order_id)
    with lab.worker():
        lab.merchants.wait_until(in_flight=100, timeout=30)
        rabbitmq.kill()
        lab.merchants.wait_until(idle=True, timeout=30)
        rabbitmq.start()
        everything_ended_once(lab, orders)


def test_a_worker_that_is_stopped_in_mid_order_finishes_it_and_hands_back_the_rest(
    lab: Lab,
) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "hang"})
    orders = [f"o{n}" for n in range(60)]
    lab.submit("m", *orders)
    with lab.worker(max_waiting=60, request_timeout=60) as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=10, timeout=30)
        worker.send(signal.SIGTERM)
        lab.wait_until_queued("orders", 50)  # at once: the others are still under way
        assert lab.merchants.merchant("m")["in_flight"] == 10
        lab.merchants.profile("m", {"kind": "accept", "latency": 0.01}, release=True)
        assert worker.wait() == 0
    sent = lab.merchants.summary()["requests"]
    assert sent < 60
    told = by_type(lab.events(sent))
    assert len(told["order.accepted"]) == sent  # whatever was sent was also told
    lab.wait_until_queued("orders", 60 - sent)  # and whatever was not is back
    with lab.worker():
        rest = by_type(lab.events(60 - sent))
    assert sorted(told["order.accepted"] + rest["order.accepted"]) == sorted(orders)
    assert lab.merchants.summary()["requests"] == 60


def test_what_comes_of_an_order_while_its_worker_stops_is_stored_and_its_message_gone(
    lab: Lab,
) -> None:
    comes_to: dict[str, dict[str, Any]] = {
        "accepted": {"kind": "accept", "latency": 0.01},
        "failed": {"kind": "fail", "status": 401},
        "put-off": {"kind": "limit", "retry_after": "60"},
    }
    lab.open_merchants(*comes_to, max_concurrency=1)
    for merchant in comes_to:
        lab.merchants.profile(merchant, {"kind": "hang"})
    lab.submit("accepted", "accepted", "waits")
    lab.submit("failed", "failed")
    lab.submit("put-off", "put-off")
    with lab.worker(request_timeout=60) as worker:
        lab.merchants.wait_until(in_flight=3, timeout=30)
        worker.send(signal.SIGTERM)
        lab.wait_until_queued("orders", 1)
        for merchant, profile in comes_to.items():
            lab.merchants.profile(merchant, profile, release=True)
        assert worker.wait() == 0
    assert (lab.queued(), lab.delayed(), lab.queued("orders.dead")) == (1, 1, 1)
    told = by_type(lab.events(2))
    assert told == {"order.accepted": ["accepted"], "order.failed": ["failed"]}


def test_a_worker_that_is_killed_loses_nothing(lab: Lab) -> None:
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    orders = [f"o{n}" for n in range(100)]
    lab.submit("m", *orders)
    with lab.worker() as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=50, timeout=30)
        worker.send(signal.SIGKILL)
        worker.wait()
    with lab.worker():
        everything_ended_once(lab, orders)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_a_worker_that_ends_loses_none_that_waits_for_its_next_attempt(
    lab: Lab, number: signal.Signals
) -> None:
    """It waits in the worker, and its message is the broker's until there is an outcome."""
    merchants = [f"m{n}" for n in range(10)]
    orders = [f"o{n}" for n in range(10)]
    lab.open_merchants(*merchants)
    lab.merchants.profile("m*", {"kind": "fail", "status": 503})
    for merchant, order_id in zip(merchants, orders, strict=True):
        lab.submit(merchant, order_id)
    with lab.worker() as worker:
        lab.merchants.wait_until(requests=10, idle=True, timeout=30)
        worker.send(number)
        worker.wait()
    lab.merchants.profile("m*", {"kind": "accept"})
    with lab.worker():
        everything_ended_once(lab, orders)


def test_an_order_that_is_tried_again_soon_is_none_of_the_brokers_business(lab: Lab) -> None:
    """Its message is there once, and the broker delays nothing."""
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "fail", "status": 503})
    lab.submit("m", "o1")
    with lab.worker(), counted_delays(lab.broker_url) as delays:
        lab.merchants.wait_until(requests=2, idle=True, timeout=30)
        lab.merchants.profile("m", {"kind": "accept"})
        everything_ended_once(lab, ["o1"])
        assert delays() == 0


def test_an_order_is_not_acknowledged_before_its_event_is_stored(
    lab: Lab, rabbitmq: RabbitMQ
) -> None:
    """Killed between the merchant's answer and the event: the order must come again."""
    lab.open_merchants("fast-1")
    orders = [f"o{n}" for n in range(20)]
    lab.submit("fast-1", *orders)
    with rabbitmq.memory_alarm(), lab.worker() as worker:
        lab.merchants.wait_until(merchant_id="fast-1", creates=20, idle=True, timeout=30)
        worker.send(signal.SIGKILL)
        worker.wait()
    with lab.worker():
        everything_ended_once(lab, orders)


def test_a_memory_alarm_holds_orders_back_and_loses_none(lab: Lab, rabbitmq: RabbitMQ) -> None:
    lab.open_merchants("m", max_concurrency=50)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0.5})
    orders = [f"o{n}" for n in range(100)]
    lab.submit("m", *orders)
    with lab.worker():
        lab.merchants.wait_until(merchant_id="m", in_flight=50, timeout=30)
        with rabbitmq.memory_alarm():
            # Merchants go on answering while the broker takes no event.
            lab.merchants.wait_until(merchant_id="m", creates=100, timeout=30)
        everything_ended_once(lab, orders)
