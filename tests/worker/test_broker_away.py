"""A broker that accepts connections and does not answer."""

import signal
import time

from pos_gateway.database.engine import open_database
from pos_gateway.reports.fleet_view import FleetView
from testkit.servers.proxy import Proxy
from tests.worker.lab import Lab, by_type
from tests.worker.test_reporting import wait_until


def test_a_worker_stops_while_its_broker_does_not_answer(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 1.0})
    lab.submit("m", *[f"o{n}" for n in range(30)])
    with (
        Proxy(lab.broker_url) as proxy,
        lab.worker(broker_url=proxy.url, request_timeout=2) as worker,
    ):
        lab.merchants.wait_until(merchant_id="m", in_flight=10)
        proxy.half_open("server")
        worker.send(signal.SIGTERM)
        worker.wait()
    with lab.worker():  # and every order is there for the next worker
        assert len(lab.events_until_all_ended(f"o{n}" for n in range(30))) >= 30


def test_a_worker_reconnects_after_a_handshake_that_hangs(lab: Lab) -> None:
    lab.open_merchants("fast-1")
    lab.submit("fast-1", "before")
    with Proxy(lab.broker_url) as proxy, lab.worker(broker_url=proxy.url):
        assert by_type(lab.events(1)) == {"order.accepted": ["before"]}
        proxy.timeout()  # accepts connections and forwards nothing
        proxy.cut()
        while proxy.connections() == 0:  # it has connected, and waits for the handshake
            time.sleep(0.01)
        proxy.half_open("server")
        proxy.heal()
        lab.submit("fast-1", "after")
        # The other's event may come again: the cut may have taken its confirmation.
        *_, last = lab.events_until_all_ended(["after"])
    assert (last["type"], last["order_id"]) == ("order.accepted", "after")


def test_an_unreachable_node_of_the_cluster_does_not_delay_a_worker(lab: Lab) -> None:
    """Celery would declare the delay queues on each node, and wait up to half a minute for it."""
    lab.open_merchants("m")
    lab.submit("m", "o1")
    with lab.worker(broker_url=f"amqp://127.0.0.1:1//;{lab.broker_url}") as worker:
        assert by_type(lab.events(1)) == {"order.accepted": ["o1"]}
        assert "delayed delivery" not in worker.log


def test_a_worker_that_sends_task_events_survives_a_reconnect(lab: Lab) -> None:
    """With ``-E`` Celery sets a new dispatcher on requests in flight; they must allow that."""
    lab.open_merchants("slow", "fast-1")
    lab.merchants.profile("slow", {"kind": "accept", "latency": 4.0})
    lab.submit("slow", "under-way")
    with Proxy(lab.broker_url) as proxy, lab.worker("-E", broker_url=proxy.url):
        lab.merchants.wait_until(merchant_id="slow", in_flight=1)
        proxy.cut()
        lab.submit("fast-1", "after")
        told = lab.events_until_all_ended(["under-way", "after"])
    assert {type_: sorted(ids) for type_, ids in by_type(told).items()} == {
        "order.accepted": ["after", "under-way"]
    }


def test_a_synchronous_worker_stops_while_its_broker_is_gone(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "accept", "latency": 4.0})
    engine = open_database(lab.database_url)
    with (
        Proxy(lab.broker_url) as proxy,
        lab.worker(
            *("-P", "prefork", "-c", "2"),
            app="pos_gateway",
            broker_url=proxy.url,
            request_timeout=8,
        ) as worker,
    ):
        wait_until(FleetView(engine), lambda fleet: len(fleet.workers) == 2)  # both have started
        lab.submit("m", "o1", "o2")
        lab.merchants.wait_until(merchant_id="m", in_flight=2)
        proxy.down()
        worker.send(signal.SIGTERM)
        worker.wait()
    engine.dispose()
    with lab.worker():
        lab.events_until_all_ended(["o1", "o2"])
    assert lab.merchants.doubled() == []
