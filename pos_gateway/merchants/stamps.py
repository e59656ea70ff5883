"""Edit stamps that only grow, so that a slow clock hides no edit.

Workers compare stamps only with stamps. A stamp is the editing machine's time of day, or just above
the highest stamp, if that is later.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, false, func, select, text, update

from pos_gateway.runtime.clock import Clock

#: Minimum seconds by which a stamp is above the highest before it.
STEP = 0.001


def next_stamp(
    connection: Connection, column: Column[Any], clock: Clock, *others: Column[Any]
) -> float:
    """A stamp above all in the column, and in these other ones (Unix time).

    It locks the column's table against other edits until the transaction ends, so that stamps become visible
    in order.
    """
    table = column.table
    if connection.dialect.name == "sqlite":  # a writing statement locks the database
        connection.execute(update(table).where(false()).values({column.name: column}))
    else:
        connection.execute(text(f"lock table {table.name} in share row exclusive mode"))
    highest = max(seconds(connection.scalar(select(func.max(each)))) for each in (column, *others))
    return max(clock.now().timestamp(), highest + STEP)


def seconds(stamp: datetime | float | None) -> float:
    """A stamp as Unix time; 0 if there is none."""
    if not isinstance(stamp, datetime):
        return stamp or 0.0
    # SQLite has no time zones: it returns UTC, as it was written.
    return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
