"""A broker whose packets stop without a reset: a failover, or a firewall that forgets."""

import re
import time
from collections.abc import Iterator

import pytest

from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.faults.lab import FaultLab

#: Seconds between the broker's heartbeats; the default takes half a minute to fail.
HEARTBEAT = 3


@pytest.fixture(autouse=True)
def _quick_heartbeats(broker_url: str, rabbitmq: RabbitMQ) -> Iterator[None]:
    rabbitmq.eval(f"application:set_env(rabbit, heartbeat, {HEARTBEAT})")
    yield
    rabbitmq.eval("application:set_env(rabbit, heartbeat, 60)")


def _channels(rabbitmq: RabbitMQ) -> set[str]:
    return set(re.findall(r"<[\d.]+>", rabbitmq.eval("rabbit_channel:list()")))


def _cut_until_it_begins_again(proxy: Proxy, rabbitmq: RabbitMQ) -> None:
    """Until it declares the delay queues, which takes some hundred replies."""
    proxy.latency(0.1)  # each
    before = _channels(rabbitmq)
    proxy.cut()
    while _channels(rabbitmq) <= before:
        time.sleep(0.01)


def test_a_vanished_broker_is_noticed_and_outcomes_are_kept_until_it_is_back(
    lab: FaultLab,
) -> None:
    poses = lab.open_poses(3)
    lab.merchants.profile("keyed-*", {"kind": "accept", "latency": 0.5})
    with (
        Proxy(lab.broker_url) as proxy,
        lab.worker(broker_url=proxy.url, request_timeout=2) as worker,
    ):
        lab.place_some(poses, each=8)
        lab.merchants.wait_until(creates=20)
        proxy.half_open()
        lab.settle()
        lab.place_some(poses, each=8)
        lab.merchants.wait_until(creates=90)
        proxy.half_open()
        assert worker.stop() == 0
    with lab.worker():
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def test_a_worker_stops_although_the_broker_vanishes_during_its_reconnect(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    """It waits for a reply then, and sends no heartbeats."""
    with Proxy(lab.broker_url) as proxy, lab.worker(broker_url=proxy.url) as worker:
        lab.wait_for_worker()
        _cut_until_it_begins_again(proxy, rabbitmq)
        proxy.timeout()
        assert worker.stop() == 0
        assert "timed out" not in worker.log  # it did not wait for the broker first


def test_a_reconnecting_worker_repeats_unanswered_requests(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    """Without a command: Celery's own connection times out."""
    poses = lab.open_poses(1)
    with Proxy(lab.broker_url) as proxy, lab.worker(broker_url=proxy.url):
        lab.wait_for_worker()
        _cut_until_it_begins_again(proxy, rabbitmq)
        proxy.half_open()
        proxy.heal()
        lab.place_some(poses, each=1)
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
