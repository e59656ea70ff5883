"""What a worker reads every second is one statement, which no writer waits for.

==============================================  ==================================================
adversary                                       promise
==============================================  ==================================================
a writer that holds its lock                    a poll does not wait for it
PostgreSQL ends the connection                  the poll fails, and the next one succeeds
two threads poll in the same moment             each gets its own rows
a table is missing, or another version's        the schema's watch sees it, and that it is back
==============================================  ==================================================
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from pos_gateway.database import engine as database
from pos_gateway.database.engine import open_database
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.polls import Polls
from pos_gateway.ledger.schema_watch import SchemaWatch


@pytest.fixture
def engine(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(database, "_SQLITE_BUSY", 0.01)
    engine = open_database(ledger_url)
    yield engine
    engine.dispose()


@pytest.fixture
def polls(engine: Engine) -> Iterator[Polls]:
    polls = Polls(engine)
    yield polls
    polls.close()


def test_a_poll_waits_for_no_writer(engine: Engine, polls: Polls) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("begin immediate" if polls.is_sqlite else "begin")
        connection.exec_driver_sql("delete from merchants")
        assert polls.rows("select count(*) from merchants") == [(0,)]


def test_a_poll_after_a_lost_connection_succeeds(engine: Engine, polls: Polls) -> None:
    if polls.is_sqlite:
        with pytest.raises(LedgerUnavailable):
            polls.rows("select nothing")
    else:
        [(pid,)] = polls.rows("select pg_backend_pid()")
        with engine.connect() as connection:
            connection.execute(text("select pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        with pytest.raises(LedgerUnavailable):
            polls.rows("select 1")
    assert polls.rows("select 1") == [(1,)]
    polls.close()
    assert polls.rows("select 1") == [(1,)]


def test_polls_in_the_same_moment_get_their_own_rows(polls: Polls) -> None:
    def ask(number: int) -> bool:
        return polls.rows(f"select {number}") == [(number,)]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(200)))


def test_the_watch_sees_every_table_and_the_version(engine: Engine, polls: Polls) -> None:
    watch = SchemaWatch(engine, polls)

    def problem_after(*changes: str) -> str | None:
        with engine.begin() as connection:
            for change in changes:
                connection.exec_driver_sql(change)
        watch.look()
        return watch.problem

    assert problem_after() is None
    back = "alter table audit_hidden rename to audit"
    try:
        assert "audit" in (problem_after("alter table audit rename to audit_hidden") or "")
    finally:
        assert problem_after(back) is None
    try:
        changed = problem_after("update alembic_version set version_num = '9999_from_9999'")
        assert "run: " in (changed or "")
    finally:
        [revision] = [database.REVISIONS[-1]]
        assert problem_after(f"update alembic_version set version_num = '{revision}'") is None
