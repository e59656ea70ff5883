"""A database's tables, copied from one that was migrated: a twentieth of the migrations' CPU.

``tests/ledger/test_migrations.py`` compares the copies with what the migrations make.
"""

import os
import sqlite3
import subprocess
from functools import cache
from typing import Any

import psycopg
from sqlalchemy import URL, Engine

from pos_gateway.database.engine import open_database, upgrade
from testkit.servers.postgresql import PostgreSQL, installed


def make_tables(engine: Engine) -> None:
    """Make this version's tables in an empty database, as ``upgrade`` does; other databases migrate."""
    copied = {"sqlite": _copied_to_sqlite, "postgresql": _copied_to_postgresql}
    if not copied[engine.dialect.name](engine):
        upgrade(engine)


def database_with_tables(server: PostgreSQL) -> str:
    """The URL of a new database with this version's tables: a copy of one, which takes no statement."""
    if server not in _templates:
        _templates[server] = server.database(f"with_tables_{os.getpid()}")
        engine = open_database(_templates[server])
        make_tables(engine)
        engine.dispose()
    return server.database(template=_templates[server])


#: A server's database that has the tables, and no connection.
_templates: dict[PostgreSQL, str] = {}


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


def _copied_to_postgresql(engine: Engine) -> bool:
    if "host" in engine.url.query:  # several hosts, in SQLAlchemy's words
        return False
    try:
        with psycopg.connect(_plain(engine.url)) as connection:
            connection.execute(_statements(engine.url))
    except psycopg.errors.DuplicateTable:
        return False
    return True


#: Statements that make the tables. They are of any server.
_made: list[str] = []


def _statements(server: URL) -> str:
    """Of a database that is made for this: another one may have rows."""
    if not _made:
        name = f"tables_{os.getpid()}"
        own = server.set(database=name)
        with psycopg.connect(_plain(server), autocommit=True) as connection:
            connection.execute(f"create database {name}")
            engine = open_database(own.render_as_string(hide_password=False))
            upgrade(engine)
            engine.dispose()
            _made.append(dump(_plain(own)))
            connection.execute(f"drop database {name}")
    return _made[0]


def _plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def dump(url: str) -> str:
    """The statements that make a PostgreSQL database anew."""
    command = [installed("pg_dump"), "--no-owner", "--no-privileges", "--inserts", "--dbname", url]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    # Neither remarks nor psql's own commands, of which a pair has a random key.
    return "\n".join(each for each in lines if not each.startswith(("--", "\\")))
