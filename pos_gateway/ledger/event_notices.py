"""Notices by which a process wakes the events' leader elsewhere (PostgreSQL's NOTIFY).

Not each event has one: PostgreSQL commits them one after the other, whatever they are about. The
leader polls often after an event, and seldom only once there were none for a while. A notice that
is lost costs what a seldom poll takes.
"""

from math import inf
from typing import Any

from sqlalchemy import Engine

from pos_gateway.runtime.clock import Clock

#: PostgreSQL's channel.
CHANNEL = "pos_gateway_events"
# Its commit waits for those of all who send notifications at that moment, in any of the server's
# databases, and for the standbys that these wait for.
_NOTIFY = """
with briefly as materialized (select set_config('lock_timeout', '50ms', true))
select pg_notify(%s, '') from briefly"""
#: Seconds without an event of this process's until one needs a notice. The leader's polls are
#: nearer to each other for so long after an event (``events.pipeline.POLL``).
SILENCE = 0.2
#: Seconds without notices after one that PostgreSQL has refused.
AFTER_REFUSAL = 10.0


class EventNotices:
    """Sends this process's notices. For one caller at a time. With SQLite the leader polls alone."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._is_sqlite = engine.dialect.name == "sqlite"
        self._clock = clock
        self._last = self._next = -inf

    def recorded(self, cursor: Any) -> None:
        """Send a notice of events that are committed, if one is due.

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
        # The server has said so: its queue is full, or others take too long. After any other error the
        # connection is out of step.
        if getattr(error, "sqlstate", None) is None:
            raise
        return False
    return True
