"""Finds merchants by a part of their id or provider, and their providers."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine, func, or_, select

from pos_gateway.database.schema import merchants


class FoundMerchant(NamedTuple):
    """A merchant in a search's result."""

    merchant_id: str
    provider: str | None
    adapter: str
    paused: bool


def search(engine: Engine, part: str, most: int = 50, after: str = "") -> Sequence[FoundMerchant]:
    """Merchants whose id or provider contains the text, ignoring case, by id.

    No index serves a part of a text: the database reads all rows, and compares two short columns
    (``docs/architecture.md``). Raises SQLAlchemyError.

    Args:
        part: the text; empty: all merchants.
        most: maximum number.
        after: only merchants after this id, for the next page.
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


def provider_of_each(engine: Engine) -> dict[str, str | None]:
    """Each merchant's provider."""
    with engine.connect() as connection:
        rows = connection.execute(select(merchants.c.id, merchants.c.provider))
        return {row.id: row.provider for row in rows}
