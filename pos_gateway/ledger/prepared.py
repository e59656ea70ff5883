"""A prepared PostgreSQL statement: a round trip for a third of a cursor's CPU.

A cursor looks up its statement, adapts parameters and builds tuples on every call. The statement
that every order writes skips that; both go through psycopg's libpq.
"""

from typing import Any

from psycopg import Connection, generators
from psycopg.errors import InternalError, error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult


class Prepared:
    """A statement with one parameter that returns integers. For one caller at a time."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name.encode(), text.encode()
        self._known_to: Connection[Any] | None = None

    def execute(self, connection: Connection[Any], parameter: bytes) -> list[int]:
        """Return the first column. Raises psycopg.Error."""
        if connection is not self._known_to:
            connection.pgconn.send_prepare(self._name, self._text)
            _answer(connection)
            self._known_to = connection
        connection.pgconn.send_query_prepared(self._name, [parameter])
        answer = _answer(connection)
        return [int(answer.get_value(row, 0) or 0) for row in range(answer.ntuples)]


def _answer(connection: Connection[Any]) -> PGresult:
    results: list[PGresult] = connection.wait(generators.execute(connection.pgconn))
    if not results:
        raise InternalError("PostgreSQL has not answered a statement")
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
    return results[-1]
