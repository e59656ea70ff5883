"""Publishing to a real RabbitMQ: what is confirmed is there, what is not raises."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote

import pytest
from kombu import Connection
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)
from structlog.testing import capture_logs

from pos_gateway.broker import amqp_internals, topology
from pos_gateway.broker import connection as answers
from pos_gateway.broker import link as links
from pos_gateway.broker import publisher as publishing
from pos_gateway.broker.link import AmqpLink, Confirms
from pos_gateway.broker.message import FINE, MAX_DELAY, Message, undelayed
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.errors import (
    BatchCutShort,
    BrokerUnavailable,
    PublishError,
    PublishRefused,
    Unroutable,
)
from testkit.patience import PATIENCE
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ


def a_message(number: int = 0, *, routing_key: str = topology.ORDERS_KEY) -> Message:
    return Message("orders", routing_key, b"{}", f"m{number}", {"id": f"m{number}"})


def count(broker_url: str, queue: str = "orders") -> int:
    """How many messages are ready in the queue."""
    with Connection(broker_url) as connection:
        declared = connection.default_channel.queue_declare(queue, passive=True)
        return int(declared.message_count)


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    publisher = Publisher(broker_url)
    yield publisher
    publisher.close()


def test_what_is_published_is_in_the_queue(publisher: Publisher, broker_url: str) -> None:
    publisher.publish(a_message())
    assert count(broker_url) == 1


def test_what_is_published_says_that_it_is_to_be_kept_on_disk(
    publisher: Publisher, broker_url: str
) -> None:
    """Orders, events and dead letters alike; a queue that is no quorum queue goes by it."""
    publisher.publish(a_message())
    publisher.publish_batch([a_message(1)], on_trouble=pytest.fail)
    with Connection(broker_url) as connection:
        for _ in range(2):
            message = connection.default_channel.basic_get("orders", no_ack=True)
            assert message.properties["delivery_mode"] == 2


def test_many_threads_share_one_connection(publisher: Publisher, broker_url: str) -> None:
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda n: publisher.publish(a_message(n)), range(500)))
    assert count(broker_url) == 500


def test_what_no_queue_takes_is_unroutable(publisher: Publisher) -> None:
    with pytest.raises(Unroutable, match="nowhere"):
        publisher.publish(a_message(routing_key="nowhere"))
    publisher.publish(a_message(1))  # and the connection is as good as before


def test_a_connection_that_dies_under_a_message_is_replaced_and_the_message_sent_again(
    publisher: Publisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(a_message(1))

    def die(_batch: object) -> None:
        raise ConnectionResetError("while writing")

    monkeypatch.setattr(publisher._link, "send", die)
    publisher.publish(a_message(2))
    assert count(broker_url) == 2


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_connection_that_was_made_for_a_message_is_not_replaced(
    broker_url: str, monkeypatch: pytest.MonkeyPatch, is_connected: bool
) -> None:
    """Each write may leave a copy, and a caller that retries waits before that."""
    publisher, written = Publisher(broker_url), list[Confirms]()
    if is_connected:
        publisher.connect()

    def die(_link: AmqpLink, batch: Confirms) -> None:
        written.append(batch)
        raise ConnectionResetError("while writing")

    monkeypatch.setattr(AmqpLink, "send", die)
    with pytest.raises(BrokerUnavailable, match="while writing"):
        publisher.publish(a_message())
    assert len(written) == 1 + is_connected
    publisher.close()


def test_orders_do_not_wait_for_a_stream_without_a_leader(
    publisher: Publisher, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    publisher.publish(a_message(1))
    rabbitmq.lose_leader(broker_url, topology.splits_stream.name)
    later = Publisher(broker_url)
    with capture_logs() as said:
        later.publish(a_message(2))
    later.close()
    assert count(broker_url) == 2
    assert [each["event"] for each in said] == ["canary.split_away"]
    assert "down or inaccessible" in said[0]["error"]


def test_a_patient_publish_outlasts_the_brokers_absence(broker_url: str) -> None:
    with Proxy(broker_url) as proxy:
        publisher = Publisher(proxy.url)
        publisher.publish(a_message(1))
        proxy.down()
        trouble = threading.Event()

        def publish() -> None:
            publisher.publish_persistently(a_message(2), on_trouble=lambda _error: trouble.set())

        thread = threading.Thread(target=publish)
        thread.start()
        assert trouble.wait(PATIENCE)
        proxy.heal()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        publisher.close()
    assert count(broker_url) == 2


def test_a_patient_publish_makes_the_queue_that_was_deleted(
    publisher: Publisher, broker_url: str
) -> None:
    publisher.publish(a_message(1))
    with Connection(broker_url) as connection:
        connection.default_channel.queue_delete("orders")
    troubles: list[PublishError] = []
    publisher.publish_persistently(a_message(2), on_trouble=troubles.append, timeout=PATIENCE)
    assert [type(error) for error in troubles] == [Unroutable]
    assert count(broker_url) == 1


def test_closing_ends_a_patient_publish(broker_url: str) -> None:
    publisher = Publisher("amqp://guest:guest@127.0.0.1:1//")
    errors: list[PublishError] = []

    def trouble(error: PublishError) -> None:
        errors.append(error)
        publisher.close()

    with pytest.raises(BrokerUnavailable, match="closed"):
        publisher.publish_persistently(a_message(), on_trouble=trouble)
    assert errors


def test_a_message_whose_confirm_is_late_is_not_published_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue without a quorum has all the copies when it has one again."""
    publisher.publish(a_message(1))
    monkeypatch.setattr(publishing, "CONFIRM_SLOW", 0.01)
    sent: list[Confirms] = []
    monkeypatch.setattr(publisher._link, "send", sent.append)
    troubles: list[PublishError] = []

    def trouble(error: PublishError) -> None:
        troubles.append(error)
        if len(troubles) == 3:
            sent[0].settle(0)

    publisher.publish_persistently(a_message(2), on_trouble=trouble)
    assert (len(sent), len(troubles)) == (1, 3)
    assert "no confirm came in time" in str(troubles[0])


