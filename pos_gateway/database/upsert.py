"""Upserts rows in a single statement: no reader misses a row."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert or replace the rows, each with all of the table's columns, in key order.

    The order keeps two writers of the same rows from deadlocking.
    """
    if not rows:
        return
    make = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    key = [column.name for column in table.primary_key]
    new = make(table)
    values = {each.name: new.excluded[each.name] for each in table.c if each.name not in key}
    in_order = sorted(rows, key=lambda row: [str(row[name]) for name in key])
    connection.execute(new.on_conflict_do_update(index_elements=key, set_=values), in_order)
