"""The RabbitMQ that tests start: fast to steer, and the same after a crash."""

import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

import kombu
import pytest
from amqp.exceptions import ConnectionForced, NotFound

from pos_gateway.broker import topology
from testkit.faults.backend import connection_errors
from testkit.patience import PATIENCE
from testkit.servers import spare_vhosts
from testkit.servers.rabbitmq import RabbitMQ, binary


def test_a_durable_message_survives_a_crash_of_the_broker() -> None:
    """While a client declares queues: none is left without a leader, for which a start waits.

    A node of its own: hundreds of queues that end with their virtual host are no other test's.
    """
    with RabbitMQ() as node:
        _crash_while_queues_are_declared(node, node.add_vhost())


def _crash_while_queues_are_declared(rabbitmq: RabbitMQ, broker_url: str) -> None:
    publish(broker_url, "kept")
    declared = threading.Semaphore(0)

    def declare_many() -> None:
        with suppress(*connection_errors()), kombu.Connection(broker_url) as connection:
            for number in range(500):
                quorum = {"x-queue-type": "quorum"}
                kombu.Queue(f"q{number}", queue_arguments=quorum)(connection).queue_declare()
                declared.release()

    declaring = threading.Thread(target=declare_many)
    declaring.start()
    assert declared.acquire(timeout=PATIENCE)

    rabbitmq.kill()
    rabbitmq.start()

    declaring.join()
    assert take(broker_url) == "kept"


def test_every_virtual_host_is_empty_and_apart_from_the_others(rabbitmq: RabbitMQ) -> None:
    one, other = rabbitmq.add_vhost(), rabbitmq.add_vhost("named/by hand")
    publish(one, "here")

    assert queue_length(one) == 1
    assert queue_length(other) == 0

    rabbitmq.delete_vhost(one)
    rabbitmq.delete_vhost(other)


def test_a_virtual_host_that_is_given_back_is_used_again_empty(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    one = rabbitmq.add_vhost()  # and not the one that was given back before
    declare(one)
    publish(one, "here")
    with kombu.Connection(one) as connection:
        kombu.Producer(connection).publish("later", routing_key="celery_delayed_5")
    rabbitmq.give_back(one)

    assert rabbitmq.add_vhost() == one

    with kombu.Connection(one) as connection:
        channel = connection.default_channel
        assert channel.queue_declare("celery_delayed_5", passive=True).message_count == 0
        with pytest.raises(NotFound):
            channel.queue_declare("q", passive=True)
    rabbitmq.delete_vhost(one)


def test_a_virtual_host_with_a_client_left_is_not_used_again(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    one = rabbitmq.add_vhost()
    rabbitmq.give_back(one)
    assert rabbitmq._spare is not None
    name, number, _ = rabbitmq._spare
    state = spare_vhosts.state(binary(name), number)
    while spare_vhosts.UNDECIDED in rabbitmq.eval(state):  # it closes the connections that it finds
        pass
    with kombu.Connection(one) as left:
        left.connect()
        while rabbitmq.eval(state) == spare_vhosts.USABLE:  # the broker lists it a moment later
            pass
        other = rabbitmq.add_vhost()
    assert other != one
    rabbitmq.delete_vhost(other)


def test_a_virtual_host_whose_stream_lost_its_leader_is_not_used_again(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    one = rabbitmq.add_vhost()
    declare(one)
    rabbitmq.lose_leader(one, topology.splits_stream.name)
    rabbitmq.give_back(one)
    other = rabbitmq.add_vhost()
    assert other != one
    rabbitmq.delete_vhost(other)


def test_a_virtual_host_that_is_gone_is_not_used_again(rabbitmq: RabbitMQ, broker_url: str) -> None:
    one = rabbitmq.add_vhost()
    rabbitmq.eval(f'rabbit_vhost:delete({binary(unquote(one.rpartition("/")[2]))}, <<"tests">>)')
    rabbitmq.give_back(one)
    other = rabbitmq.add_vhost()
    assert other != one
    rabbitmq.delete_vhost(other)


def test_dropped_connections_are_told_that_the_broker_closed_them(
    rabbitmq: RabbitMQ, broker_url: str
) -> None:
    with kombu.Connection(broker_url) as connection:
        connection.connect()

        rabbitmq.drop_connections()

        with pytest.raises(ConnectionForced):
            connection.drain_events(timeout=PATIENCE)


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


def declare(url: str) -> None:
    with kombu.Connection(url) as connection:
        topology.declare(connection)
        topology.declare_delays(connection)


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
        connection.drain_events(timeout=PATIENCE)
