"""What the gateway uses of kombu beyond its documentation."""

import inspect
import threading

import kombu
import pytest
from kombu.transport import pyamqp

from pos_gateway.broker import kombu_internals as subject
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.kombu_internals import AmqpConnection, Channel, KombuConnection
from testkit.patience import PATIENCE


class Ours(AmqpConnection):
    """A class of AMQP connections."""


class ToOurs(KombuConnection):
    amqp_class = Ours


def test_kombu_makes_connections_of_the_class_that_it_is_given(broker_url: str) -> None:
    with ToOurs(broker_url) as connection:
        assert isinstance(connection.connection, Ours)
        assert isinstance(connection.connection, pyamqp.Connection)
        assert isinstance(connection.default_channel, Channel)
        assert isinstance(connection.default_channel, pyamqp.Channel)
        clone = connection.clone()  # Celery's
        assert isinstance(clone.connection, Ours)
        clone.release()


def test_a_clone_has_what_its_connection_has() -> None:
    """Celery's monitors clone the app's: ``celery events``, Flower."""
    clone = AnsweredConnection("amqp://kim:pw@there:5673/v", heartbeat=7).clone()
    assert isinstance(clone, AnsweredConnection)
    assert (clone.as_uri(include_password=True), clone.heartbeat) == (
        "amqp://kim:pw@there:5673/v",
        7,
    )


def test_a_connection_says_whether_its_reader_waits(broker_url: str) -> None:
    connection = AnsweredConnection(broker_url)
    assert not connection.waits
    assert not connection.connected, "asking does not connect"
    connection.connect()
    seen = list[bool]()

    def end_wait() -> None:
        pause = threading.Event()
        while not connection.waits:
            pause.wait(0.001)
        seen.append(True)
        connection.connection.transport.sock.shutdown(2)

    looking = threading.Thread(target=end_wait, daemon=True)
    looking.start()
    with pytest.raises(OSError):
        connection.drain_events(timeout=PATIENCE)
    looking.join(PATIENCE)
    assert seen == [True]
    assert not connection.waits


def test_a_tls_url_is_for_the_same_class() -> None:
    transport = ToOurs("amqps://there//").get_transport_cls()
    assert transport.Connection is Ours
    assert issubclass(transport, pyamqp.SSLTransport)


def test_other_brokers_are_left_alone() -> None:
    ours, theirs = ToOurs("memory://"), kombu.Connection("memory://")
    assert ours.get_transport_cls() is theirs.get_transport_cls()


def test_kombu_asks_for_the_transports_class() -> None:
    assert list(inspect.signature(kombu.Connection.get_transport_cls).parameters) == ["self"]
    assert type(ToOurs("amqp://there//").transport) is ToOurs("amqp://x//").get_transport_cls()


def test_there_is_one_class_for_each_transport() -> None:
    assert subject._with(Ours, pyamqp.Transport) is subject._with(Ours, pyamqp.Transport)
