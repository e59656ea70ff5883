"""Databases that are full, locked, restarted or read only: said so, and gone on from."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger import commits, writer
from pos_gateway.ledger import ledger as module
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.schema_watch import SchemaWatch
from pos_gateway.ledger.states import Claim, Key, LeasedElsewhere, State
from testkit.servers.postgresql import PostgreSQL
from tests.ledger.breaking import backend, terminate
from tests.ledger.lab import KEY, SOON, Rows, Worker, an_entry, claimed
from tests.ledger.test_commits import Caller

Workers = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.001, 0.01))
    monkeypatch.setattr(module, "CLAIM_PATIENCE", 0)
    monkeypatch.setattr(writer, "_STATEMENT_TIMEOUT", 0.1)
    monkeypatch.setattr(database, "_SQLITE_BUSY", 0.05)


def nothing_but_unavailable(worker: Worker, claim: Claim) -> None:
    """Whatever is asked of the ledger, it says that the database is away."""
    other = Key("m", "other")
    for do in (
        lambda: worker.claim(other, send=True, order=b"{}"),
        lambda: worker.claim(claim.key, send=True),
        lambda: worker.sending(claim),
        lambda: worker.finish(claim, an_entry(), patience=0),
        lambda: worker.tell(other, an_entry(key=other), b"{}", patience=0),
        worker.beat,
    ):
        with pytest.raises(LedgerUnavailable):
            do()


def nothing_was_written(claim: Claim, rows: Rows) -> None:
    """The order that was claimed before is as it was, and of the other one there is nothing."""
    [row] = rows.orders()
    assert (row.order_id, row.state, row.epoch) == (claim.key.order_id, State.CLAIMED, claim.epoch)
    assert rows.events() == []


def all_is_well(worker: Worker, claim: Claim, rows: Rows) -> None:
    """The order that was claimed before, and the one that was refused, go their way."""
    assert worker.sending(claim)
    assert worker.finish(claim, an_entry())
    other = claimed(worker.claim(Key("m", "other"), send=True, order=b"{}"))
    assert not other.past.in_doubt
    assert worker.finish(other, an_entry(key=other.key))
    assert {row.state for row in rows.orders()} == {State.ACCEPTED}
    assert len(rows.events()) == 2


@contextmanager
def locked_sqlite(engine: Engine) -> Iterator[None]:
    """Another process writes, and does not come to an end."""
    holding = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
            "connection.execute('begin immediate')\n"
            "print('it is locked', flush=True)\n"
            "sys.stdin.readline()\n",
            str(engine.url.database),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holding.stdout is not None
    assert holding.stdout.readline() == "it is locked\n"
    yield
    holding.communicate("\n", timeout=60)


@contextmanager
def locked_postgresql(engine: Engine) -> Iterator[None]:
    """A migration, say, that others wait for."""
    with engine.connect() as connection:
        connection.execute(text("lock table orders, events, workers in access exclusive mode"))
        yield
        connection.rollback()


@contextmanager
def read_only_postgresql(engine: Engine) -> Iterator[None]:
    """A standby, or a primary that has become one."""
    name = engine.url.database

    def set_to(value: str) -> None:
        with engine.connect() as connection:
            connection.execute(text("set default_transaction_read_only = off"))
            connection.commit()
            connection.execute(
                text(f'alter database "{name}" set default_transaction_read_only = {value}')
            )
            connection.commit()
        engine.dispose()

    set_to("on")
    yield
    set_to("off")


def test_on_sqlite_it_goes_on_when_another_process_has_written(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    with locked_sqlite(engine):
        one.clock.advance(3)  # it is time to beat
        nothing_but_unavailable(one, claim)
        nothing_was_written(claim, rows)
    all_is_well(one, claim, rows)
    engine.dispose()


def test_on_sqlite_a_disk_that_is_full_all_at_once_is_waited_for(sqlite_url: str) -> None:
    """The connection that was opened before meets the end of the disk in its transaction."""
    engine = open_database(sqlite_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    driver: Any = one._writer._connection.driver_connection
    driver.execute("pragma max_page_count = 1")  # no more than there are
    payload = "x" * 100_000
    with pytest.raises(LedgerUnavailable, match="full"):
        one.claim(Key("m", "long"), send=True, order=payload.encode())
    assert rows.order(Key("m", "long")) is None
    long = claimed(one.claim(Key("m", "long"), send=True, order=payload.encode()))
    assert not long.past.in_doubt
    assert one.finish(claim, an_entry())
    engine.dispose()


@pytest.mark.parametrize("outage", [locked_postgresql, read_only_postgresql])
def test_on_postgresql_it_goes_on_when_it_is_over(
    postgresql_url: str, outage: Callable[[Engine], Any]
) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    with outage(open_database(postgresql_url)):
        terminate(engine, backend(one))  # its next connection meets it
        one.clock.advance(3)
        nothing_but_unavailable(one, claim)
    nothing_was_written(claim, rows)
    all_is_well(one, claim, rows)
    engine.dispose()


def test_on_postgresql_it_goes_on_after_a_restart(
    postgresql: PostgreSQL, postgresql_url: str
) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    postgresql.drop_connections()
    postgresql.stop()
    nothing_but_unavailable(one, claim)
    with pytest.raises(LedgerUnavailable):
        one.order(KEY)
    postgresql.start()
    nothing_was_written(claim, rows)
    all_is_well(one, claim, rows)
    engine.dispose()


def test_orders_that_wait_for_a_database_are_written_when_it_is_back(
    postgresql: PostgreSQL, postgresql_url: str
) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    one.start()
    keys = [Key("m", f"o{n}") for n in range(20)]
    claims = [claimed(one.claim(key, send=True)) for key in keys]
    postgresql.kill()
    threads = [
        Caller(lambda claim, patience: one.finish(claim, an_entry(key=claim.key)), claim)
        for claim in claims
    ]
    with pytest.raises(LedgerUnavailable):
        one.claim(KEY, send=True)  # it has come to the database, and it was away
    assert all(each.is_alive() for each in threads)
    postgresql.start()
    assert [each.came_to() for each in threads] == [True] * 20
    assert len(rows.events()) == 20
    one.close()
    engine.dispose()


def test_a_table_that_is_not_as_it_should_be_is_waited_for(
    engine: Engine, worker: Workers, rows: Rows
) -> None:
    """A migration is under way, or was forgotten: no order is to fail for it."""
    one = worker()
    claim = claimed(one.claim(KEY, send=False))

    def say(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    say("alter table orders rename column told to told_before")
    for do in (
        lambda: one.claim(KEY, send=True),
        lambda: one.finish(claim, an_entry(), patience=0),
    ):
        with pytest.raises(LedgerUnavailable, match="told"):
            do()
    say("alter table orders rename column told_before to told")
    all_is_well(one, claim, rows)


def test_a_statement_that_postgresql_has_prepared_survives_a_migration(postgresql_url: str) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    for _ in range(10):
        assert isinstance(one.claim(KEY, send=True), LeasedElsewhere)
    with engine.begin() as connection:
        connection.execute(text("alter table orders alter column reason_code type varchar(65)"))
    with pytest.raises(LedgerUnavailable, match="cached plan"):
        one.claim(KEY, send=True)
    with engine.begin() as connection:
        connection.execute(text("alter table orders alter column reason_code type varchar(64)"))
    all_is_well(one, claim, rows)
    engine.dispose()


def test_a_lease_that_cannot_be_given_back_runs_out(
    postgresql: PostgreSQL, postgresql_url: str
) -> None:
    engine = open_database(postgresql_url)
    one = Worker(engine)
    claim = claimed(one.claim(KEY, send=False))
    postgresql.kill()
    one.close()
    assert not one.holds(claim)
    postgresql.start()
    assert Rows(engine).leases() == {claim.owner}
    engine.dispose()


def test_nobody_waits_for_a_lease_to_be_given_back_to_a_database_that_does_not_answer(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GIVING_BACK", 0.1)
    answered, waited_for = threading.Event(), threading.Event()

    def write(_: Any) -> None:
        if not answered.wait(SOON):
            waited_for.set()

    engine = open_database(postgresql_url)
    one = Worker(engine)
    claim = claimed(one.claim(KEY, send=False))
    with monkeypatch.context() as hanging:
        hanging.setattr(one._writer, "write", write)
        one.close()
        answered.set()
    assert not waited_for.is_set()
    assert not one.holds(claim)
    one._writer.close()
    engine.dispose()


def test_whatever_comes_of_a_beat_there_is_another_one(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker would end with that thread, and so would the next one that reads that row."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(module, "BEAT", 0.002)
    engine = open_database(sqlite_url)
    ledger, beats = Ledger(engine), threading.Semaphore(0)

    def write(_: Any) -> Any:
        beats.release()
        raise OverflowError("a lease for so many seconds as no number has")

    with monkeypatch.context() as reading:
        reading.setattr(ledger._writer, "write", write)
        ledger.start()
        for _ in range(3):
            assert beats.acquire(timeout=SOON)
    ledger.close()
    engine.dispose()
    assert not died


@pytest.mark.parametrize("error", [OperationalError("", {}, Exception()), RecursionError()])
def test_a_database_that_cannot_be_asked_is_looked_at_again(error: Exception) -> None:
    """Also if the driver has no word for it."""

    def connect(_: object) -> None:
        raise error from RuntimeError()

    engine = create_engine("sqlite://")
    event.listen(engine, "engine_connect", connect)
    watch = SchemaWatch(engine)
    assert watch._look() == f"the database cannot be asked: {type(error).__name__}"
