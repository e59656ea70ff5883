"""Notices to wake the events' leader in its process (PostgreSQL's NOTIFY).

Not every event has a notice: PostgreSQL commits all notices in turn. The leader polls
often after an event, and seldom after a while without events. A lost notice delays events until the
next seldom poll.
"""

from math import inf
from typing import Any

from sqlalchemy import Engine

from pos_gateway.runtime.clock import Clock

#: PostgreSQL's channel.
CHANNEL = "pos_gateway_events"
# The commit waits for all who send notifications at the moment, in any of the server's databases,
# and for their standbys.
_NOTIFY = """
with briefly as materialized (select set_config('lock_timeout', '50ms', true))
select pg_notify(%s, '') from briefly"""
#: Seconds without events of this process after which an event needs a notice. For as long after an
#: event, the leader polls often (``events.pipeline.POLL``).
SILENCE = 0.2
#: Seconds without notices after PostgreSQL refused a notice.
AFTER_REFUSAL = 10.0


class EventNotices:
    """Sends a process's notices, none with SQLite. For a single caller at a time."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._clock = clock
        self._last = self._next = -inf

    def recorded(self, cursor: Any) -> None:
        """Send a notice of committed events, if due.

        Raises the driver's error if the connection is lost, not if the server refuses the notice.
        """
        last, self._last = self._last, self._clock.monotonic()
        is_due = self._last - last >= SILENCE and self._last >= self._next
        if is_due and not self._is_sqlite and not _notified(cursor):
            self._next = self._last + AFTER_REFUSAL


def _notified(cursor: Any) -> bool:
    """Whether the server has taken a notice."""
    try:
        cursor.execute(_NOTIFY, (CHANNEL,))
    except Exception as error:
        # The server has refused: the queue is full, or commits take too long. After any other
        # error the connection is out of step.
        if getattr(error, "sqlstate", None) is None:
            raise
        return False
    return True
