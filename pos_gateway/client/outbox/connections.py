"""The backend's connections behind one interface: SQLAlchemy's, Django's, and plain DB-API ones.

No library is imported here: a connection's own class says which it is, and a backend has installed
what it uses.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import iscoroutinefunction
from itertools import count
from typing import Any, Protocol

from pos_gateway.client.outbox.table import Dialect
from pos_gateway.domain.errors import NotInTransaction

#: Drivers by the first part of their modules' names.
DRIVERS = {
    "psycopg": Dialect.POSTGRESQL,
    "psycopg2": Dialect.POSTGRESQL,
    "pymysql": Dialect.MYSQL,
    "MySQLdb": Dialect.MYSQL,
    "sqlite3": Dialect.SQLITE,
}
#: Those that say whether a transaction has begun.
_SAYING = [name for name in DRIVERS if name != "MySQLdb"]
#: Both drivers of PostgreSQL call it so: no transaction has begun.
_IDLE = 0
#: MySQL's flag of a connection whose transaction has begun.
_IN_TRANSACTION = 1


class OutboxConnection(Protocol):
    """What the outbox needs of a connection. Parameters are ``?`` in every statement."""

    dialect: Dialect

    def require_transaction(self) -> None:
        """Raises NotInTransaction if a statement would be committed by itself."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; its rows, if it has any."""


def adapted(connection: Any) -> OutboxConnection:
    """The backend's connection, or its SQLAlchemy session, as an ``OutboxConnection``.

    Raises:
        TypeError: it is none that the outbox knows.
    """
    if _is_of(connection, "sqlalchemy"):
        return _sqlalchemy(connection)
    if hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor"):
        return _DjangoConnection(connection)
    return PlainConnection(connection)


class PlainConnection:
    """A DB-API connection."""

    def __init__(self, connection: Any) -> None:
        # SQLAlchemy's pool wraps the driver's connection.
        self.driver = getattr(connection, "driver_connection", None) or connection
        self.connection = connection
        name = next((name for name in DRIVERS if _is_of(self.driver, name)), None)
        if name is None or iscoroutinefunction(getattr(self.driver, "commit", None)):
            raise TypeError(_unknown(connection))
        self.name = name
        self.dialect = DRIVERS[name]
        self._mark = "?" if self.dialect is Dialect.SQLITE else "%s"

    def require_transaction(self) -> None:
        if _commits_by_itself(self.name, self.driver):
            raise NotInTransaction(_AUTOCOMMIT)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        try:
            if values:
                cursor.execute(statement.replace("?", self._mark), tuple(values))
            else:
                cursor.execute(statement)
            return _rows(cursor.fetchall()) if cursor.description else []
        finally:
            with suppress(Exception):  # the first error counts
                cursor.close()


class _DjangoConnection:
    """``django.db.connection``, or another of ``django.db.connections``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        try:
            self.dialect = Dialect(connection.vendor)
        except ValueError:
            raise TypeError(_unknown(connection)) from None

    def require_transaction(self) -> None:
        if not self._connection.in_atomic_block and self._connection.get_autocommit():
            raise NotInTransaction(_AUTOCOMMIT)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if values:
            # Django has %s for every database, and so reads % as the beginning of one.
            statement = statement.replace("%", "%%").replace("?", "%s")
        with self._connection.cursor() as cursor:
            cursor.execute(statement, list(values) or None)
            return _rows(cursor.fetchall()) if cursor.description else []


class _SqlAlchemyConnection:
    """``sqlalchemy.Connection``, as an asyncio session's ``run_sync`` has it, too."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        name = connection.dialect.name
        try:
            self.dialect = Dialect.MYSQL if name == "mariadb" else Dialect(name)
        except ValueError:
            raise TypeError(_unknown(connection)) from None

    def require_transaction(self) -> None:
        options = self._connection.get_execution_options()
        driver = self._connection.connection.driver_connection
        name = next((name for name in _SAYING if _is_of(driver, name)), None)
        if options.get("isolation_level") == "AUTOCOMMIT" or (
            self._is_in_autocommit(driver) if name is None else _commits_by_itself(name, driver)
        ):
            raise NotInTransaction(_AUTOCOMMIT)

    def _is_in_autocommit(self, driver: Any) -> bool:
        """As SQLAlchemy knows it, of asyncpg, say; aiosqlite says whether a transaction has begun."""
        if getattr(driver, "in_transaction", False) is True:
            return False
        connection = self._connection.connection.dbapi_connection
        detect = getattr(self._connection.dialect, "detect_autocommit_setting", None)
        with suppress(NotImplementedError):
            if detect is not None:  # SQLAlchemy 2.0.43
                return bool(detect(connection))
        return getattr(connection, "autocommit", False) is True

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        numbers = count()
        parts = statement.split("?")
        named = parts[0] + "".join(f":v{next(numbers)}{part}" for part in parts[1:])
        text = sys.modules["sqlalchemy"].text(named)
        result = self._connection.execute(text, {f"v{n}": each for n, each in enumerate(values)})
        return [tuple(row) for row in result.fetchall()] if result.returns_rows else []


def _sqlalchemy(connection: Any) -> OutboxConnection:
    if hasattr(connection, "run_sync"):
        raise TypeError(
            f"connection: is SQLAlchemy's {type(connection).__name__}; inside a coroutine: "
            "await session.run_sync(outbox.add, order)"
        )
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):  # a session
        return _SqlAlchemyConnection(connection.connection())
    if hasattr(connection, "get_execution_options"):
        return _SqlAlchemyConnection(connection)
    return PlainConnection(connection)  # Engine.raw_connection's


def _commits_by_itself(name: str, driver: Any) -> bool:
    """Whether the driver's connection commits the next statement at once."""
    match name:
        case "sqlite3":
            if driver.in_transaction:
                return False
            # Since Python 3.12 a connection may have ``autocommit``: True, False, or as before.
            mode = getattr(driver, "autocommit", -1)
            return mode is True or (mode == -1 and driver.isolation_level is None)
        case "psycopg" | "psycopg2":
            return bool(driver.autocommit) and int(driver.info.transaction_status) == _IDLE
        case "pymysql":
            return bool(driver.get_autocommit()) and not driver.server_status & _IN_TRANSACTION
        case _:  # it says nothing of a transaction that has begun
            return False


def _rows(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows as tuples: a backend's cursors may return dictionaries."""
    return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]


def _is_of(value: object, package: str) -> bool:
    """Whether its class, or one that it derives from, is this package's."""
    return any(each.__module__.partition(".")[0] == package for each in type(value).__mro__)


def _unknown(connection: object) -> str:
    kind = type(connection)
    return (
        f"connection: is a {kind.__module__}.{kind.__qualname__}; give an SQLAlchemy connection or "
        "session, a Django connection, or a connection of psycopg, PyMySQL or sqlite3, none of them "
        "asynchronous"
    )


_AUTOCOMMIT = (
    "connection: is in autocommit, so the order would be stored whether the backend's other writes "
    "are or not; begin a transaction first (Django: transaction.atomic())"
)
