"""Removes old rows a batch per transaction."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Engine, Table, delete, select, tuple_
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.engine import changing
from pos_gateway.domain.errors import LedgerUnavailable


def remove_old(
    engine: Engine,
    table: Table,
    key: Sequence[Column[Any]],
    old: ColumnElement[bool],
    oldest_first: Column[Any],
    batch: int,
) -> Iterator[int]:
    """Remove old rows, ``batch`` at a time, except locked rows; yields the number of each batch.

    Raises:
        LedgerUnavailable: the database is away.
    """
    try:
        while True:
            with changing(engine) as connection:
                query = select(*key).where(old).order_by(oldest_first).limit(batch)
                free = query.with_for_update(skip_locked=True)
                rows = [tuple(row) for row in connection.execute(free)]
                if rows:
                    connection.execute(delete(table).where(tuple_(*key).in_(rows), old))
            if not rows:
                return
            yield len(rows)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(f"the table {table.name}: {error}") from error
