"""Users of the broker who may not declare what is there already."""

import pytest
from amqp.exceptions import AccessRefused
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.broker.publisher import Publisher
from pos_gateway.broker.queue_state import queue_states
from pos_gateway.client import OrderClient
from pos_gateway.domain.errors import PublishError, PublishRefused
from pos_gateway.domain.split import Split
from pos_gateway.routing import splits
from testkit.servers.rabbitmq import RabbitMQ
from tests.broker.test_publisher import a_message, count
from tests.orders import an_order


@pytest.fixture
def declared(broker_url: str) -> None:
    """Everything is declared, by a user who may."""
    with Connection(broker_url) as connection:
        topology.declare_all(connection)


@pytest.fixture
def may_not(rabbitmq: RabbitMQ, broker_url: str) -> str:
    """The URL of a user who may read and write, and not configure."""
    return rabbitmq.add_user("few", broker_url, configure="")


@pytest.mark.parametrize("kind", [Publisher, PlainPublisher], ids=["worker", "backend"])
def test_they_publish(
    declared: None, rabbitmq: RabbitMQ, may_not: str, broker_url: str, kind: type[Publisher]
) -> None:
    publisher = kind(may_not)
    publisher.publish(a_message(1))
    rabbitmq.drop_connections()
    publisher.publish(a_message(2))
    publisher.close()
    assert count(broker_url) == 2


@pytest.mark.parametrize("kind", [Publisher, PlainPublisher], ids=["worker", "backend"])
def test_they_are_told_which_queue_is_missing_and_what_declares_it(
    rabbitmq: RabbitMQ, may_not: str, broker_url: str, kind: type[Publisher]
) -> None:
    publisher = kind(may_not)
    remedy = "may not declare it: run pos-gateway declare as a user who has configure$"
    with pytest.raises(PublishRefused, match=rf"^no queue 'orders' in vhost '\S+', and .*{remedy}"):
        publisher.publish(a_message(1))
    with Connection(broker_url) as connection:
        topology.declare_all(connection)
        connection.default_channel.queue_delete("order-events")
        with pytest.raises(PublishRefused, match=r"^no queue 'order-events' in vhost"):
            publisher.publish(a_message(1))
        connection.default_channel.exchange_delete("order-events")
        topology.declare_queues(connection, topology.events_queue)
    publisher.publish(a_message(1))
    publisher.close()


def test_an_exchange_that_is_missing_is_named(
    declared: None, rabbitmq: RabbitMQ, may_not: str, broker_url: str
) -> None:
    with Connection(broker_url) as connection:
        connection.default_channel.exchange_delete("celery_delayed_7")
    with Connection(may_not) as connection:
        topology.declare(connection)
        with pytest.raises(PublishRefused, match=r"^no exchange 'celery_delayed_7' in vhost"):
            topology.declare_delays(connection)


def test_a_stream_without_a_leader_stops_no_orders(
    declared: None, rabbitmq: RabbitMQ, may_not: str, broker_url: str
) -> None:
    rabbitmq.lose_leader(broker_url, topology.splits_stream.name)
    with Connection(may_not) as connection:
        assert "down or inaccessible" in str(topology.declare(connection))


def test_a_backend_that_may_write_orders_alone_submits(
    declared: None, rabbitmq: RabbitMQ, broker_url: str
) -> None:
    url = rabbitmq.add_user(
        "shop", broker_url, configure="", write="^orders$", read="^orders.canary.split$"
    )
    with OrderClient(url) as client:
        client.submit(an_order("o1"))
        assert client.split == Split()
    assert count(broker_url) == 1


def test_queues_and_dead_letters_are_looked_at(
    declared: None, rabbitmq: RabbitMQ, may_not: str
) -> None:
    assert [each.ready for each in queue_states(may_not)] == [0, 0]
    with DeadLetterQueue(may_not) as letters:
        assert list(letters) == []


def test_the_split_is_read_and_to_change_it_takes_a_right(
    declared: None, rabbitmq: RabbitMQ, may_not: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "THERE", 0.0)
    assert splits.in_force(may_not, 7.0).percent == 7.0
    turn = r"access to queue 'orders\.canary\.split\.turn' .*; grant this user configure \("
    with pytest.raises(PublishError, match=turn), splits.changing(may_not) as publish:
        publish(Split(percent=1.0))


def test_all_merchants_are_moved_back_without_that_right(
    declared: None, rabbitmq: RabbitMQ, may_not: str, broker_url: str
) -> None:
    with splits.changing(may_not, at_once=True) as publish:
        publish(Split(pins=frozenset({"m-1"})))
    watch = splits.SplitWatch(broker_url)
    assert watch.split() == Split(pins=frozenset({"m-1"}))
    watch.close()


def test_a_split_that_cannot_be_read_is_no_mistake_of_ours(
    rabbitmq: RabbitMQ, may_not: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PublishRefused, match=r"^no queue 'orders\.canary\.split' in vhost"):
        splits.in_force(may_not, 0.0)
    watch = splits.SplitWatch(may_not)
    assert watch.split() is None
    watch.close()
    [said] = caplog.messages
    assert said.startswith("canary.split_refused: no queue 'orders.canary.split'")


def test_to_declare_all_takes_the_right_though_all_is_there(
    declared: None, rabbitmq: RabbitMQ, may_not: str
) -> None:
    """Who runs it wants the bindings, which cannot be looked for."""
    with Connection(may_not) as connection, pytest.raises(AccessRefused):
        topology.declare_all(connection)
