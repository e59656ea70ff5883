"""The PostgreSQL that tests start: a fresh database for each, and the same after a crash."""

from contextlib import closing

import psycopg
import pytest

from pos_gateway.client.outbox.opening import connector
from pos_gateway.database.engine import open_database
from testkit.patience import PATIENCE
from testkit.servers.postgresql import PostgreSQL


def test_a_committed_row_survives_a_crash_and_a_restart(
    postgresql: PostgreSQL, postgres_url: str
) -> None:
    with connect(postgres_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")

    postgresql.kill()
    postgresql.start()
    postgresql.restart()

    with connect(postgres_url) as connection:
        assert connection.execute("SELECT one FROM kept").fetchall() == [(1,)]


def test_it_is_killed_and_started_again_while_clients_keep_it_busy(
    postgresql: PostgreSQL, postgres_url: str
) -> None:
    with closing(connect(postgres_url)) as busy, closing(connect(postgres_url)) as idle:
        busy.pgconn.send_query(b"SELECT pg_sleep(600)")
        idle.execute("SELECT 1")

        postgresql.kill()
        postgresql.start()

        with pytest.raises(psycopg.OperationalError):
            idle.execute("SELECT 1")


def test_dropped_connections_end_with_an_error(postgresql: PostgreSQL, postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        postgresql.drop_connections()

        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")


def test_each_database_is_empty_and_apart_from_the_others(
    postgresql: PostgreSQL, postgres_url: str
) -> None:
    other = postgresql.database("named-by-hand")
    with connect(postgres_url) as connection:
        connection.execute("CREATE TABLE here ()")

    with connect(other) as connection:
        tables = connection.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []
    postgresql.drop_database(other)


def test_it_is_as_durable_as_in_production(postgres_url: str) -> None:
    with connect(postgres_url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}").fetchall() == [("on",)]


def test_its_url_has_the_product_connect_for_as_long_as_a_test_waits(postgres_url: str) -> None:
    engine = open_database(postgres_url)
    with closing(engine.raw_connection()) as ledgers, closing(connector(postgres_url)()) as outbox:
        for each in (ledgers.driver_connection, outbox):
            assert each.info.get_parameters()["connect_timeout"] == f"{PATIENCE:.0f}"
    engine.dispose()


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
