"""What a worker reads from the database every second or two, beside its orders."""

import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from pos_gateway.ledger.writer import Writer

#: Seconds that ``close`` waits for a query.
_CLOSING = 0.5


class Polls:
    """Reads on one connection that is kept. Safe from threads and green threads.

    A poll through the engine is a check of a pooled connection, a transaction and its rollback, and
    costs twenty times the CPU: polls were half of what an idle worker used.

    SQLite's readers wait for no writer, so they need no thread of their own.

    Args:
        engine: the database.
    """

    def __init__(self, engine: Engine) -> None:
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._writer = Writer(engine)
        self._one_at_a_time = threading.Lock()

    def rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query, with the driver's placeholders in it.

        Raises:
            LedgerUnavailable: the database is away, or refuses the query.
        """
        found: list[tuple[Any, ...]]
        with self._one_at_a_time:
            found = self._writer.read(lambda cursor: cursor.execute(text, values or {}).fetchall())
        return found

    def close(self) -> None:
        """Close the connection, unless a query waits for the database. Idempotent."""
        if self._one_at_a_time.acquire(timeout=_CLOSING):
            try:
                self._writer.close()
            finally:
                self._one_at_a_time.release()
