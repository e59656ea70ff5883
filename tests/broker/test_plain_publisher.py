"""What a backend publishes with, on a real RabbitMQ, with kombu's public names alone."""

import multiprocessing
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme
from kombu import Connection, Producer

from pos_gateway.broker import plain_publisher, topology
from pos_gateway.broker import session as sessions
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.broker.message import Message
from pos_gateway.broker.plain_publisher import PlainPublisher, _PublishingSession, _PublishJob
from pos_gateway.broker.session import BrokerSession
from pos_gateway.domain.errors import BrokerUnavailable, MessageTooLarge, PublishRefused, Unroutable
from testkit.patience import PATIENCE
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.broker.test_publisher import a_message, count


@pytest.fixture
def publisher(broker_url: str) -> Iterator[PlainPublisher]:
    publisher = PlainPublisher(broker_url)
    yield publisher
    publisher.close()


def session_of(publisher: PlainPublisher) -> Any:
    return publisher._writer._session


def test_a_message_is_written_again_however_often_others_are_too_long() -> None:
    """Each closes the channel, and those behind it are lost with it: their writes do not count."""
    session = object.__new__(_PublishingSession)
    small, large = (
        _PublishJob(Message("orders", "order", b"x" * size, "o")) for size in (10, 6000)
    )
    small.writes = large.writes = 1
    session.unconfirmed = {1: large, 2: small}
    session.refuse_too_large("message size 6000 is larger than configured max size 5000")
    with pytest.raises(MessageTooLarge):
        large.wait(0)
    assert (session.unconfirmed, small.writes) == ({2: small}, 0)
    session.refuse_too_large("another reason")
    assert small.writes == 0, "that write counts: its connection is lost"


def test_a_message_is_stored_as_a_workers_would_be(
    publisher: PlainPublisher, broker_url: str
) -> None:
    publisher.publish(a_message())
    with Connection(broker_url) as connection:
        message = connection.default_channel.basic_get("orders", no_ack=True)
    assert bytes(message.body, "utf-8") == b"{}"
    assert abs(message.properties.pop("timestamp") - time.time()) < 60
    message.headers.pop("x-delivery-count", None)  # RabbitMQ's own
    assert message.properties == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "message_id": "m0",
        "application_headers": {"id": "m0"},
    }


def test_many_threads_share_one_connection(
    publisher: PlainPublisher, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda n: publisher.publish(a_message(n)), range(500)))
    assert count(broker_url) == 500
    assert [each.name for each in threading.enumerate()].count("publisher") == 1


