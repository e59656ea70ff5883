"""Lets one relay at a time work on an SQLite outbox.

The lock is SQLite's own, on a second file beside the backend's: the system releases it when the
process ends, however it ends, and it keeps no backend from writing.
"""

import sqlite3
from contextlib import suppress
from typing import Any

from pos_gateway.client.outbox.table import TABLE


class SoleRelay:
    """The lock of the one relay that works. For the thread that made it."""

    def __init__(self, connection: Any) -> None:
        """For the database of this connection."""
        file = next((row[2] for row in connection.execute("pragma database_list")), "")
        self._lock: sqlite3.Connection | None = None
        if file:  # one in memory is this process's alone
            self._lock = sqlite3.connect(f"{file}-{TABLE}", timeout=0, isolation_level=None)

    def take(self) -> bool:
        """Whether this relay may work now."""
        if self._lock is None or self._lock.in_transaction:
            return True
        with suppress(sqlite3.OperationalError):  # another relay has it
            self._lock.execute("begin exclusive")
        return self._lock.in_transaction

    def close(self) -> None:
        """Release it."""
        if self._lock is not None:
            self._lock.close()
