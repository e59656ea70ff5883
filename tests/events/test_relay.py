"""The pipeline as processes run it: on threads, with a real broker and a real lease."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import Column, Engine, Integer, MetaData, Table, insert, select, text
from structlog.testing import capture_logs

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import pipeline
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.events import relay as relays
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Outbox
from pos_gateway.events.relay import EventRelay
from pos_gateway.ledger import pruning
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import remove_old
from pos_gateway.runtime.clock import SystemClock
from pos_gateway.runtime.vault import Vault
from testkit.servers.rabbitmq import RabbitMQ
from tests.events.lab import Events
from tests.ledger.lab import SOON, Rows

Relays = Callable[..., tuple[EventRelay, Ledger]]


@pytest.fixture
def relay(engine: Engine, broker_url: str) -> Iterator[Relays]:
    """Makes running relays, each with the ledger whose lease it has."""
    made: list[tuple[EventRelay, Ledger]] = []

    def make(**options: Any) -> tuple[EventRelay, Ledger]:
        ledger = Ledger(engine)
        relay = EventRelay(
            engine,
            Hydration(Payloads(Vault())),
            ledger,
            broker_url=broker_url,
            **options,
        )
        made.append((relay, ledger))
        ledger.start()
        ledger.catch_up()
        relay.start()
        return relay, ledger

    yield make
    for each, ledger in made:
        each.stop()
        ledger.close()


@pytest.fixture
def recorded(engine: Engine) -> Events:
    return Events(engine)


class Queue:
    """The backend's queue."""

    def __init__(self, connection: Connection) -> None:
        topology.declare(connection)
        self._connection = connection
        self._bodies: list[Any] = []
        self._consumer = connection.Consumer(
            [topology.events_queue],
            no_ack=True,
            callbacks=[lambda body, _: self.bodies.append(body)],
        )
        self.bodies: list[Any] = []

    def take(self, count: int) -> list[tuple[str, int]]:
        """Consume the next events, id and position; waits for them."""
        with self._consumer:
            while len(self.bodies) < count:
                self._connection.drain_events(timeout=SOON)
        taken, self.bodies = self.bodies, []
        return [(event["id"], event["position"]) for event in taken]


@pytest.fixture
def queue(broker_url: str) -> Iterator[Queue]:
    with Connection(broker_url) as connection:
        yield Queue(connection)


def without_broker(engine: Engine, **keeps: Any) -> EventRelay:
    """A relay that only prunes."""
    url = "amqp://127.0.0.1:1//"
    return EventRelay(engine, Hydration(Payloads(Vault())), Ledger(engine), broker_url=url, **keeps)


def test_the_second_relay_publishes_when_the_first_one_stops(
    relay: Relays, recorded: Events, queue: Queue
) -> None:
    recorded.write(3)
    with capture_logs() as log:
        one, ledger = relay()
        assert queue.take(3) == [("e0", 1), ("e1", 2), ("e2", 3)]
        relay()
        one.stop()
        ledger.close()
        recorded.write(2)
        assert queue.take(2) == [("e3", 4), ("e4", 5)]
    said = [each["event"] for each in log]
    assert said.count("events.leading") == 2
    assert "events.leader_replaced" not in said


