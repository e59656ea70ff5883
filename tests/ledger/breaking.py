"""Connections that break at a chosen statement, before the server has it or before its reply."""

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Engine, text

from tests.ledger.lab import Worker

DISK_FAILS = sqlite3.OperationalError("disk I/O error")


class BreakingStatements:
    """A worker's statements, one of which breaks the connection, once, before or after it."""

    def __init__(self, worker: Worker, statement: str, when: str) -> None:
        self._worker = worker
        self._say: Any = worker._writer.sql
        self._statement, self._when = statement, when
        self.broke = False
        #: Called once the connection is broken.
        self.then: Callable[[], None] = lambda: None
        worker._writer.sql = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        say = getattr(self._say, name)
        if self.broke or name not in (self._statement, "write"):
            return say

        def break_at_it(cursor: Any, *arguments: Any) -> Any:
            if name == "write" and all(row["op"] != self._statement for row in arguments[0]):
                return say(cursor, *arguments)
            if self._when == "after":
                say(cursor, *arguments)
            self.broke = True
            self.then()
            break_connection(self._worker)
            return say(cursor, *arguments)

        return break_at_it


class BreakingCommit:
    """A worker on SQLite, one of whose transactions fails, before or after its commit.

    Args:
        when: ``before`` anything is written, or ``after`` the commit, with only the reply lost.
        left: how many transactions succeed before it.
    """

    def __init__(self, worker: Worker, when: str = "after", left: int = 0) -> None:
        self._left = left
        self._cursor_of = worker._writer._cursor
        self._last_heard = {"before": "begin immediate", "after": "commit"}[when]
        self.broke = False
        self.then: Callable[[], None] = lambda: None
        worker._writer._cursor = self._cursor  # type: ignore[method-assign]

    def _cursor(self) -> Any:
        cursor = self._cursor_of()
        return cursor if self.broke else _Cursor(cursor, self)

    def heard(self, statement: str) -> None:
        if statement == self._last_heard and not self.broke:
            self._left -= 1
            if self._left >= 0:
                return
            self.broke = True
            self.then()
            raise DISK_FAILS


class _Cursor:
    def __init__(self, cursor: Any, breaking: BreakingCommit) -> None:
        self._cursor, self._breaking = cursor, breaking

    def execute(self, statement: str, *arguments: Any) -> Any:
        result = self._cursor.execute(statement, *arguments)
        self._breaking.heard(statement)
        return result


def break_connection(worker: Worker) -> None:
    """The server ends the worker's connection, or its disk fails."""
    if worker._engine.dialect.name == "sqlite":
        raise DISK_FAILS
    terminate(worker._engine, backend(worker))


def terminate(engine: Engine, pid: int) -> None:
    """Terminate a connection on the server, and wait until it has ended."""
    with engine.connect() as connection:
        connection.execute(text("select pg_terminate_backend(:pid, 10000)"), {"pid": pid})


def backend(worker: Worker) -> int:
    """The pid of the server process behind the worker's connection."""
    driver: psycopg.Connection[Any] = worker._writer._connection
    return driver.info.backend_pid
