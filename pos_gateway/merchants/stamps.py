"""When a row was edited, as a stamp that only grows: whose clock is behind hides no edit.

Workers compare stamps with stamps alone. A stamp is the time of day of the machine that edits, or
just above the highest one there is, if that is later.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, false, func, select, text, update

from pos_gateway.runtime.clock import Clock

#: Seconds by which a stamp is above the highest before it, at least.
STEP = 0.001


def next_stamp(connection: Connection, column: Column[Any], clock: Clock) -> float:
    """A stamp above all that are in the column (Unix time).

    Nobody else edits the table until the transaction ends: stamps become visible in their order.
    """
    table = column.table
    if connection.dialect.name == "sqlite":  # a statement that writes has the database to itself
        connection.execute(update(table).where(false()).values({column.name: column}))
    else:
        connection.execute(text(f"lock table {table.name} in share row exclusive mode"))
    highest = seconds(connection.scalar(select(func.max(column))))
    return max(clock.now().timestamp(), highest + STEP)


def seconds(stamp: datetime | float | None) -> float:
    """A stamp as Unix time; before all others if there is none."""
    if not isinstance(stamp, datetime):
        return stamp or 0.0
    # SQLite has no time zones: what it gives back is UTC, as it was written.
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
