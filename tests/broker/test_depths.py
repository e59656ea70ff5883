"""How long the queues are, asked of a real RabbitMQ."""

from collections.abc import Iterator
from threading import Event

import pytest
from kombu import Connection

from pos_gateway.broker import connection as answers
from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.queue_metrics import Depths
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
    depths = Depths(broker_url)
    assert depths.ready == {}
    depths.look()
    assert depths.ready == EMPTY
    put(publisher, "orders", "orders", "orders.dead")
    depths.look()
    assert depths.ready == {**EMPTY, "orders": 2, "orders.dead": 1}
    depths._drop()


def test_a_queue_that_is_not_there_hides_no_other(publisher: Publisher, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        connection.default_channel.queue_delete("orders.canary")
    depths = Depths(broker_url)
    for _ in range(2):
        depths.look()
        assert depths.ready == {n: 0 for n in EMPTY if n != "orders.canary"}
    depths._drop()


def test_nothing_is_known_while_the_broker_cannot_be_asked(
    publisher: Publisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "ANSWER", 0.2)
    with Proxy(broker_url) as proxy:
        depths = Depths(proxy.url)
        depths.look()
        assert depths.ready == EMPTY
        proxy.half_open("server")  # nothing comes any more, and nobody says so
        depths.look()
        assert depths.ready == {}
        proxy.heal()
        depths.look()
        assert depths.ready == EMPTY
        proxy.down()
        depths.look()
        assert depths.ready == {}
        depths._drop()


def test_it_looks_by_itself_and_says_goodbye(publisher: Publisher, broker_url: str) -> None:
    looked = Event()

    class Watched(Depths):
        def look(self) -> None:
            super().look()
            looked.set()

    depths = Watched(broker_url)
    depths.start()
    assert looked.wait(30)
    assert depths.ready == EMPTY
    assert depths._connection is not None
    depths.stop()
    depths.stop()
    assert depths._thread is not None
    assert not depths._thread.is_alive()
    assert not depths._connection.connected
