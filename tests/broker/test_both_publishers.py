"""What the worker's publisher and a backend's promise alike, on a real RabbitMQ."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.plain_publisher import PlainPublisher
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.errors import BrokerUnavailable, PublishRefused, Unroutable
from testkit.servers.rabbitmq import RabbitMQ
from tests.broker.test_publisher import a_message, count

Either = Publisher | PlainPublisher
Make = Callable[[str], Either]


@pytest.fixture(params=[Publisher, PlainPublisher], ids=["worker", "backend"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Either] = []

    def make(url: str) -> Either:
        made.append(request.param(url))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_only_the_unroutable_one_among_many_is_reported_so(make: Make, broker_url: str) -> None:
    publisher = make(broker_url)

    def is_routed(number: int) -> bool:
        key = "nowhere" if number % 10 == 0 else topology.ORDERS_KEY
        try:
            publisher.publish(a_message(number, routing_key=key))
        except Unroutable:
            return False
        return True

    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(is_routed, range(200))) == [n % 10 != 0 for n in range(200)]


def test_an_unreachable_broker_is_named_without_its_password(make: Make) -> None:
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1") as caught:
        make("amqp://guest:s3cr3t@127.0.0.1:1//").publish(a_message())
    assert "s3cr3t" not in str(caught.value)


def test_a_queue_with_other_arguments_is_refused_in_words(make: Make, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        connection.default_channel.queue_declare("orders", durable=True, auto_delete=False)
    with pytest.raises(PublishRefused, match="'orders' exists with other arguments"):
        make(broker_url).publish(a_message())


def test_a_lost_connection_is_replaced(make: Make, broker_url: str, rabbitmq: RabbitMQ) -> None:
    publisher = make(broker_url)
    publisher.publish(a_message(1))
    rabbitmq.drop_connections()
    publisher.publish(a_message(2))
    assert count(broker_url) == 2


def test_they_publish_again_when_the_broker_is_back(broker_url: str, rabbitmq: RabbitMQ) -> None:
    publishers: list[Either] = [Publisher(broker_url), PlainPublisher(broker_url)]
    for each in publishers:
        each.publish(a_message(1))
    rabbitmq.kill()
    for each in publishers:
        with pytest.raises(BrokerUnavailable):
            each.publish(a_message(2))
    rabbitmq.start()
    for each in publishers:
        each.publish(a_message(3))
        each.close()
    assert count(broker_url) == 4
