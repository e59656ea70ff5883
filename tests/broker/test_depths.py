"""How long the queues are, asked of a real RabbitMQ."""

from collections.abc import Iterator
from threading import Event

import pytest
from kombu import Connection

from pos_gateway.broker import amqp_internals, topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.queue_metrics import QueueMetrics
from testkit.patience import PATIENCE
from testkit.servers.proxy import Proxy

EMPTY = {queue.name: 0 for queue in topology.QUEUES}


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    publisher = Publisher(broker_url)
    publisher.connect()
    yield publisher
    publisher.close()


def put(publisher: Publisher, *keys: str) -> None:
    for number, key in enumerate(keys):
        publisher.publish(Message("orders", key, b"{}", f"m{number}"))


def test_a_look_has_every_queues_length(publisher: Publisher, broker_url: str) -> None:
    queue_metrics = QueueMetrics(broker_url)
    assert queue_metrics.ready == {}
    queue_metrics.look()
    assert queue_metrics.ready == EMPTY
    put(publisher, "orders", "orders", "orders.dead")
    queue_metrics.look()
    assert queue_metrics.ready == {**EMPTY, "orders": 2, "orders.dead": 1}
    assert queue_metrics.consumers == 0
    queue_metrics._drop()


def test_a_queue_that_is_not_there_hides_no_other(publisher: Publisher, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        connection.default_channel.queue_delete("orders.canary")
    queue_metrics = QueueMetrics(broker_url)
    for _ in range(2):
        queue_metrics.look()
        assert queue_metrics.ready == {n: 0 for n in EMPTY if n != "orders.canary"}
    queue_metrics._drop()


def test_nothing_is_known_while_the_broker_cannot_be_asked(
    publisher: Publisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(broker_url) as proxy:
        queue_metrics = QueueMetrics(proxy.url)
        queue_metrics.look()
        assert queue_metrics.ready == EMPTY
        proxy.half_open("server")  # nothing comes any more, and no error either
        with monkeypatch.context() as silent:
            silent.setattr(amqp_internals, "ANSWER", 0.2)
            queue_metrics.look()
        assert queue_metrics.ready == {}
        proxy.heal()
        queue_metrics.look()
        assert queue_metrics.ready == EMPTY
        proxy.down()
        queue_metrics.look()
        assert queue_metrics.ready == {}
        queue_metrics._drop()


def test_it_looks_by_itself_and_says_goodbye(publisher: Publisher, broker_url: str) -> None:
    looked = Event()

    class Watched(QueueMetrics):
        def look(self) -> None:
            super().look()
            looked.set()

    queue_metrics = Watched(broker_url)
    queue_metrics.start()
    assert looked.wait(PATIENCE)
    assert queue_metrics.ready == EMPTY
    assert queue_metrics._connection is not None
    queue_metrics.stop()
    queue_metrics.stop()
    assert queue_metrics._thread is not None
    assert not queue_metrics._thread.is_alive()
    assert not queue_metrics._connection.connected
