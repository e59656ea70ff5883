"""Growing stamps of edits: a slow clock hides no edit.

Workers compare stamps only with stamps. A stamp is the editing machine's time of day, or just above
the highest stamp, if higher.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, false, func, select, text, update

from pos_gateway.runtime.clock import Clock

#: Minimum seconds between a stamp and the highest before.
STEP = 0.001


def next_stamp(
    connection: Connection, column: Column[Any], clock: Clock, *others: Column[Any]
) -> float:
    """A stamp (Unix time) above all in the column and in ``others``.

    Locks the column's table against other edits until the transaction ends, so that stamps become
    visible in order.
    """
    table = column.table
    if connection.dialect.name == "sqlite":  # a writing statement locks the database
        connection.execute(update(table).where(false()).values({column.name: column}))
    else:
        connection.execute(text(f"lock table {table.name} in share row exclusive mode"))
    highest = max(seconds(connection.scalar(select(func.max(each)))) for each in (column, *others))
    return max(clock.now().timestamp(), highest + STEP)


def seconds(stamp: datetime | float | None) -> float:
    """A stamp as Unix time; 0 for None."""
    if not isinstance(stamp, datetime):
        return stamp or 0.0
    # SQLite has no time zones, and returns the written UTC.
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