def test_a_message_whose_connection_is_lost_is_written_again_once(
    publisher: PlainPublisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(a_message(1))
    publish, writes = Producer.publish, []

    def dying(producer: Producer, *arguments: Any, **options: Any) -> Any:
        writes.append(options["message_id"])
        if len(writes) <= failures:
            raise ConnectionResetError("while writing")
        return publish(producer, *arguments, **options)

    monkeypatch.setattr(Producer, "publish", dying)
    failures = 1
    publisher.publish(a_message(2))
    assert (writes, count(broker_url)) == (["m2"] * 2, 2)
    failures = 9
    with pytest.raises(BrokerUnavailable, match="was lost: while writing"):
        publisher.publish(a_message(3))
    assert writes == ["m2"] * 2 + ["m3"] * 2


def test_a_memory_alarm_is_an_error_within_the_timeout(
    publisher: PlainPublisher, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    publisher.publish(a_message(1))
    with rabbitmq.memory_alarm():
        with pytest.raises(BrokerUnavailable, match="no confirm"):
            publisher.publish(a_message(2), timeout=0.5)
        [job] = (session := session_of(publisher)).unconfirmed.values()
        job.written_at = long_ago = job.written_at - sessions.CONFIRM_TIMEOUT
        with pytest.raises(BrokerUnavailable, match="takes no messages"):
            publisher.publish(a_message(3), timeout=0.5)
        session.check_confirms()  # an alarm is no stuck channel
    publisher.publish(a_message(4))
    assert job.written_at > long_ago
    assert session_of(publisher) is session
    assert count(broker_url) in (2, 3)  # the second was not confirmed: stored, or not


def test_a_refused_message_is_an_error_and_the_next_has_a_new_connection(
    publisher: PlainPublisher, broker_url: str
) -> None:
    publisher.publish(a_message(1))
    first = session_of(publisher)
    with Connection(broker_url) as connection:
        channel = connection.default_channel
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        channel.queue_declare("full", durable=True, auto_delete=False, arguments=full)
        channel.queue_bind("full", "orders", "full")
    with pytest.raises(PublishRefused, match="refused"):
        publisher.publish(a_message(2, routing_key="full"))
    publisher.publish(a_message(3))
    assert session_of(publisher) is not first
    assert count(broker_url) == 2


def test_a_timeout_covers_connecting_to_a_broker_that_does_not_answer(broker_url: str) -> None:
    with Proxy(broker_url) as proxy:
        proxy.timeout()
        publisher = PlainPublisher(proxy.url)
        with pytest.raises(BrokerUnavailable, match="no confirm"):
            publisher.publish(a_message(), timeout=0.1)
        publisher.close()


def test_a_message_whose_caller_has_given_up_is_not_written(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare, proceed = topology.declare, threading.Event()

    def declared(connection: Connection) -> None:
        proceed.wait(PATIENCE)
        declare(connection)

    monkeypatch.setattr(topology, "declare", declared)
    publisher = PlainPublisher(broker_url)
    with pytest.raises(BrokerUnavailable, match="no confirm"):
        publisher.publish(a_message(1), timeout=0.01)
    proceed.set()
    publisher.publish(a_message(2))
    publisher.close()
    assert count(broker_url) == 1


def test_a_broker_that_vanishes_while_queues_are_declared_is_given_up(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare = topology.declare
    with Proxy(broker_url) as proxy:

        def declare_in_vain(connection: Connection) -> None:
            proxy.half_open()
            declare(connection)

        publisher = PlainPublisher(proxy.url)
        with monkeypatch.context() as vanished:
            vanished.setattr(sessions, "ANSWER", 0.2)
            vanished.setattr(topology, "declare", declare_in_vain)
            with pytest.raises(BrokerUnavailable, match="cannot reach"):
                publisher.publish(a_message())
        proxy.heal()
        publisher.publish(a_message())
        publisher.close()
    assert count(broker_url) == 1


def test_an_idle_connection_that_died_silently_is_replaced_before_the_next_message(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HEARTBEAT", 1)
    with Proxy(broker_url) as proxy:
        publisher = PlainPublisher(proxy.url)
        publisher.publish(a_message(1))
        proxy.half_open("server")
        thread = publisher._writer._thread
        assert thread is not None
        thread.join(PATIENCE)
        assert not thread.is_alive()
        proxy.heal()
        publisher.publish(a_message(2))
        publisher.close()
    assert count(broker_url) == 2


def test_a_channel_that_confirms_nothing_any_more_is_left(
    publisher: PlainPublisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats come: without a limit every call would fail until the backend is restarted."""
    publisher.publish(a_message(1))
    session = publisher._writer._session
    assert session is not None
    session._producer.channel.events["basic_ack"].clear()

    def written_a_minute_ago(job: _PublishJob) -> None:
        _PublishingSession.write(session, job)
        job.written_at -= sessions.CONFIRM_TIMEOUT

    monkeypatch.setattr(session, "write", written_a_minute_ago)
    publisher.publish(a_message(2), timeout=PATIENCE)
    assert count(broker_url) == 3


def test_any_of_several_nodes_will_do(broker_url: str) -> None:
    for number in range(4):
        publisher = PlainPublisher(f"amqp://127.0.0.1:1//;{broker_url}")
        publisher.publish(a_message(number))
        publisher.close()
    assert count(broker_url) == 4


def test_connections_are_spread_over_the_nodes() -> None:
    nodes = ["amqp://a//", "amqp://b//", "amqp://c//"]
    firsts = {sessions.shuffled(";".join(nodes)).split(";")[0] for _ in range(200)}
    assert firsts == {*nodes}


def test_closing_fails_the_callers_that_wait(broker_url: str, rabbitmq: RabbitMQ) -> None:
    publisher = PlainPublisher(broker_url)
    publisher.publish(a_message(1))
    with rabbitmq.memory_alarm(), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(publisher.publish, a_message(2), timeout=PATIENCE)
        while not (unconfirmed := session_of(publisher).unconfirmed):
            time.sleep(0.01)
        publisher.close()
        with pytest.raises(BrokerUnavailable, match="closed by this process"):
            waiting.result(PATIENCE)
    assert unconfirmed
    publisher.close()
    with pytest.raises(BrokerUnavailable, match="is closed"):
        publisher.publish(a_message(3))


def test_closing_is_no_lost_client_for_the_broker(rabbitmq: RabbitMQ) -> None:
    broker_url = rabbitmq.add_vhost("closing")  # no other test's lines in the log
    program = (
        "from tests.broker.test_publisher import a_message\n"
        "from pos_gateway.broker.plain_publisher import PlainPublisher\n"
        f"publisher = PlainPublisher({broker_url!r})\n"
        "publisher.publish(a_message()); publisher.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    here = "vhost: 'closing'"
    until = time.monotonic() + PATIENCE
    while True:
        log = (rabbitmq.folder / "log" / "rabbitmq.log").read_text().splitlines()
        ended = [line for line in log if "closing AMQP connection" in line and here in line]
        if ended:
            break
        assert time.monotonic() < until
    assert ["[info]" in each for each in ended] == [True]
    rabbitmq.delete_vhost(broker_url)


def test_a_thread_that_cannot_be_started_is_an_error_and_the_next_message_tries_again(
    publisher: PlainPublisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        with pytest.raises(BrokerUnavailable, match="can't start new thread"):
            publisher.publish(a_message())
    publisher.publish(a_message())
    assert count(broker_url) == 1


def test_a_bug_ends_neither_the_thread_nor_its_callers_wait(
    publisher: PlainPublisher, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr(plain_publisher.time, "time", lambda: 1 / 0)
        with pytest.raises(BrokerUnavailable, match="division by zero"):
            publisher.publish(a_message(1))
    publisher.publish(a_message(2))
    assert count(broker_url) == 1


def test_a_forked_child_makes_a_connection_of_its_own(
    publisher: PlainPublisher, broker_url: str
) -> None:
    publisher.publish(a_message(1))
    session = session_of(publisher)
    for call, arguments in ((publisher.publish, (a_message(2),)), (publisher.close, ())):
        child = multiprocessing.get_context("fork").Process(target=call, args=arguments)
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
    publisher.publish(a_message(3))
    assert session_of(publisher) is session
    assert count(broker_url) == 3


GREEN = """
from gevent import monkey; monkey.patch_all()
import os, sys, time, gevent
from pos_gateway.broker.plain_publisher import PlainPublisher
from tests.broker.test_publisher import a_message
publisher = PlainPublisher({url!r})
"""


def green(broker_url: str, program: str) -> None:
    program = GREEN.format(url=broker_url) + program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()


def test_a_child_that_a_green_program_forks_leaves_its_parents_connection_alone(
    broker_url: str,
) -> None:
    """gevent copies every green thread to the child, that which owns the connection, too."""
    green(
        broker_url,
        """
publisher.publish(a_message(1))
session = publisher._writer._session
child = os.fork()
time.sleep(0.1)  # the copies run
for number in range(50):
    publisher.publish(a_message(number))
    time.sleep(0.001)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert publisher._writer._session is session
""",
    )
    assert count(broker_url) == 101


def test_a_killed_green_thread_fails_its_callers_and_the_next_message_starts_another(
    broker_url: str,
) -> None:
    green(
        broker_url,
        """
import gc
from pos_gateway.domain.errors import BrokerUnavailable
publisher.publish(a_message(1))
[thread] = [each for each in gc.get_objects() if isinstance(each, gevent.Greenlet)]
waiting = gevent.spawn(publisher.publish, a_message(2))
gevent.kill(thread)
waiting.join()
assert isinstance(waiting.exception, BrokerUnavailable), waiting.value
assert "thread has ended" in str(waiting.exception)
publisher.publish(a_message(3))
""",
    )
    assert count(broker_url) == 2


def test_other_green_threads_run_while_one_waits(broker_url: str) -> None:
    green(
        broker_url,
        """
ran = []
gevent.spawn(lambda: [(ran.append(1), time.sleep(0)) for _ in range(10)])
publisher.publish(a_message())
assert len(ran) == 10
""",
    )


def test_kombus_in_memory_broker_stores_at_once() -> None:
    publisher = PlainPublisher("memory://plain")
    publisher.publish(a_message())
    with BrokerSession("memory://plain") as session:
        message = session.connection.default_channel.basic_get("orders")
    assert message.properties["message_id"] == "m0"
    publisher.close()


@pytest.fixture(params=["127.0.0.1"])
def tls_url(
    request: pytest.FixtureRequest, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The broker behind TLS with a certificate of this name, in records that hold many frames."""
    context, authority = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), trustme.CA()
    authority.issue_cert(request.param).configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    there = urlsplit(broker_url)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                time.sleep(0.001)  # gathers frames
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                try:
                    inside = context.wrap_socket(listener.accept()[0], server_side=True)
                except ssl.SSLError:  # the client does not like the certificate
                    continue
                outside = socket.create_connection((there.hostname, there.port))
                for ends in ((inside, outside), (outside, inside)):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port = listener.getsockname()[1]
    yield f"amqps://{there.username}:{there.password}@127.0.0.1:{port}{there.path}"
    listener.close()


def test_tls(tls_url: str, broker_url: str) -> None:
    """A record is decrypted as a whole, and its later frames make no socket readable."""
    publisher = PlainPublisher(tls_url)
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda n: publisher.publish(a_message(n)), range(500)))
    with pytest.raises(Unroutable):  # told in two frames of one record
        publisher.publish(a_message(routing_key="nowhere"), timeout=PATIENCE)
    publisher.close()
    assert count(broker_url) == 500


@pytest.mark.parametrize("tls_url", ["rabbitmq.example.com"], indirect=True)
def test_a_broker_with_the_certificate_of_another_host_gets_no_order(tls_url: str) -> None:
    """With one of any authority its holder could read all orders between it and the broker."""
    publisher = PlainPublisher(tls_url)
    with pytest.raises(BrokerUnavailable, match=r"certificate is not valid for '127\.0\.0\.1'"):
        publisher.publish(a_message(), timeout=PATIENCE)
    publisher.close()
    with pytest.raises(ssl.SSLCertVerificationError), AnsweredConnection(tls_url) as connection:
        connection.connect()


def test_each_node_of_a_cluster_is_asked_for_its_own_certificate(
    tls_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu alone asks the second node for the first one's."""
    monkeypatch.setattr(sessions.random, "shuffle", lambda nodes: None)
    gone = "amqps://guest:guest@127.0.0.2:1//"
    nodes = f"{tls_url};{gone}"  # a session begins with the last one
    with BrokerSession(nodes) as session:
        assert session.connection.connected
    with AnsweredConnection(f"{gone};{tls_url}") as connection:
        assert connection.ensure_connection(max_retries=1).connected


def test_tls_in_a_green_program(tls_url: str, broker_url: str) -> None:
    green(
        tls_url,
        """
jobs = [gevent.spawn(publisher.publish, a_message(number)) for number in range(200)]
gevent.joinall(jobs, raise_error=True)
publisher.close()
""",
    )
    assert count(broker_url) == 200


def test_after_a_refusal_the_next_message_goes_to_a_new_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions_made: list[Any] = []

    class Refusing:
        """Refuses each message as it is written."""

        def __init__(self, _url: str) -> None:
            self.written: list[Any] = []
            self.unconfirmed: dict[int, Any] = {}
            self.is_refused = False
            sessions_made.append(self)

        def __enter__(self) -> "Refusing":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def open(self, *, declare: bool) -> None:
            pass

        def write(self, job: Any) -> None:
            self.written.append(job.message.message_id)
            self.is_refused = True
            job.settle(PublishRefused("nack"))

        def wait(self, _seconds: float) -> None:
            pass

    monkeypatch.setattr(plain_publisher, "_PublishingSession", Refusing)
    writer = PlainPublisher("amqp://unused//")._writer
    writer._jobs.extend(plain_publisher._PublishJob(a_message(number)) for number in (1, 2))
    writer._run()
    assert [each.written for each in sessions_made] == [["m1"], ["m2"]]
