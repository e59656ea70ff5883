"""The single connection for all writes of a worker's ledger."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.domain.errors import (
    EventIdTaken,
    LedgerLocked,
    LedgerUnavailable,
    LedgerUnreachable,
)
from pos_gateway.ledger.statements import LedgerOnPostgreSQL, LedgerOnSQLite, LedgerStatements
from pos_gateway.runtime.green import green

#: Seconds for a statement: a slower database counts as away.
_STATEMENT_TIMEOUT = 10
#: Seconds for PostgreSQL's answer, which never comes from a peer that has vanished.
_ANSWER = 15.0
#: PostgreSQL's ``lock_not_available``.
_LOCKED = "55P03"
#: Session settings. Every statement finds its few rows by key. PostgreSQL keeps the plan of a
#: frequent statement, and a plan made while the tables are empty would scan the tables as they
#: grow.
_SESSION = (
    "set jit = off; set enable_seqscan = off; set enable_bitmapscan = off; "
    "set enable_hashjoin = off; set enable_mergejoin = off; "
)


class Writer:
    """Executes transactions, for a single caller at a time.

    Uses the driver directly: SQLAlchemy's part in a statement costs as much CPU as the statement
    itself. PostgreSQL commits each statement, SQLite all statements together.

    Args:
        engine: the database.
        session: further PostgreSQL session settings.
        durable: a commit waits for the disk. Otherwise a crash may lose the last commits.
        answer: seconds for PostgreSQL's answer, after which the connection is dropped; None: the
            usual.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        session: str = "",
        durable: bool = True,
        answer: float | None = None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._durable = durable
        self._answer = answer
        self._is_sqlite = engine.dialect.name == "sqlite"
        self.sql: LedgerStatements = LedgerOnSQLite() if self._is_sqlite else LedgerOnPostgreSQL()
        self._connection: Any = None
        self._cursor_of_it: Any = None
        #: Number of connections made.
        self.connects = 0

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, perhaps lost without notice."""
        return self._connection is not None

    def write(self, do: Callable[[Any], Any]) -> Any:
        """Call with a cursor, and commit; returns the call's result.

        Raises:
            LedgerUnavailable: the database is away; the write may or may not have succeeded.
            LedgerUnreachable: the database is away, and nothing was written.
            LedgerLocked: a statement waited for a lock for longer than the session's
                ``lock_timeout``.
            EventIdTaken: nothing was written: an event's id is taken.
        """
        return self._do(do, writes=True)

    def read(self, do: Callable[[Any], Any]) -> Any:
        """Call with a cursor, and return the call's result. Locks nothing.

        Raises:
            LedgerUnavailable: the database is away, or refuses the statement.
        """
        return self._do(do, writes=False)

    def _do(self, do: Callable[[Any], Any], *, writes: bool) -> Any:
        away: type[LedgerUnavailable] = LedgerUnreachable
        is_transaction = writes and self._is_sqlite
        try:
            cursor = self._cursor()
            if is_transaction:
                cursor.execute("begin immediate")
            away = LedgerUnavailable
            result = do(cursor)
            if is_transaction:
                cursor.execute("commit")
            elif not self._is_sqlite and cursor.connection.unconfirmed:
                raise away("the wait for the synchronous standby was cancelled")
        except BaseException as error:
            if isinstance(error, LedgerLocked):
                raise
            if getattr(error, "sqlstate", None) == _LOCKED:  # only this statement has failed
                raise LedgerLocked(str(error).strip()) from error
            # Also if the green thread is killed midway: the connection is out of step.
            self.close()
            if self._is_taken(error):
                raise EventIdTaken(str(error)) from error
            if isinstance(error, SQLAlchemyError) or self._is_away(error):
                why = str(error.__cause__ or error).strip().splitlines() or [""]
                raise away(why[0] or type(error).__name__) from error
            raise
        return result

    def close(self) -> None:
        """Drop the connection; the next write connects again. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._cursor_of_it is not None:
                # SQLite keeps its lock until a failed statement is reset.
                self._cursor_of_it.close()
                self._cursor_of_it = None
            connection.close()

    def _is_taken(self, error: BaseException) -> bool:
        driver: Any = self._engine.dialect.dbapi
        return isinstance(error, driver.IntegrityError) and "event_id" in str(error)

    def _is_away(self, error: BaseException) -> bool:
        driver: Any = self._engine.dialect.dbapi
        # An error that is not about rows is about the database (a standby, a migration's lock, a
        # missing right): waiting loses nothing.
        of_the_rows = (driver.DataError, driver.IntegrityError)
        return isinstance(error, driver.Error) and not isinstance(error, of_the_rows)

    def _cursor(self) -> Any:
        if self._connection is None:
            pooled = self._engine.raw_connection()
            driver: Any = pooled.driver_connection
            # Not for the pool: with these settings each statement would commit.
            pooled.detach()
            self._connection = driver
            self.connects += 1
            if self._is_sqlite:
                driver.isolation_level = None
                driver.execute(f"pragma synchronous = {'full' if self._durable else 'normal'}")
            else:
                _bound_waits(driver, _ANSWER if self._answer is None else self._answer)
                driver.autocommit = True
                settings = f"set statement_timeout = '{_STATEMENT_TIMEOUT}s'; {_SESSION}"
                if not self._durable:
                    settings += "set synchronous_commit = off; "
                driver.execute(settings + self._session)
            self._cursor_of_it = driver.cursor()
        return self._cursor_of_it


def _bound_waits(driver: Any, seconds: float) -> None:
    """Have the connection count as lost once PostgreSQL has not answered for this long."""
    from pos_gateway.database import psycopg_internals  # noqa: PLC0415  (needs psycopg)

    if not green():
        psycopg_internals.wait_at_most(driver, seconds)
        return
    from pos_gateway.ledger.waiting import GreenWait  # noqa: PLC0415  (needs gevent, too)

    psycopg_internals.wait_with(driver, GreenWait(driver.fileno(), seconds).until_ready)