@pytest.fixture
def stuck(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """A publisher whose channel confirms nothing any more. Heartbeats come, and nothing else ends the connection."""
    monkeypatch.setattr(links, "READ_TIMEOUT", 0.02)
    publisher = Publisher(broker_url)
    publisher.publish(a_message(1), timeout=PATIENCE)
    link = publisher._link
    assert isinstance(link, AmqpLink)
    link._channel.events["basic_ack"].clear()
    link._confirm_timeout = 0.01  # the next link's is a minute
    yield publisher
    publisher.close()


def test_a_message_whose_confirm_never_comes_is_published_again(
    stuck: Publisher, broker_url: str
) -> None:
    stuck.publish_persistently(a_message(2), on_trouble=pytest.fail, timeout=PATIENCE)
    assert count(broker_url) == 3


def test_a_batch_leaves_a_channel_without_confirms(stuck: Publisher, broker_url: str) -> None:
    with pytest.raises(BatchCutShort, match=r"no confirm for 0.01 s"):
        stuck.publish_batch(a_batch(2), on_trouble=pytest.fail)
    assert stuck.publish_batch(a_batch(2), on_trouble=pytest.fail) == 2
    assert count(broker_url) == 5


def test_messages_without_a_waiting_caller_leave_a_channel_without_confirms(
    stuck: Publisher,
) -> None:
    """The server's: each request would wait for its limit in vain, and so would the next."""
    settled = SimpleQueue[PublishError | None]()
    for number in (2, 3):
        stuck.start([a_message(number)], lambda _, error: settled.put(error))
        error = settled.get(timeout=PATIENCE)
        assert isinstance(error, BrokerUnavailable) == (number == 2)


def test_a_broker_under_a_memory_alarm_is_told_and_outlasted(
    publisher: Publisher, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    publisher.publish(a_message(1))
    with rabbitmq.memory_alarm():
        with pytest.raises(BrokerUnavailable):
            publisher.publish(a_message(2), timeout=0.5)
        with pytest.raises(BrokerUnavailable, match="takes no messages"):
            publisher.publish(a_message(3), timeout=0.5)
    publisher.publish_persistently(a_message(4), on_trouble=lambda _error: None)
    assert count(broker_url) in (2, 3)  # the second was not confirmed: there, or not


def test_a_connection_stays_through_an_alarm_that_outlasts_its_confirms(
    broker_url: str, rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ reads none of them until the alarm is over, and then stores what is on each, whether it was left or not."""
    monkeypatch.setattr(links, "READ_TIMEOUT", 0.02)
    publisher = Publisher(broker_url, confirm_timeout=0.2)
    publisher.connect()
    first = publisher._link
    assert isinstance(first, AmqpLink)
    ticks = SimpleQueue[None]()
    with rabbitmq.memory_alarm():
        with pytest.raises(BatchCutShort, match="no confirm came in time"):
            publisher.publish_batch(a_batch(1), on_trouble=pytest.fail, timeout=0.5)
        monkeypatch.setattr(first._amqp, "heartbeat_tick", lambda: ticks.put(None))
        [sent] = {*first._waiting.values()}
        written_at = sent.written_at
        for _ in range(3):
            ticks.get(timeout=PATIENCE)
        with pytest.raises(BatchCutShort, match="takes no messages"):
            publisher.publish_batch(a_batch(1), on_trouble=pytest.fail)
    publisher.publish_persistently(a_message(2), on_trouble=lambda _error: None)
    assert (publisher._link, count(broker_url)) == (first, 2)
    assert sent.written_at > written_at, "the broker has read it since the alarm's end alone"
    publisher.close()


class DyingLink:
    """A connection that is lost while messages are written; its reader has settled none of them."""

    def __init__(self) -> None:
        self.alive, self.lacks_exchange = True, False

    def send(self, batch: Confirms) -> None:
        self.alive = False

    def fail(self, error: BaseException) -> None:
        raise AssertionError(error)

    def close(self) -> None:
        """Not asked for here."""


class RefusingLink(DyingLink):
    """A connection on which the broker refuses two messages together."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Confirms] = []

    def send(self, batch: Confirms) -> None:
        self.batches.append(batch)
        if len(self.batches) == 2:
            error = PublishRefused("the broker refused the message (nack)")
            for each in self.batches:
                each.fail(error)


def test_callers_whose_messages_are_refused_together_share_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher, link = Publisher("amqp://127.0.0.1:1//"), RefusingLink()
    monkeypatch.setattr(publisher, "_connected", lambda: (link, False))
    with ThreadPoolExecutor(2) as threads:
        tries = [threads.submit(publisher.publish, a_message(n)) for n in range(2)]
    errors = [each.exception() for each in tries]
    assert [type(each) for each in errors] == [PublishRefused] * 2
    assert errors[0] is not errors[1]


def test_every_message_of_a_connection_that_is_lost_meanwhile_has_its_error_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher, settled = Publisher("amqp://127.0.0.1:1//"), list[tuple[str, object]]()
    monkeypatch.setattr(publisher, "_connected", lambda: (DyingLink(), False))
    publisher.start(
        [a_message(n) for n in range(3)],
        lambda message, error: settled.append((message.message_id, type(error))),
    )
    assert settled == [(f"m{n}", BrokerUnavailable) for n in range(3)]


@pytest.mark.parametrize(
    ("wanted", "delay"),
    [(0.1, 1), (1, 1), (1.2, 2), (5, 6), (7, 8), (24, 24), (31, 32), (32, 32), (33, 48), (60, 64)],
)
def test_a_delay_is_never_shorter_than_asked_and_at_most_two_hops(
    wanted: float, delay: int
) -> None:
    assert a_message().delayed(wanted).delay == delay
    assert a_message().delayed(1e12).delay <= MAX_DELAY


def test_a_delay_can_be_kept_to_the_second() -> None:
    assert [a_message().delayed(n, bits=FINE).delay for n in range(1, 32)] == list(range(1, 32))
    assert a_message().delayed(33, bits=FINE).delay == 34


@pytest.mark.parametrize("seconds", [1, 3, 5])
def test_a_delayed_message_is_back_when_its_delay_is_over(
    publisher: Publisher, broker_url: str, seconds: int
) -> None:
    """It enters at the first queue that holds it back; kombu would have it go through 28 exchanges."""
    publisher.publish(a_message())  # declares the queue
    with Connection(broker_url) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        bind_queue_to_native_delayed_delivery_exchange(connection, topology.orders_queue)
        arrived: list[float] = []
        consumer = connection.Consumer(
            [topology.orders_queue],
            on_message=lambda _: arrived.append(time.monotonic()),
            auto_declare=False,
        )
        with consumer:
            connection.drain_events(timeout=PATIENCE)
            published = time.monotonic()
            publisher.publish(a_message().delayed(seconds, bits=FINE))
            connection.drain_events(timeout=PATIENCE)
    assert arrived[1] - published >= seconds


def test_exchanges_that_an_administrator_deleted_are_declared_again_at_the_next_message(
    publisher: Publisher, broker_url: str
) -> None:
    """Parked orders, too, wait for theirs: no other delayed message may come for long."""
    publisher.publish(a_message())
    with Connection(broker_url) as connection:
        topology.declare_delays(connection)
        deleted = ("orders", "order-events", "celery_delayed_delivery", "celery_delayed_0")
        for name in deleted:
            connection.default_channel.exchange_delete(name)
        publisher.publish(a_message())
        for name in deleted:
            connection.default_channel.exchange_declare(name, "topic", passive=True)


def test_a_vhost_that_allows_too_few_queues_is_named(broker_url: str, rabbitmq: RabbitMQ) -> None:
    vhost = unquote(broker_url.rpartition("/")[2])
    rabbitmq.ctl("set_vhost_limits", "--vhost", vhost, '{"max-queues": 2}')
    with pytest.raises(PublishRefused, match="too few queues: 34 are needed"):
        Publisher(broker_url).connect()


def test_a_delay_is_not_rounded_past_the_moment_before_which_it_must_end() -> None:
    assert a_message().delayed(33, before=40).delay == 33
    assert a_message().delayed(33, before=50).delay == 48
    assert a_message().delayed(33, before=48).delay == 33


def test_the_first_routing_key_is_found_again_behind_a_delay() -> None:
    for key in ("orders", "orders.canary"):
        _, delayed_key = a_message(routing_key=key).delayed(5).route()
        assert delayed_key != key
        assert undelayed(delayed_key) == key
        assert undelayed(key) == key


def test_a_broker_that_vanishes_while_queues_are_declared_is_given_up(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And closing the publisher does not wait for it again."""
    declare = topology.declare
    with Proxy(broker_url) as proxy:
        publisher = Publisher(proxy.url)
        with monkeypatch.context() as vanished:

            def declare_in_vain(connection: Connection) -> None:
                proxy.half_open()
                vanished.setattr(amqp_internals, "ANSWER", 0.2)
                declare(connection)

            vanished.setattr(topology, "declare", declare_in_vain)
            with pytest.raises(BrokerUnavailable, match="has not answered"):
                publisher.publish(a_message())
        publisher.publish(a_message())
        publisher.close()
    assert count(broker_url) == 1


def test_of_several_nodes_one_that_does_not_answer_is_not_the_only_one_asked(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a quorum it accepts connections, and queues cannot be declared."""
    declare = topology.declare
    monkeypatch.setattr(publishing, "RECONNECT_AFTER", (0.001, 0.01))
    with Proxy(broker_url) as silent:

        def declare_or_not(connection: Connection) -> None:
            if connection.port == silent.port:
                raise TimeoutError("the broker has not answered")
            declare(connection)

        monkeypatch.setattr(topology, "declare", declare_or_not)
        for number in range(8):
            publisher = Publisher(f"amqp://127.0.0.1:1//;{silent.url};{broker_url}")
            publisher.publish_persistently(a_message(number), on_trouble=str, timeout=PATIENCE)
            publisher.close()
    assert count(broker_url) == 8


def test_connections_are_spread_over_the_nodes() -> None:
    nodes = ["amqp://a//", "amqp://b//", "amqp://c//"]
    first = [answers.AnsweredConnection(";".join(nodes)).alt for _ in range(200)]
    assert {each[0] for each in first} == {*nodes}
    assert all(sorted(each) == nodes for each in first)


def test_a_connection_whose_question_stays_without_an_answer_is_over(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(broker_url) as proxy, answers.AnsweredConnection(proxy.url) as connection:
        channel = connection.channel()
        with pytest.raises(TimeoutError, match="timed out"):
            connection.drain_events(timeout=0.01)  # to wait for messages asks nothing
        monkeypatch.setattr(amqp_internals, "ANSWER", 0.2)
        proxy.half_open()
        with pytest.raises(TimeoutError, match="has not answered"):
            channel.basic_qos(0, 1, False)
        assert not connection.connected


def a_batch(count: int, *, nowhere: int | None = None) -> list[Message]:
    return [
        a_message(n, routing_key="nowhere" if n == nowhere else topology.ORDERS_KEY)
        for n in range(count)
    ]


def bodies(broker_url: str, count: int) -> list[str]:
    """The messages' ids, in the order in which they are in the queue."""
    found = []
    with Connection(broker_url) as connection:
        for _ in range(count):
            message = connection.default_channel.basic_get("orders", no_ack=True)
            found.append(message.properties["message_id"])
    return found


def test_messages_that_have_come_are_read_with_few_questions_to_the_socket(
    publisher: Publisher, broker_url: str
) -> None:
    """Three frames each, and the library asks three times for a frame."""
    messages = 100
    publisher.publish_batch(a_batch(messages), on_trouble=lambda _: None)
    got: list[Any] = []
    asked: list[int] = []
    with answers.AnsweredConnection(broker_url) as connection:
        channel = connection.default_channel
        read_ahead = connection.connection.transport._quick_recv
        recv = read_ahead._recv

        def counting(most: int) -> bytes:
            asked.append(most)
            return bytes(recv(most))

        read_ahead._recv = counting
        channel.basic_consume("orders", no_ack=True, callback=got.append)
        while len(got) < messages:
            connection.drain_events(timeout=PATIENCE)
    assert len(asked) < messages


def test_a_batch_is_stored_in_its_order(publisher: Publisher, broker_url: str) -> None:
    troubles: list[PublishError] = []
    assert publisher.publish_batch(a_batch(500), on_trouble=troubles.append) == 500
    assert not troubles
    assert bodies(broker_url, 500) == [f"m{n}" for n in range(500)]


def test_a_batch_is_counted_up_to_the_first_that_no_queue_takes(
    publisher: Publisher, broker_url: str
) -> None:
    troubles: list[PublishError] = []
    batch = a_batch(50, nowhere=20)
    assert publisher.publish_batch(batch, on_trouble=troubles.append) == 20
    assert [type(error) for error in troubles] == [Unroutable]
    assert publisher.publish_batch(a_batch(1), on_trouble=troubles.append) == 1


def test_a_batch_whose_connection_is_lost_is_told(broker_url: str) -> None:
    with Proxy(broker_url) as proxy:
        publisher = Publisher(proxy.url)
        publisher.publish_batch(a_batch(2), on_trouble=lambda _: None)
        proxy.down()
        with pytest.raises(BatchCutShort) as caught:
            publisher.publish_batch(a_batch(5), on_trouble=lambda _: None)
        assert caught.value.confirmed == 0
        proxy.heal()
        assert publisher.publish_batch(a_batch(5), on_trouble=lambda _: None) == 5
        publisher.close()


@pytest.mark.parametrize("lost", ["queue", "exchange"])
def test_a_delay_queue_that_is_gone_is_declared_again(broker_url: str, lost: str) -> None:
    """Else a retry's green thread would wait for it for ever."""
    publisher = Publisher(broker_url)
    publisher.connect()
    with Connection(broker_url) as connection:
        topology.declare_delays(connection)
        if lost == "queue":
            connection.default_channel.queue_delete("celery_delayed_8")
        else:
            connection.default_channel.exchange_delete("celery_delayed_8")
    troubles: list[PublishError] = []
    delayed = a_message(1).delayed(300)
    publisher.publish_persistently(delayed, on_trouble=troubles.append, timeout=PATIENCE)
    assert bool(troubles) == (lost == "queue")  # a missing exchange is said at once
    assert count(broker_url, "celery_delayed_8") == 1
    publisher.close()
