"""What the gateway uses of psycopg beyond its documentation."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.waiting import Wait, wait

from pos_gateway.database.confirmed import ConfirmedConnection
from pos_gateway.database.psycopg_internals import Prepared, wait_at_most, wait_with

SUM = "select value::int from json_array_elements_text($1::json)"


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    made = ConfirmedConnection.connect(postgres_url.replace("+psycopg", ""))
    yield made
    made.close()


def prepared(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("select name from pg_prepared_statements").fetchall()


def test_every_exchange_calls_wait(connection: Any) -> None:
    """It yields 1 to read, 2 to write, 3 for either; what it is sent is what is ready."""
    wanted: list[int] = []

    def until_ready(events: int) -> None:
        def once() -> Any:
            yield events

        wanted.append(events)
        wait(once(), connection.fileno(), interval=0.1)

    assert [Wait.R, Wait.W, Wait.RW] == [1, 2, 3]
    wait_with(connection, until_ready)
    for exchange in (
        lambda: connection.execute("select 1"),
        lambda: Prepared("sums", SUM).execute(connection, b"[1]"),
        connection.commit,
    ):
        exchange()
        assert set(wanted) <= {1, 2, 3}
        assert wanted
        wanted.clear()


def test_an_exception_in_wait_propagates(connection: Any) -> None:
    def until_ready(_events: int) -> None:
        raise psycopg.OperationalError("not answered")

    wait_with(connection, until_ready)
    with pytest.raises(psycopg.OperationalError, match="not answered"):
        connection.execute("select 1")


def test_without_a_reply_in_time_the_connection_is_closed(connection: Any) -> None:
    wait_at_most(connection, 0.1)
    with pytest.raises(psycopg.OperationalError, match=r"has not answered for 0\.1 s"):
        connection.execute("select pg_sleep(600)")
    assert connection.closed


def test_the_last_limit_counts_for_each_exchange_by_itself(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []
    wait_for = psycopg.Connection.wait

    def noted(talking: Any, talk: Any, timeout: float = 0.0) -> Any:
        timeouts.append(timeout)
        return wait_for(talking, talk)

    monkeypatch.setattr(psycopg.Connection, "wait", noted)
    for seconds in (0.01, 60.0):
        wait_at_most(connection, seconds)
        connection.execute("select 1")
        connection.execute("select 2")
    assert timeouts[:2] == [0.01, 0.01]
    assert timeouts[-2:] == [60.0, 60.0]


def test_a_statement_is_prepared_once_per_connection(connection: Any) -> None:
    statement = Prepared("sums", SUM)
    assert statement.execute(connection, b"[3, 1, 2]") == [(3, None), (1, None), (2, None)]
    assert statement.execute(connection, b"[]") == []
    assert prepared(connection) == [("sums",)]
    with psycopg.connect(connection.info.dsn, password=connection.info.password) as other:
        assert statement.execute(other, b"[4]") == [(4, None)]
        assert prepared(other) == [("sums",)]


def test_errors_have_the_class_of_their_code_and_leave_the_connection_usable(
    connection: Any,
) -> None:
    connection.autocommit = True
    statement = Prepared("sums", SUM)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation) as raised:
        statement.execute(connection, b'["no number"]')
    assert isinstance(raised.value, psycopg.DataError)
    assert statement.execute(connection, b"[1]") == [(1, None)]
    with pytest.raises(psycopg.errors.SyntaxError):
        Prepared("wrong", "selec 1").execute(connection, b"")
    assert statement.execute(connection, b"[2]") == [(2, None)]


def test_a_lost_connection_is_an_operational_error(connection: Any, postgres_url: str) -> None:
    connection.autocommit = True
    statement = Prepared("sums", SUM)
    statement.execute(connection, b"[1]")
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("select pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        statement.execute(connection, b"[1]")
