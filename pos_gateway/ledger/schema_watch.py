"""Watches that the database still has a schema that this version can use."""

import threading
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy import Engine

from pos_gateway.database.engine import require_current
from pos_gateway.domain.errors import PendingMigration, SchemaTooNew
from pos_gateway.ledger.ledger import Run, here

log = structlog.get_logger(__name__)

#: Seconds between checks.
LOOK = 2.0


class SchemaWatch:
    """Checks every two seconds, on its own thread. Safe from green threads.

    A lease proves that one table is writable; an order needs all of them, and a restored or
    recreated database may have none.

    Args:
        engine: the database.
        run: runs blocking calls.
    """

    def __init__(self, engine: Engine, *, run: Run = here) -> None:
        self._engine = engine
        self._run: Callable[[Callable[[], Any]], Any] = run
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: Why no order can be delivered on this schema; None: orders can.
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
            before, self.problem = self.problem, self._run(self._look)
            if self.problem not in (None, before):
                log.error("database.schema_unusable", error=self.problem)
            if self._stopping.wait(LOOK):
                return

    def _look(self) -> str | None:
        try:
            require_current(self._engine)
        except (PendingMigration, SchemaTooNew) as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  (reported; the next check may succeed)
            said = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            return f"the database cannot be asked: {said[0]}"
        return None
