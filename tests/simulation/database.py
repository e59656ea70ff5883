"""SQLite in memory, behind a driver that may be unavailable, or lose the reply to a commit."""

import itertools
import sqlite3
from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any

from sqlalchemy import NullPool, create_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from pos_gateway.database.schema import metadata
from tests.simulation.scheduler import Scheduler

_numbers = itertools.count()


class Database:
    """One database that every worker writes to; a transaction happens at one moment."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._uri = f"file:simulation-{next(_numbers)}?mode=memory&cache=shared"
        #: While this is in the future, half of all requests fail.
        self.away_until = -inf
        self._is_open = True
        self._connections: list[sqlite3.Connection] = []
        self._kept = sqlite3.connect(self._uri, uri=True)
        self._kept.executescript(_schema())
        self.engine = create_engine("sqlite://", creator=self._connect, poolclass=NullPool)

    def rows(self, query: str, *parameters: object) -> list[Any]:
        """The rows, for invariants and operators."""
        return self._kept.execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close all connections, and release the run: a killed one keeps it alive in SQLAlchemy."""
        self._kept.close()
        for connection in self._connections:
            connection.close()
        self._is_open = False
        del self._scheduler

    def fails(self) -> bool:
        """Whether the current request fails."""
        away = self._scheduler.time < self.away_until
        return away and self._scheduler.random.random() < 0.5

    def point(self, name: str) -> None:
        self._scheduler.point(name)

    def say(self, what: str) -> None:
        self._scheduler.say(what)

    def commit(self, commit: Callable[[], Any]) -> Any:
        """Commit, or fail, or commit without a reply."""
        if self.fails():
            if self.fails():
                commit()
                self.say("DATABASE commits, and its answer is lost")
            else:
                self.say("DATABASE does not commit")
            raise sqlite3.OperationalError("the connection was lost")
        result = commit()
        self.point("committed")
        return result

    def _connect(self) -> Any:
        database = self

        class Cursor(sqlite3.Cursor):
            def execute(self, statement: str, *parameters: Any) -> Any:
                is_first = statement.startswith(("begin", "SELECT"))
                is_first = is_first and not self.connection.in_transaction
                if is_first:
                    database.point("database")
                if is_first and database.fails():
                    database.say("DATABASE refuses")
                    raise sqlite3.OperationalError("the database is away")
                if statement == "commit":
                    return database.commit(lambda: super(Cursor, self).execute(statement))
                return super().execute(statement, *parameters)

        class Connection(sqlite3.Connection):
            def cursor(self, *_: Any, **__: Any) -> Any:
                return super().cursor(Cursor)

            def rollback(self) -> None:
                if database._is_open:  # else the garbage collector calls it, in any thread
                    super().rollback()

            def close(self) -> None:
                if database._is_open:
                    super().close()

            def commit(self) -> None:
                if self.in_transaction:
                    database.commit(super().commit)

        connection = sqlite3.connect(self._uri, uri=True, factory=Connection)
        self._connections.append(connection)
        return connection


@cache
def _schema() -> str:
    dialect = sqlite.dialect()
    statements: list[Any] = []
    for table in metadata.sorted_tables:
        statements += [CreateTable(table), *map(CreateIndex, table.indexes)]
    return ";".join(str(each.compile(dialect=dialect)) for each in statements)
