"""Watches the schema of the database: this version must be able to use the schema."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from sqlalchemy import Engine

from pos_gateway.database.engine import require_current, revision_and_tables
from pos_gateway.database.migrations import REVISIONS
from pos_gateway.domain.errors import LedgerUnavailable, PendingMigration, SchemaTooNew
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.polls import Polls

log = structlog.get_logger(__name__)

#: Seconds between checks.
LOOK = 2.0


class SchemaWatch:
    """Checks every two seconds, on its own thread. Safe from green threads.

    A lease proves a single table writable; an order needs all tables, and a restored or
    recreated database may have none.

    Args:
        engine: the database.
        polls: the same database.
        run: runs blocking calls.
    """

    def __init__(self, engine: Engine, polls: Polls, *, run: Run = here) -> None:
        self._engine, self._polls = engine, polls
        self._run: Callable[[Callable[[], Any]], Any] = run
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: The obstacle to any delivery on this schema, if any.
        self.problem: str | None = "the database's schema was not looked at yet"

    def start(self) -> None:
        """Start the watch. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="schema", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the watch. Idempotent."""
        self._stopping.set()

    def _watch(self) -> None:
        while True:
            self.look()
            if self._stopping.wait(LOOK):
                return

    def look(self) -> None:
        """Check the schema."""
        before = self.problem
        self.problem = None if self._is_current() else self._run(self._look)
        if self.problem not in (None, before):
            log.error("database.schema_unusable", error=self.problem)

    def _is_current(self) -> bool:
        """Whether the schema is certainly current; else ``_look`` finds the problem."""
        with suppress(LedgerUnavailable):
            return self._polls.rows(revision_and_tables()) == [(REVISIONS[-1],)]
        return False

    def _look(self) -> str | None:
        try:
            require_current(self._engine)
        except (PendingMigration, SchemaTooNew) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (reported; the next check may succeed)
            said = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            return f"the database cannot be asked: {said[0]}"
        return None
