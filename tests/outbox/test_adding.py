"""An order is in the outbox if, and only if, the backend's transaction commits."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pymysql
import pytest
from pymysql.cursors import DictCursor
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pos_gateway.client import outbox
from pos_gateway.client.outbox.connections import PlainConnection, adapted
from pos_gateway.client.outbox.store import Store
from pos_gateway.domain.errors import InvalidOrder, NotInTransaction
from pos_gateway.domain.order import Order
from tests.orders import an_order
from tests.outbox.lab import Backend

PLACE = "insert into placed (order_id) values ('o1')"

#: Opens what a backend has, and yields it with what runs a statement on it, commits and rolls back.
Opened = tuple[Any, Callable[[str], object], Callable[[], object], Callable[[], object]]


def engine_of(backend: Backend) -> Engine:
    return create_engine(backend.url)


@contextmanager
def plain(backend: Backend) -> Iterator[Opened]:
    with closing(backend.connect()) as each:
        yield each, each.cursor().execute, each.commit, each.rollback


@contextmanager
def with_sqlalchemy(backend: Backend) -> Iterator[Opened]:
    with engine_of(backend).connect() as each:
        yield each, lambda sql: each.execute(text(sql)), each.commit, each.rollback


@contextmanager
def with_a_session(backend: Backend) -> Iterator[Opened]:
    with Session(engine_of(backend)) as each:
        yield each, lambda sql: each.execute(text(sql)), each.commit, each.rollback


@contextmanager
def with_a_scoped_session(backend: Backend) -> Iterator[Opened]:
    each = scoped_session(sessionmaker(engine_of(backend)))
    yield each, lambda sql: each.execute(text(sql)), each.commit, each.rollback
    each.remove()


@contextmanager
def of_the_pool(backend: Backend) -> Iterator[Opened]:
    with closing(engine_of(backend).raw_connection()) as each:
        yield each, each.cursor().execute, each.commit, each.rollback


@contextmanager
def with_django(backend: Backend) -> Iterator[Opened]:
    connection = django_connection(backend)
    connection.set_autocommit(False)
    with closing(connection):
        cursor = connection.cursor()
        yield connection, cursor.execute, connection.commit, connection.rollback


def django_connection(backend: Backend) -> Any:
    """Django's wrapper of a connection, as ``django.db.connection`` leads to."""
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True, TIME_ZONE="UTC")
    if backend.dialect == "mysql":
        pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]  # mysqlclient's
        pymysql.install_as_MySQLdb()  # type: ignore[no-untyped-call]
    from django.db.utils import ConnectionHandler

    url = make_url(backend.url)
    kind = "sqlite3" if backend.dialect == "sqlite" else backend.dialect
    options = {
        "ENGINE": f"django.db.backends.{kind}",
        "NAME": url.database,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.host or "",
        "PORT": url.port or "",
    }
    return ConnectionHandler({"default": options})["default"]


KINDS = [plain, with_sqlalchemy, with_a_session, with_a_scoped_session, of_the_pool, with_django]


@pytest.mark.parametrize("opened", KINDS, ids=lambda each: each.__name__)
def test_an_order_is_kept_if_the_transaction_commits_and_only_then(
    backend: Backend, opened: Any
) -> None:
    with opened(backend) as (connection, run, commit, rollback):
        run(PLACE)
        outbox.add(connection, an_order("o1"))
        outbox.cancel(connection, "o1", "fast-1")
        rollback()
        assert backend.kept() == []
        run(PLACE)
        outbox.add(connection, an_order("o1"))
        outbox.cancel(connection, "o1", "fast-1")
        assert backend.kept() == []
        commit()
        assert backend.kept() == ["o1", "o1"]
        assert backend.run("select order_id from placed") == [("o1",)]
        found = outbox.lag(connection)
        assert (found.rows, found.refused) == (2, 0)
        assert 0 <= found.seconds < 60
        rollback()


@pytest.mark.parametrize("opened", [plain, with_sqlalchemy], ids=lambda each: each.__name__)
def test_a_savepoint_takes_its_orders_back(backend: Backend, opened: Any) -> None:
    with opened(backend) as (connection, run, commit, _):
        run(PLACE)
        run("savepoint one")
        outbox.add(connection, an_order("o1"))
        run("rollback to savepoint one")
        outbox.add(connection, an_order("o2"))
        commit()
    assert backend.kept() == ["o2"]


def test_an_order_is_kept_byte_for_byte(backend: Backend) -> None:
    order = an_order("o1", notes="ä \N{HAMBURGER} % ? :x \\ ' \" \x00", x={"1e2": 1.0})
    backend.place(order)
    [(body,)] = backend.run(f"select body from {outbox.TABLE}")
    assert bytes(body) == Order.parse(order).source


def test_an_invalid_order_is_refused_in_the_request(backend: Backend) -> None:
    with closing(backend.connect()) as connection:
        with pytest.raises(InvalidOrder) as caught:
            outbox.add(connection, an_order(total="a lot"))
        assert caught.value.field == "total"
        with pytest.raises(InvalidOrder, match="deliver_by"):
            outbox.add(connection, an_order(seconds=-0.5))
        with pytest.raises(InvalidOrder, match="2000 are allowed"):
            outbox.add(connection, an_order(notes="x" * 2000), max_order_bytes=2000)
        with pytest.raises(InvalidOrder, match="order_id"):
            outbox.cancel(connection, "o 1", "fast-1")
        with pytest.raises(InvalidOrder, match="deliver_by"):
            outbox.cancel(connection, "o1", "fast-1", deliver_by=datetime(2030, 1, 1))
        outbox.cancel(connection, "o1", "m", deliver_by=datetime.now(UTC) + timedelta(minutes=1))
        connection.commit()
    assert backend.kept() == ["o1"]


