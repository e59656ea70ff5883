"""Connections to PostgreSQL with commits that count only once on the synchronous standby.

PostgreSQL ends a cancelled wait for the standby (``pg_cancel_backend``, a failover tool) with a
warning, and reports success, though a failover may undo the commit.
"""

from typing import Any

import psycopg
from psycopg.errors import Diagnostic

#: PostgreSQL's function for the wait: unlike messages, not translated.
_WAIT_FOR_STANDBY = "SyncRepWaitForLSN"


class ConfirmedConnection(psycopg.Connection[Any]):
    """Notices the warning of a cancelled wait, an error after ``commit``."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Whether a wait since the last commit was cancelled (autocommit).
        self.unconfirmed = False
        self.add_notice_handler(self._noticed)

    def commit(self) -> None:
        """Commit. Also raises OperationalError if the standby may lack the commit."""
        self.unconfirmed = False
        super().commit()
        if self.unconfirmed:
            raise psycopg.OperationalError(
                "the wait for the synchronous standby was cancelled, and a failover may undo what "
                "was written: run it again"
            )

    def _noticed(self, notice: Diagnostic) -> None:
        self.unconfirmed |= notice.source_function == _WAIT_FOR_STANDBY
