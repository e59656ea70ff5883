"""Databases that are full, locked, restarted or read-only: reported, and waited for."""

import gc
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
from pos_gateway.ledger.polls import Polls
from pos_gateway.ledger.schema_watch import SchemaWatch
from pos_gateway.ledger.states import Claim, Key, LeasedElsewhere, State
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL
from tests.ledger.breaking import backend, terminate
from tests.ledger.lab import KEY, SOON, Rows, Worker, an_entry, claimed
from tests.ledger.test_commits import Caller

Workers = Callable[..., Worker]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.001, 0.01))
    monkeypatch.setattr(module, "CLAIM_TIMEOUT", 0)
    monkeypatch.setattr(database, "_SQLITE_BUSY", 0.05)


def nothing_but_unavailable(worker: Worker, claim: Claim) -> None:
    """Every operation of the ledger reports that the database is unavailable."""
    other = Key("m", "other")
    for do in (
        lambda: worker.claim(other, send=True, order=b"{}"),
        lambda: worker.claim(claim.key, send=True),
        lambda: worker.sending(claim),
        lambda: worker.finish(claim, an_entry(), timeout=0),
        lambda: worker.record_event(other, an_entry(key=other), b"{}", timeout=0),
        worker.beat,
    ):
        with pytest.raises(LedgerUnavailable):
            do()


def nothing_was_written(claim: Claim, rows: Rows) -> None:
    """The order that was claimed before is unchanged, and the other one has no row."""
    [row] = rows.orders()
    assert (row.order_id, row.state, row.epoch) == (claim.key.order_id, State.CLAIMED, claim.epoch)
    assert rows.events() == []


def all_is_well(worker: Worker, claim: Claim, rows: Rows) -> None:
    """Both orders, the one claimed before and the refused one, can be delivered."""
    assert worker.sending(claim)
    assert worker.finish(claim, an_entry())
    other = claimed(worker.claim(Key("m", "other"), send=True, order=b"{}"))
    assert not other.history.in_doubt
    assert worker.finish(other, an_entry(key=other.key))
    assert {row.state for row in rows.orders()} == {State.ACCEPTED}
    assert len(rows.events()) == 2


@contextmanager
def locked_sqlite(engine: Engine) -> Iterator[None]:
    """Another process holds a write transaction open."""
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
    holding.communicate("\n", timeout=PATIENCE)


@contextmanager
def locked_postgresql(engine: Engine) -> Iterator[None]:
    """A migration, say, that others wait for."""
    with engine.connect() as connection:
        connection.execute(text("lock table orders, events, workers in access exclusive mode"))
        yield
        connection.rollback()


@contextmanager
def read_only_postgresql(engine: Engine) -> Iterator[None]:
    """A standby, or a demoted primary."""
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


