"""Whether the database still has the schema that this process began on."""

import threading
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy import Engine

from pos_gateway.database.engine import require_current
from pos_gateway.domain.errors import PendingMigration, SchemaTooNew
from pos_gateway.ledger.ledger import Run, here

log = structlog.get_logger(__name__)

#: Seconds between two looks.
LOOK = 2.0


class SchemaWatch:
    """Looks every two seconds, beside the orders. Safe from green threads.

    A lease shows that one table can be written; an order needs them all, and a database that was
    restored, or begun anew, may have none.

    Args:
        engine: the database.
        run: runs what blocks.
    """

    def __init__(self, engine: Engine, *, run: Run = here) -> None:
        self._engine = engine
        self._run: Callable[[Callable[[], Any]], Any] = run
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: Why no order can be delivered on this schema; None: it can.
        self.problem: str | None = "the database's schema was not looked at yet"

    def start(self) -> None:
        """Begin to look. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="schema", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more. Idempotent."""
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
        except Exception as error:  # noqa: BLE001  (whatever it is, it is looked again)
            said = str(error.__cause__ or error).splitlines() or [type(error).__name__]
            return f"the database cannot be asked: {said[0]}"
        return None