def test_a_new_event_wakes_the_leader(
    relay: Relays, recorded: Events, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pos_gateway.events.pipeline.POLL", (2 * SOON, 2 * SOON))
    monkeypatch.setattr("pos_gateway.events.pipeline.SELDOM", 2 * SOON)
    recorded.write(1)
    one, _ = relay()
    queue.take(1)
    recorded.write(1)
    one.wake()
    assert queue.take(1) == [("e1", 2)]


def test_a_follower_helps(
    relay: Relays, recorded: Events, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is another pod, which has no thread here."""
    monkeypatch.setattr("pos_gateway.events.relay.Helping.step", _counted := _Steps())
    other = Ledger(engine)
    other.start()
    other.catch_up()
    outbox = Outbox(engine)
    assert outbox.take(other.lease.id, outbox.look()[0].epoch) is not None
    relay()
    assert _counted.called.wait(SOON)
    outbox.close()
    other.close()


def test_the_leader_prunes_old_published_events(
    relay: Relays, recorded: Events, queue: Queue, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "PRUNED", 2)
    monkeypatch.setattr(relays, "PRUNE_EVERY", 0.0)
    monkeypatch.setattr(relays, "LOOK", 0.01)
    prune, pruned, counts = Outbox.prune, threading.Event(), list[int]()

    def watched(outbox: Outbox, *arguments: Any) -> int:
        removed = prune(outbox, *arguments)
        counts.append(removed)
        if sum(counts) == 5:
            pruned.set()
        return removed

    monkeypatch.setattr(Outbox, "prune", watched)
    now = time.time()
    recorded.write(5, occurred_at=now - 200)
    recorded.write(1, occurred_at=now + 3600)
    relay(keep=100.0)
    assert len(queue.take(6)) == 6
    assert pruned.wait(SOON)
    assert [each.event_id for each in rows.events()] == ["e5"]


def test_the_leader_prunes_old_reports(
    relay: Relays, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a minute, and however events are kept."""
    pruned, times = threading.Event(), list[int]()

    def prune(_: Engine) -> int:
        times.append(1)
        pruned.set()
        return 0

    monkeypatch.setattr(relays, "prune_reports", prune)
    monkeypatch.setattr(relays, "LOOK", 0.01)
    leader, _ = relay()
    assert pruned.wait(SOON)
    leader._prune_reports()
    assert len(times) == 1
    age = leader.age
    assert age is not None
    assert age >= 0
    hydration = Hydration(Payloads(Vault()))
    idle = EventRelay(engine, hydration, Ledger(engine), broker_url="amqp://127.0.0.1:1//")
    assert idle.age is None


class Ahead(SystemClock):
    """The clock of a machine that is three months ahead."""

    def now(self) -> datetime:
        return super().now() + timedelta(days=90)


def test_a_table_that_cannot_be_pruned_is_named_in_each_pass(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its login may not delete there: no other thread has any trouble with the database."""

    def submissions_fail(engine: Engine, before: float, batch: int) -> Iterator[int]:
        gone = Table("gone", MetaData(), Column("id", Integer))
        return remove_old(engine, gone, (gone.c.id,), gone.c.id < before, gone.c.id, batch)

    monkeypatch.setattr(pruning, "prune_submissions", submissions_fail)
    relay = without_broker(engine, keep_orders=60.0)
    with capture_logs() as log:
        for _ in range(20):
            relay._prune_orders()
        said = [each["error"] for each in log if each["event"] == "orders.not_pruned"]
        assert len(said) == 1
        assert said[0].startswith("the table gone: ")
        relay._prune_orders_at = 0.0
        for _ in range(20):
            relay._prune_orders()
    assert [each["event"] for each in log].count("orders.not_pruned") == 2
    relay.stop()


def test_events_that_cannot_be_pruned_are_named_once_an_hour(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are published all the same, and no other thread has any trouble with the database."""

    def refused(*_: object) -> int:
        raise LedgerUnavailable("permission denied for table events\nDETAIL: none")

    monkeypatch.setattr(Outbox, "prune", refused)
    relay = without_broker(engine, keep=60.0)
    with capture_logs() as log:
        for _ in range(20):
            relay._succeeds(relay._prune)
    said = [each["error"] for each in log if each["event"] == "orders.not_pruned"]
    assert said == ["the table events: permission denied for table events"]
    relay.stop()


def test_reports_that_cannot_be_pruned_are_named_once_an_hour(engine: Engine) -> None:
    """Its login may not delete there: workers report all the same."""
    relay = without_broker(engine)
    with engine.begin() as connection:
        connection.execute(text("alter table worker_minutes rename to gone"))
    try:
        with capture_logs() as log:
            for _ in range(20):
                relay._succeeds(relay._prune_reports)
                relay._prune_reports_at -= relays.PRUNE_REPORTS_EVERY
    finally:
        relay.stop()
        with engine.begin() as connection:  # the database is of other tests, too
            connection.execute(text("alter table gone rename to worker_minutes"))
    said = [each for each in log if each["event"] == "orders.not_pruned"]
    assert [each["again_in"] for each in said] == [3600.0]
    assert said[0]["error"].startswith("the tables worker_reports and worker_minutes: ")


def test_a_leader_with_a_fast_clock_prunes_nothing_of_today(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(postgresql_url)
    recorded = Events(engine)
    recorded.write(1, occurred_at=time.time())
    with engine.begin() as connection:
        connection.execute(text("update events set position = id"))
        connection.execute(pipeline.delete())
        row = {"id": 1, "epoch": 1, "assigned": 2**40, "published": 2**40}
        connection.execute(insert(pipeline).values(row))
    before: list[float] = []

    def prune_orders(_: Engine, moment: float) -> Iterator[tuple[int, int]]:
        before.append(moment)
        return iter(())

    monkeypatch.setattr(relays, "prune_orders", prune_orders)
    month = 30 * 86_400.0
    relay = EventRelay(
        engine,
        Hydration(Payloads(Vault())),
        Ledger(engine),
        broker_url="amqp://127.0.0.1:1//",
        keep=month,
        keep_orders=month,
        clock=Ahead(),
    )
    relay._prune()
    relay._prune_orders()
    relay.stop()
    assert len(Rows(engine).events()) == 1
    [moment] = before
    assert abs(time.time() - month - moment) < 3600
    engine.dispose()


class _Steps:
    def __init__(self) -> None:
        self.called = threading.Event()

    def __call__(self, *_: Any) -> int:
        self.called.set()
        return 0


def wait_until_published(engine: Engine, position: int) -> None:
    until = time.monotonic() + SOON
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.scalar(select(pipeline.c.published)) != position:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_the_relay_survives_a_broker_outage(
    relay: Relays,
    recorded: Events,
    engine: Engine,
    queue: Queue,
    rabbitmq: RabbitMQ,
    broker_url: str,
) -> None:
    recorded.write(2)
    relay()
    assert len(queue.take(2)) == 2
    # An event whose confirm is lost with the connection is published again.
    wait_until_published(engine, 2)
    rabbitmq.drop_connections()
    recorded.write(2)
    with Connection(broker_url) as connection:
        assert [each[1] for each in Queue(connection).take(2)] == [3, 4]


def test_an_exception_does_not_end_the_relay(
    relay: Relays, recorded: Events, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its lease is renewed, no other pod would publish."""
    monkeypatch.setattr(relays, "_AFTER_MISTAKE", 0.0)
    read, mistakes = Outbox.read, [ZeroDivisionError()]

    def mistaken(*arguments: Any) -> Any:
        if mistakes:
            raise mistakes.pop()
        return read(*arguments)

    monkeypatch.setattr(Outbox, "read", mistaken)
    recorded.write(2)
    with capture_logs() as log:
        relay()
        assert queue.take(2) == [("e0", 1), ("e1", 2)]
    assert "events.mistake" in [each["event"] for each in log]


def test_the_relay_stops_while_the_broker_does_not_answer(
    relay: Relays, recorded: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "GRACE", 0.1)
    waiting, closed = threading.Event(), threading.Event()

    def publish(*_: Any, **__: Any) -> int:
        waiting.set()
        assert closed.wait(SOON)
        return 0

    monkeypatch.setattr("pos_gateway.broker.publisher.Publisher.publish_batch", publish)
    monkeypatch.setattr("pos_gateway.broker.publisher.Publisher.close", lambda _: closed.set())
    recorded.write(1)
    one, _ = relay()
    assert waiting.wait(SOON)
    one.stop()
    assert closed.is_set()


def test_the_relay_stops_while_connecting_to_a_broker_that_does_not_answer(
    relay: Relays, recorded: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "GRACE", 0.1)
    monkeypatch.setattr(relays, "_LAST", 0.1)
    connecting, given_up, waited_for = threading.Event(), threading.Event(), threading.Event()

    def connect(*_: Any, **__: Any) -> None:
        connecting.set()
        if not given_up.wait(SOON):
            waited_for.set()
        raise OSError("no answer")

    monkeypatch.setattr(AnsweredConnection, "ensure_connection", connect)
    recorded.write(1)
    one, _ = relay()
    assert connecting.wait(SOON)
    one.stop()
    given_up.set()
    assert not waited_for.is_set()