def test_sqlite_recovers_when_another_process_has_written(sqlite_url: str) -> None:
    engine = open_database(sqlite_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    with locked_sqlite(engine):
        one.clock.advance(3)  # a renewal is due
        nothing_but_unavailable(one, claim)
        nothing_was_written(claim, rows)
    all_is_well(one, claim, rows)
    engine.dispose()


def test_sqlite_waits_while_the_disk_is_full(sqlite_url: str) -> None:
    """A connection that was opened before fails within its transaction."""
    engine = open_database(sqlite_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    driver: Any = one._writer._connection
    driver.execute("pragma max_page_count = 1")  # no more pages than there are
    payload = "x" * 100_000
    with pytest.raises(LedgerUnavailable, match="full"):
        one.claim(Key("m", "long"), send=True, order=payload.encode())
    assert rows.order(Key("m", "long")) is None
    long = claimed(one.claim(Key("m", "long"), send=True, order=payload.encode()))
    assert not long.history.in_doubt
    assert one.finish(claim, an_entry())
    engine.dispose()


@pytest.mark.parametrize("outage", [locked_postgresql, read_only_postgresql])
def test_postgresql_recovers_from_an_outage(
    postgresql_url: str, outage: Callable[[Engine], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    claim = claimed(one.claim(KEY, send=False))
    with outage(open_database(postgresql_url)), monkeypatch.context() as patched:
        patched.setattr(writer, "_STATEMENT_TIMEOUT", 0.1)
        terminate(engine, backend(one))  # its next connection is affected
        one.clock.advance(3)
        nothing_but_unavailable(one, claim)
    one._writer.close()  # and the next one is patient again
    nothing_was_written(claim, rows)
    all_is_well(one, claim, rows)
    engine.dispose()


def test_postgresql_recovers_from_a_restart(postgresql: PostgreSQL, postgresql_url: str) -> None:
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


def test_orders_that_wait_for_the_database_are_written_after_the_outage(
    postgresql: PostgreSQL, postgresql_url: str
) -> None:
    engine = open_database(postgresql_url)
    one, rows = Worker(engine), Rows(engine)
    one.start()
    keys = [Key("m", f"o{n}") for n in range(20)]
    claims = [claimed(one.claim(key, send=True)) for key in keys]
    postgresql.kill()
    threads = [
        Caller(lambda claim, timeout: one.finish(claim, an_entry(key=claim.key)), claim)
        for claim in claims
    ]
    with pytest.raises(LedgerUnavailable):
        one.claim(KEY, send=True)  # the first write fails
    assert all(each.is_alive() for each in threads)
    postgresql.start()
    assert [each.came_to() for each in threads] == [True] * 20
    assert len(rows.events()) == 20
    one.close()
    engine.dispose()


def test_a_wrong_table_counts_as_an_outage(engine: Engine, worker: Workers, rows: Rows) -> None:
    """A migration is running, or was forgotten: no order may fail for it."""
    one = worker()
    claim = claimed(one.claim(KEY, send=False))

    def say(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    say("alter table orders rename column told to told_before")
    for do in (
        lambda: one.claim(KEY, send=True),
        lambda: one.finish(claim, an_entry(), timeout=0),
    ):
        with pytest.raises(LedgerUnavailable, match="told"):
            do()
    say("alter table orders rename column told_before to told")
    all_is_well(one, claim, rows)


def test_a_prepared_statement_survives_a_migration(postgresql_url: str) -> None:
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


def test_a_lease_that_cannot_be_released_expires(
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


def test_a_stop_does_not_wait_for_a_release_that_hangs(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RELEASE_TIMEOUT", 0.1)
    answered, waited_for = threading.Event(), threading.Event()

    def write(_: Any) -> list[int]:
        if not answered.wait(SOON):
            waited_for.set()
        return []

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


def test_a_failed_renewal_is_followed_by_another(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker would end with that thread, and so would the next worker that reads the row."""
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(module, "BEAT", 0.002)
    engine = open_database(sqlite_url)
    ledger, beats = Ledger(engine), threading.Semaphore(0)

    def write(_: Any) -> Any:
        beats.release()
        raise OverflowError("a lease for more seconds than a number holds")

    with monkeypatch.context() as reading:
        reading.setattr(ledger._writer, "write", write)
        ledger.start()
        for _ in range(3):
            assert beats.acquire(timeout=SOON)
    ledger.close()
    engine.dispose()
    assert not died


def test_a_dropped_ledgers_connection_is_not_reused(postgresql_url: str) -> None:
    """One in autocommit would commit the half of another's transaction."""
    engine = open_database(postgresql_url)
    claimed(Worker(engine).claim(KEY, send=False))
    gc.collect()
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        assert not driver.autocommit
        assert connection.scalar(text("show enable_seqscan")) == "on"
    engine.dispose()


@pytest.mark.parametrize("error", [OperationalError("", {}, Exception()), RecursionError()])
def test_an_unreachable_database_is_checked_again(error: Exception) -> None:
    """Also for errors that the driver does not wrap."""

    def connect(_: object) -> None:
        raise error from RuntimeError()

    engine = create_engine("sqlite://")
    event.listen(engine, "engine_connect", connect)
    watch = SchemaWatch(engine, Polls(engine))
    assert watch._look() == f"the database cannot be asked: {type(error).__name__}"