def in_autocommit(backend: Backend) -> Iterator[Any]:
    """Every way in which a connection commits by itself."""
    match backend.dialect:
        case "sqlite":
            file = backend.url.removeprefix("sqlite:///")
            yield sqlite3.connect(file, isolation_level=None)
        case "postgresql":
            yield psycopg.connect(backend.url.replace("+psycopg", ""), autocommit=True)
        case _:
            connection = backend.connect()
            connection.autocommit(True)
            yield connection
    yield engine_of(backend).connect().execution_options(isolation_level="AUTOCOMMIT")
    yield create_engine(backend.url, isolation_level="AUTOCOMMIT").connect()
    yield Session(create_engine(backend.url, isolation_level="AUTOCOMMIT"))
    yield django_connection(backend)


def test_a_connection_in_autocommit_is_refused(backend: Backend) -> None:
    """The order would be submitted although what the backend writes beside it is rolled back."""
    connections = [*in_autocommit(backend)]
    assert len(connections) == 5
    for connection in connections:
        with closing(connection):
            with pytest.raises(NotInTransaction, match="begin a transaction"):
                outbox.add(connection, an_order("o1"))
            with pytest.raises(NotInTransaction):
                outbox.cancel(connection, "o1", "fast-1")
    assert backend.kept() == []


class Unknown:
    """A driver's connection, of a class that only SQLAlchemy knows, as asyncpg's is."""

    def __init__(self, connection: Any) -> None:
        object.__setattr__(self, "_connection", connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._connection, name, value)


def test_sqlalchemy_s_autocommit_is_refused_with_any_driver(local: Backend) -> None:
    file = local.url.removeprefix("sqlite:///")

    def opened(**options: Any) -> Any:
        return create_engine(
            "sqlite://", creator=lambda: Unknown(sqlite3.connect(file)), **options
        ).connect()

    with opened(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(NotInTransaction, match="begin a transaction"):
            outbox.add(connection, an_order("o1"))
        connection.exec_driver_sql("begin")
        outbox.add(connection, an_order("o2"))
        connection.exec_driver_sql("rollback")
    with opened() as connection:
        outbox.add(connection, an_order("o3"))
        connection.commit()
    assert local.kept() == ["o3"]


def test_a_transaction_that_was_begun_in_autocommit_is_one(backend: Backend) -> None:
    plain_one, *others = in_autocommit(backend)
    with closing(plain_one):
        PlainConnection(plain_one).execute("begin")
        outbox.add(plain_one, an_order("o1"))
        PlainConnection(plain_one).execute("rollback")
    for each in others:
        each.close()
    assert backend.kept() == []


def test_connections_whose_rows_are_dictionaries_do(on_postgresql: Backend, mariadb: Any) -> None:
    from psycopg.rows import dict_row

    url = on_postgresql.url.replace("+psycopg", "")
    with psycopg.connect(url, row_factory=dict_row) as connection:  # type: ignore[arg-type]
        outbox.add(connection, an_order("o1"))
        assert outbox.lag(connection).rows == 1
    mariadb.start()
    other = Backend(mariadb.database(), "mysql")
    with closing(other.connect()) as its:
        its.cursorclass = DictCursor
        outbox.add(its, an_order("o1"))
        assert outbox.lag(its).rows == 1


class _Custom(sqlite3.Connection):
    """A backend's own."""


def test_a_connection_of_a_class_that_derives_from_a_driver_is_known(local: Backend) -> None:
    with closing(sqlite3.connect(local.url.removeprefix("sqlite:///"), factory=_Custom)) as each:
        outbox.add(each, an_order("o1"))
        each.commit()
    assert local.kept() == ["o1"]


def test_what_is_no_connection_is_named_with_what_is(on_postgresql: Backend) -> None:
    for wrong in (None, "postgresql://", object(), 7):
        with pytest.raises(TypeError, match="psycopg, PyMySQL or sqlite3"):
            outbox.add(wrong, an_order())
    with pytest.raises(TypeError, match="none of them asynchronous"):
        adapted(psycopg.AsyncConnection.__new__(psycopg.AsyncConnection))


def test_an_asyncio_session_is_told_how(on_postgresql: Backend) -> None:
    import asyncio

    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def go() -> None:
        engine = create_async_engine(on_postgresql.url)
        async with AsyncSession(engine) as session:
            with pytest.raises(TypeError, match=r"session.run_sync\(outbox.add, order\)"):
                outbox.add(session, an_order("o1"))
            await session.run_sync(outbox.add, an_order("o1"))
            await session.rollback()
            await session.run_sync(outbox.add, an_order("o2"))
            await session.commit()
        await engine.dispose()

    asyncio.run(go())
    assert on_postgresql.kept() == ["o2"]


def test_ids_are_compared_by_their_bytes(backend: Backend) -> None:
    """MySQL's collations ignore case: one order would wait for another one."""
    backend.place(an_order("o1"), an_order("O1"))
    with closing(Store(backend.connect())) as store:
        assert [row.order_id for row in store.take(9)] == ["o1", "O1"]


@pytest.mark.parametrize("dialect", list(outbox.Dialect))
def test_the_ddl_has_a_statement_a_line_of_its_list(dialect: str) -> None:
    assert all(outbox.TABLE in each and ";" not in each for each in outbox.ddl(dialect))


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="oracle"):
        outbox.ddl("oracle")
