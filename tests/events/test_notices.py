"""Notices by which other processes wake a leader that polls seldom: PostgreSQL's."""

import os
import threading
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest
from sqlalchemy import Engine, func, select

from pos_gateway.database.engine import open_database
from pos_gateway.database.psycopg_internals import wait_at_most
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Lifecycle
from pos_gateway.events import pipeline
from pos_gateway.events.event import dehydrated
from pos_gateway.events.leadership import LOOK, Leadership
from pos_gateway.events.outbox import Outbox
from pos_gateway.events.pipeline import Pipeline
from pos_gateway.events.relay import EventRelay
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.event_notices import AFTER_REFUSAL, CHANNEL, SILENCE, EventNotices
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import Vault
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.proxy import Proxy
from tests.events.test_relay import Queue, Relays, queue, relay
from tests.ledger.lab import KEY, SOON, Clock, Worker, an_entry, claimed, without_event
from tests.ledger.test_callbacks_waiting import of

__all__ = ["queue", "relay"]

LONG = 2 * SOON


@pytest.fixture
def ledger_url(postgresql_url: str) -> str:
    """Only PostgreSQL has notifications."""
    return postgresql_url


class Listener:
    """A client of PostgreSQL that counts the notices."""

    def __init__(self, url: str) -> None:
        plain = url.replace("postgresql+psycopg:", "postgresql:")
        self._hearing, self._saying = (psycopg.connect(plain, autocommit=True) for _ in range(2))
        self._hearing.execute(f"listen {CHANNEL}")

    def count(self) -> int:
        """The notices since the last call."""
        self._saying.execute("select pg_notify(%s, 'the last')", (CHANNEL,))
        for number, each in enumerate(self._hearing.notifies(timeout=SOON)):
            if each.payload == "the last":
                return number
        raise AssertionError("PostgreSQL has sent no notification")

    def close(self) -> None:
        self._hearing.close()
        self._saying.close()


@pytest.fixture
def notices(postgresql_url: str) -> Iterator[Listener]:
    listener = Listener(postgresql_url)
    yield listener
    listener.close()


@pytest.fixture
def outbox(engine: Engine) -> Iterator[Outbox]:
    outbox = Outbox(engine)
    yield outbox
    outbox.close()


def record(ledger: Ledger, order_id: str = "o1") -> None:
    claim = claimed(ledger.claim(Key("m", order_id), send=True, order=b"{}"))
    assert ledger.finish(claim, an_entry(key=claim.key))


def test_another_processs_event_wakes_a_leader_that_polls_seldom(
    engine: Engine, relay: Relays, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "POLL", (LONG, LONG))
    monkeypatch.setattr(pipeline, "SELDOM", LONG)
    relay()
    other = Worker(engine)
    for number in range(3):
        other.clock.advance(SILENCE)
        record(other, f"o{number}")
        [(_, position)] = queue.take(1)
        assert position == number + 1


def test_only_an_event_after_a_silence_is_announced(engine: Engine, notices: Listener) -> None:
    worker = Worker(engine)
    record(worker, "o1")
    assert notices.count() == 1
    for number in range(2, 6):
        worker.clock.advance(0.9 * SILENCE)
        record(worker, f"o{number}")
    assert notices.count() == 0
    worker.clock.advance(SILENCE)
    claim = claimed(worker.claim(Key("m", "without an event"), send=True))
    assert worker.finish(claim, without_event())
    assert notices.count() == 0
    record(worker, "o6")
    assert notices.count() == 1


def test_a_leader_announces_nothing(engine: Engine, notices: Listener, outbox: Outbox) -> None:
    worker = Worker(engine)
    leadership = Leadership(outbox, worker, worker.clock)
    worker.beat()
    assert leadership.term() is not None
    record(worker, "o1")
    assert notices.count() == 0
    leadership.step_down()
    record(worker, "o2")
    assert notices.count() == 1


def test_a_callback_is_announced(engine: Engine, notices: Listener) -> None:
    worker = Worker(engine)
    claim = claimed(worker.claim(KEY, send=True, endpoint="the POS", order=b"{}"))
    assert worker.finish(claim, an_entry(external_id="7"))
    notices.count()
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated, worker.clock)
    ledger.apply([of("unknown")])
    assert notices.count() == 0
    ledger.apply([of("7", Lifecycle.PREPARING)])
    assert notices.count() == 1
    ledger.apply([of("7", Lifecycle.READY)])
    assert notices.count() == 0
    ledger.close()


class Cursor:
    """Executes, or fails so."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.executed = 0

    def execute(self, *_: object) -> None:
        self.executed += 1
        if self._error is not None:
            raise self._error


def test_after_a_refused_notice_there_is_none_for_a_while(engine: Engine) -> None:
    clock = Clock()
    notices = EventNotices(engine, clock)
    full, cursor = psycopg.errors.ProgramLimitExceeded("the queue is full"), Cursor()
    notices.recorded(Cursor(full))
    for _ in range(int(AFTER_REFUSAL / SILENCE) - 1):
        clock.advance(SILENCE)
        notices.recorded(cursor)
    assert cursor.executed == 0
    clock.advance(2 * SILENCE)
    notices.recorded(cursor)
    assert cursor.executed == 1


def test_a_lost_connection_is_no_refused_notice(engine: Engine) -> None:
    """What it answers later would be taken for the next statement's answer."""
    with pytest.raises(psycopg.OperationalError):
        EventNotices(engine, Clock()).recorded(Cursor(psycopg.OperationalError("no answer")))


