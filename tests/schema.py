"""A database's tables, copied from one that was migrated: a twentieth of the migrations' CPU.

``tests/ledger/test_migrations.py`` compares the copies with what the migrations make.
"""

import sqlite3
import subprocess
from functools import cache
from typing import Any

import psycopg
from sqlalchemy import Engine

from pos_gateway.database.engine import open_database, upgrade
from testkit.servers.postgresql import installed


def make_tables(engine: Engine) -> None:
    """Make this version's tables in an empty database, as ``upgrade`` does; other databases migrate."""
    copied = {"sqlite": _copied_to_sqlite, "postgresql": _copied_to_postgresql}
    if not copied[engine.dialect.name](engine):
        upgrade(engine)


def _copied_to_sqlite(engine: Engine) -> bool:
    connection = engine.raw_connection()
    try:
        target: Any = connection.driver_connection
        if target.execute("select count(*) from sqlite_master").fetchone() != (0,):
            return False
        _sqlite().backup(target)
        return True
    finally:
        connection.close()


@cache
def _sqlite() -> sqlite3.Connection:
    """A migrated database in memory."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    engine = open_database("sqlite://")
    upgrade(engine)
    migrated = engine.raw_connection()
    migrated.driver_connection.backup(connection)  # type: ignore[union-attr]
    migrated.close()
    engine.dispose()
    return connection


#: Statements that make the tables, of the first database that was migrated in this process.
_statements: list[str] = []


def _copied_to_postgresql(engine: Engine) -> bool:
    if engine.url.query:  # several hosts, in SQLAlchemy's words
        return False
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    if not _statements:
        upgrade(engine)
        _statements.append(dump(url))
        return True
    try:
        with psycopg.connect(url) as connection:
            connection.execute(_statements[0])  # type: ignore[call-overload]
    except psycopg.errors.DuplicateTable:
        return False
    return True


def dump(url: str) -> str:
    """The statements that make a PostgreSQL database anew."""
    command = [installed("pg_dump"), "--no-owner", "--no-privileges", "--inserts", "--dbname", url]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    # Neither remarks nor psql's own commands, of which a pair has a random key.
    return "\n".join(each for each in lines if not each.startswith(("--", "\\")))
