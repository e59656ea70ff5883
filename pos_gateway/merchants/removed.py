"""Merchants that were removed, by their stamps: workers poll for them as for edits.

Without them a worker would use a removed record until it expires, and the next edit's stamp could be
lower than that of the row that is gone.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select

from pos_gateway.database.schema import merchants, removed_merchants
from pos_gateway.database.upsert import upsert

#: Seconds for which a removal is kept: no process has a record that long.
KEPT = 86_400.0

_removed_at = removed_merchants.c.removed_at


def note_removal(connection: Connection, merchant_id: str, stamp: float) -> None:
    """Record it. The caller has locked the merchants' table."""
    connection.execute(delete(removed_merchants).where(_removed_at < stamp - KEPT))
    upsert(connection, removed_merchants, [{"id": merchant_id, "removed_at": stamp}])


def forget_removals(connection: Connection) -> None:
    """Forget the removals of merchants that exist again."""
    are_there = removed_merchants.c.id.in_(select(merchants.c.id))
    connection.execute(delete(removed_merchants).where(are_there))


def last_removal(connection: Connection) -> float:
    """The highest stamp; 0 if no removal is kept."""
    return connection.scalar(select(func.max(_removed_at))) or 0.0


def removed_since(connection: Connection, stamp: float) -> list[tuple[str, float]]:
    """The merchants that were removed with a higher stamp, each with it."""
    query = select(removed_merchants).where(_removed_at > stamp)
    return [(row.id, row.removed_at) for row in connection.execute(query)]


def removals(connection: Connection, ids: Sequence[str]) -> dict[str, float]:
    """The stamps of those of these merchants whose removal is kept."""
    query = select(removed_merchants).where(removed_merchants.c.id.in_(ids))
    return {row.id: row.removed_at for row in connection.execute(query)}
