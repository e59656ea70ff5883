"""Connections to PostgreSQL whose commits count only if the synchronous standby has them.

PostgreSQL ends a cancelled wait for the standby (``pg_cancel_backend``, a failover tool) with a
warning, and reports success, though a failover may undo the commit.
"""

from typing import Any

import psycopg
from psycopg.errors import Diagnostic

#: PostgreSQL's function that waits for the standby: unlike messages, not translated.
_WAIT_FOR_STANDBY = "SyncRepWaitForLSN"


class ConfirmedConnection(psycopg.Connection[Any]):
    """Notices such a warning; after ``commit`` it is an error."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Whether the wait of the last commit, or of one since, was cancelled (autocommit).
        self.unconfirmed = False
        self.add_notice_handler(self._noticed)

    def commit(self) -> None:
        """Commit. Raises OperationalError, too, if it is done and the standby may lack it."""
        self.unconfirmed = False
        super().commit()
        if self.unconfirmed:
            raise psycopg.OperationalError(
                "the wait for the synchronous standby was cancelled, and a failover may undo what "
                "was written: run it again"
            )

    def _noticed(self, notice: Diagnostic) -> None:
        self.unconfirmed |= notice.source_function == _WAIT_FOR_STANDBY
