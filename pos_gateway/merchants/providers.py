"""Which provider each merchant belongs to."""

from sqlalchemy import Engine, select

from pos_gateway.database.schema import merchants


def provider_of_each(engine: Engine) -> dict[str, str | None]:
    """The providers by merchant."""
    with engine.connect() as connection:
        rows = connection.execute(select(merchants.c.id, merchants.c.provider))
        return {row.id: row.provider for row in rows}