def test_an_outcome_does_not_fail_with_its_notice(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> None:
        raise psycopg.OperationalError("the connection is lost")

    worker = Worker(engine)
    monkeypatch.setattr(worker._notices, "recorded", lost)
    record(worker, "o1")
    record(worker, "o2")


def test_an_order_does_not_wait_for_others_notifications(
    postgresql: PostgreSQL, postgresql_url: str
) -> None:
    """PostgreSQL commits notifications one after the other, in all of a server's databases."""
    another = psycopg.connect(postgresql.url.replace("+psycopg", ""))
    another.execute("create table written (number integer)")
    another.commit()
    engine = open_database(f"{postgresql_url}&options=-csynchronous_commit%3Dlocal")
    worker = Worker(engine)
    record(worker, "o1")
    another.execute("insert into written values (1)")
    another.execute("notify something")
    postgresql.commit_with("away")
    committing = threading.Thread(target=another.commit)
    try:
        committing.start()
        while not postgresql.commits_waiting():
            pass
        worker.clock.advance(SILENCE)
        record(worker, "o2")
        assert committing.is_alive()
        assert worker._writer.is_connected, "the notice was refused, and not given up"
    finally:
        postgresql.commit_with("")
        committing.join()
        another.execute("drop table written")
        another.commit()
        another.close()
        engine.dispose()


@pytest.fixture
def bell() -> Iterator[int]:
    ours, theirs = os.pipe()
    yield ours
    os.close(ours)
    os.close(theirs)


def announce(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(select(func.pg_notify(CHANNEL, "")))


def test_notices_are_heard_once_whenever_they_come(
    engine: Engine, outbox: Outbox, bell: int
) -> None:
    assert outbox.hear(LONG, bell), "there may have been one before"
    assert not outbox.hear(0, bell)
    announce(engine)
    assert outbox.hear(LONG, bell)
    announce(engine)
    announce(engine)
    outbox.look()  # they come with its result
    assert outbox.hear(LONG, bell)
    assert not outbox.hear(0, bell)


def test_a_lost_connection_listens_again(
    engine: Engine, outbox: Outbox, bell: int, postgresql: PostgreSQL
) -> None:
    outbox.hear(LONG, bell)
    postgresql.drop_connections()
    with pytest.raises(LedgerUnavailable):
        while not outbox.hear(LONG, bell):  # the server says goodbye first
            pass
    assert outbox.hear(LONG, bell)
    announce(engine)
    assert outbox.hear(LONG, bell)


def test_a_connection_that_is_silently_dead_is_noticed(postgresql_url: str, bell: int) -> None:
    """A pooler or load balancer may acknowledge for a server that is gone."""
    with Proxy(postgresql_url) as proxy:
        engine = open_database(proxy.url)
        outbox = Outbox(engine)
        assert outbox.hear(0, bell)
        for _ in range(3):
            assert not outbox.hear(0, bell)
            outbox._quiet_for += 10.0
            assert not outbox.hear(0, bell), "it lives"
        wait_at_most(outbox._writer._connection, 0.2)
        proxy.half_open("server")
        outbox._quiet_for += 10.0
        with pytest.raises(LedgerUnavailable):
            outbox.hear(0, bell)
        outbox.close()
        engine.dispose()


def test_a_stop_does_not_wait_for_a_notice(relay: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    hear, hearing = Outbox.hear, threading.Semaphore(0)

    def hear_for_long(outbox: Outbox, _: float, bell: int) -> bool:
        hearing.release()
        return hear(outbox, LONG, bell)

    monkeypatch.setattr(Outbox, "hear", hear_for_long)
    one, _ = relay()
    for _ in range(2):  # the first time it does not wait
        assert hearing.acquire(timeout=SOON)
    one.stop()
    assert not any(each.is_alive() for each in one._threads)


def test_notices_do_not_hasten_pruning(
    engine: Engine, relay: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch a second, however many notices there are; and its failure makes no leader deaf."""
    pruned, heard = list[float](), threading.Event()
    wake = Pipeline.wake

    def prune(relay: EventRelay) -> None:
        pruned.append(relay._clock.monotonic())
        raise LedgerUnavailable("a statement that takes too long")

    def woken(pipeline: Pipeline) -> None:
        heard.set()
        wake(pipeline)

    monkeypatch.setattr(EventRelay, "_prune", prune)
    monkeypatch.setattr(Pipeline, "wake", woken)
    relay()
    while len(pruned) < 3:
        announce(engine)
        assert heard.wait(SOON)
        heard.clear()
    # Each is noted a moment after it was due, and one moment may be longer than the other.
    assert min(later - earlier for earlier, later in pairwise(pruned)) >= 0.9 * LOOK
