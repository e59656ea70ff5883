"""A worker's reads from the database every second or two, beside its orders."""

import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime.green import yield_control

#: Rows read between two yields: some two milliseconds.
_YIELD_EVERY = 1000
#: Seconds for ``close`` to wait for a query.
_CLOSING = 0.5


class Polls:
    """Reads on a permanent connection. Safe from threads and green threads.

    A poll through the engine checks a pooled connection, and begins and rolls back a transaction,
    at twenty times the CPU: polls were half of an idle worker's use.

    SQLite's readers wait for no writer, and need no thread of their own.

    Args:
        engine: the database.
    """

    def __init__(self, engine: Engine) -> None:
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._writer = Writer(engine)
        self._one_at_a_time = threading.Lock()

    def rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query with the driver's placeholders.

        Raises:
            LedgerUnavailable: the database is away, or refuses the query.
        """
        found: list[tuple[Any, ...]] = []

        def read(cursor: Any) -> None:
            cursor.execute(text, values or {})
            while some := cursor.fetchmany(_YIELD_EVERY):
                found.extend(some)
                if len(some) == _YIELD_EVERY:
                    yield_control()

        with self._one_at_a_time:
            self._writer.read(read)
        return found

    def close(self) -> None:
        """Close the connection, unless a query waits for the database. Idempotent."""
        if self._one_at_a_time.acquire(timeout=_CLOSING):
            try:
                self._writer.close()
            finally:
                self._one_at_a_time.release()
