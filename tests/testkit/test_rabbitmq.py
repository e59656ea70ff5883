"""The RabbitMQ that tests start: fast to steer, and the same after a crash."""

from collections.abc import Callable

import kombu
import pytest
from amqp.exceptions import ConnectionForced

from testkit.servers.rabbitmq import RabbitMQ


def test_a_durable_message_survives_a_crash_of_the_broker(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    publish(broker_url, "kept")

    rabbitmq.kill()
    rabbitmq.start()

    assert take(broker_url) == "kept"


def test_every_virtual_host_is_empty_and_apart_from_the_others(rabbitmq: RabbitMQ) -> None:
    one, other = rabbitmq.add_vhost(), rabbitmq.add_vhost("named/by hand")
    publish(one, "here")

    assert queue_length(one) == 1
    assert queue_length(other) == 0

    rabbitmq.delete_vhost(one)
    rabbitmq.delete_vhost(other)


def test_dropped_connections_are_told_that_the_broker_closed_them(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    with kombu.Connection(broker_url) as connection:
        connection.connect()

        rabbitmq.drop_connections()

        with pytest.raises(ConnectionForced):
            connection.drain_events(timeout=10)


def test_publishers_are_blocked_for_as_long_as_the_memory_alarm_lasts(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    told: list[str] = []
    with kombu.Connection(
        broker_url,
        transport_options={
            "on_blocked": lambda reason: told.append("blocked"),
            "on_unblocked": lambda: told.append("unblocked"),
        },
    ) as connection:
        with rabbitmq.memory_alarm():
            kombu.Producer(connection).publish("held", routing_key="nowhere")
            drain_until(connection, lambda: told == ["blocked"])
        drain_until(connection, lambda: told == ["blocked", "unblocked"])


def test_an_erlang_expression_that_fails_says_how(rabbitmq: RabbitMQ) -> None:
    assert rabbitmq.eval("1 + 1") == "2"
    with pytest.raises(RuntimeError, match="badarith"):
        rabbitmq.eval("1 + a")


def test_rabbitmqctl_speaks_to_the_node_of_the_tests(rabbitmq: RabbitMQ, broker_url: str) -> None:
    assert broker_url.rpartition("/")[2] in rabbitmq.ctl("list_vhosts").split()


def publish(url: str, message: str) -> None:
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        queue(connection).declare()
        kombu.Producer(connection).publish(message, routing_key="q", delivery_mode=2)


def take(url: str) -> object:
    with kombu.Connection(url) as connection:
        message = queue(connection).get()
        assert message is not None
        message.ack()
        return message.payload


def queue_length(url: str) -> int:
    with kombu.Connection(url) as connection:
        return int(queue(connection).queue_declare().message_count)


def queue(connection: kombu.Connection) -> kombu.Queue:
    return kombu.Queue("q", queue_arguments={"x-queue-type": "quorum"})(connection)


def drain_until(connection: kombu.Connection, happened: Callable[[], bool]) -> None:
    while not happened():
        connection.drain_events(timeout=10)
