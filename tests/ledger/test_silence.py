"""Connections to PostgreSQL that go silent: what is in between acknowledges, and no answer comes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from pos_gateway.cli.database import database as of_a_command
from pos_gateway.database import engine as database
from pos_gateway.database.engine import COMMAND_ANSWER, open_database, upgrade
from testkit.servers.proxy import Proxy

PID = text("select pg_backend_pid()")
LONG = text("select pg_sleep(1)")
#: Seconds for an answer here, and after which the server ends a statement.
ANSWER, EARLIER = 0.6, 0.4

Opened = Callable[[str], Engine]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr(database, "_PING_ANSWER", 2 * ANSWER)
    monkeypatch.setattr(database, "_EARLIER", EARLIER)
    engines = []

    def opened(url: str) -> Engine:
        engines.append(open_database(url, answer=ANSWER))
        return engines[-1]

    yield opened
    for each in engines:
        each.dispose()


def pids(engine: Engine, count: int) -> set[Any]:
    """The servers of this many connections, used at once."""
    connections = [engine.connect() for _ in range(count)]
    found = {each.scalar(PID) for each in connections}
    for each in connections:
        each.close()
    return found


def test_idle_connections_that_went_silent_are_all_replaced_at_the_first_use(
    postgres_url: str, opened: Opened
) -> None:
    with Proxy(postgres_url) as proxy:
        engine = opened(proxy.url)
        before = pids(engine, 3)
        proxy.half_open()
        with engine.connect() as connection:
            assert connection.scalar(PID) not in before
        assert not before & pids(engine, 3)


def test_a_command_waits_longer_for_a_connection_than_a_worker(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PING_ANSWER", 3600.0)  # longer than this test may take
    monkeypatch.setattr(database, "_COMMAND_PING_ANSWER", 2 * ANSWER)
    with Proxy(postgres_url) as proxy:
        engine = open_database(proxy.url, answer=COMMAND_ANSWER)
        before = pids(engine, 2)
        proxy.half_open()
        assert not before & pids(engine, 2)
        engine.dispose()


def test_a_statement_without_an_answer_fails_and_its_connection_is_replaced(
    postgres_url: str, opened: Opened
) -> None:
    with Proxy(postgres_url) as proxy:
        engine = opened(proxy.url)
        with engine.connect() as connection:
            connection.execute(PID)
            proxy.half_open()
            with pytest.raises(OperationalError, match=r"has not answered for 0\.6 s"):
                connection.execute(PID)
        with engine.begin() as connection:
            connection.execute(PID)


def test_so_does_a_commit(postgres_url: str, opened: Opened) -> None:
    with Proxy(postgres_url) as proxy:
        engine = opened(proxy.url)
        with engine.connect() as connection:
            connection.execute(PID)
            proxy.half_open()
            with pytest.raises(OperationalError, match="has not answered"):
                connection.commit()
        assert pids(engine, 1)


def test_a_server_that_is_alive_ends_a_long_statement_itself(
    postgres_url: str, opened: Opened
) -> None:
    """So none goes on without its client, and the connection can be used again."""
    engine = opened(postgres_url)
    [before] = pids(engine, 1)
    with engine.connect() as connection, pytest.raises(OperationalError, match="timeout"):
        connection.execute(LONG)
    assert pids(engine, 1) == {before}


def test_a_migration_may_take_longer_than_any_other_statement(
    postgres_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(postgres_url)
    before = pids(engine, 1)

    def rewrite(config: Any, _revision: str) -> None:
        config.attributes["connection"].execute(LONG)

    monkeypatch.setattr(command, "upgrade", rewrite)
    upgrade(engine)
    with engine.connect() as connection:
        assert {connection.scalar(PID)} == before
        assert connection.scalar(text("show statement_timeout")) == "200ms"


@pytest.mark.parametrize(
    ("answer", "limit"), [(None, COMMAND_ANSWER), (database.ANSWER, database.ANSWER)]
)
def test_a_commands_statement_may_read_whole_tables(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, answer: float | None, limit: float
) -> None:
    monkeypatch.setenv("POS_GATEWAY_DATABASE_URL", postgres_url)
    with of_a_command(current=False, answer=answer) as engine, engine.connect() as connection:
        set_to = connection.scalar(text("select setting::int from pg_settings where name = 'statement_timeout'"))  # fmt: skip
        assert set_to == 1000 * (limit - 5)
