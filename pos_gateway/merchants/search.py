"""Finds merchants by a part of their id or provider."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine, func, or_, select

from pos_gateway.database.schema import merchants


class FoundMerchant(NamedTuple):
    """A merchant that was found."""

    merchant_id: str
    provider: str | None
    adapter: str
    paused: bool


def search(engine: Engine, part: str, most: int = 50, after: str = "") -> Sequence[FoundMerchant]:
    """Merchants whose id or provider contains this, in upper or lower case, by id.

    No index serves a part of a text: all rows are read, of which the database compares two short
    columns (``docs/architecture.md``). Raises SQLAlchemyError.

    Args:
        part: what to look for; empty: all.
        most: how many at most.
        after: those after this id, for the next page.
    """
    columns = (merchants.c.id, merchants.c.provider, merchants.c.adapter, merchants.c.paused)
    query = select(*columns).where(merchants.c.id > after)
    if part:
        contains = (
            func.lower(each).contains(part.lower(), autoescape=True)
            for each in (merchants.c.id, merchants.c.provider)
        )
        query = query.where(or_(*contains))
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(merchants.c.id).limit(most)).all()
    return [FoundMerchant(*row) for row in rows]
