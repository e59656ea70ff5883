"""Removed merchants, with stamps: workers poll for removals as for edits.

Without removals, a worker would use a removed record until expiry, and the next edit's stamp
could be lower than the removed row's.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, func, select

from pos_gateway.database.schema import merchants, removed_merchants
from pos_gateway.database.upsert import upsert

#: Seconds to keep a removal: no process has a record for as long.
KEPT = 86_400.0

_removed_at = removed_merchants.c.removed_at


def note_removal(connection: Connection, merchant_id: str, stamp: float) -> None:
    """Record a removal. The caller has locked the merchants' table."""
    connection.execute(delete(removed_merchants).where(_removed_at < stamp - KEPT))
    upsert(connection, removed_merchants, [{"id": merchant_id, "removed_at": stamp}])


def forget_removals(connection: Connection) -> None:
    """Forget the removals of merchants that exist again."""
    are_there = removed_merchants.c.id.in_(select(merchants.c.id))
    connection.execute(delete(removed_merchants).where(are_there))


def last_removal(connection: Connection) -> float:
    """The highest stamp; 0 without a removal."""
    return connection.scalar(select(func.max(_removed_at))) or 0.0


def removed_since(connection: Connection, stamp: float) -> list[tuple[str, float]]:
    """Merchants removed with a higher stamp, each with the stamp."""
    query = select(removed_merchants).where(_removed_at > stamp)
    return [(row.id, row.removed_at) for row in connection.execute(query)]


def removals(connection: Connection, ids: Sequence[str]) -> dict[str, float]:
    """The stamps of these merchants' removals, where kept."""
    query = select(removed_merchants).where(removed_merchants.c.id.in_(ids))
    return {row.id: row.removed_at for row in connection.execute(query)}
