"""A PostgreSQL cluster of our own, and a standby of it."""

import itertools
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from testkit.patience import PATIENCE
from testkit.servers.process import Server, program


class PostgreSQL(Server):
    """One cluster, as durable as in production unless `durable` is false.

    PostgreSQL refuses to run as root; when we are root it runs as `postgres`, the user that
    Debian's package makes.
    """

    package: ClassVar[str] = "postgresql"
    death_signal: ClassVar[str] = "QUIT"  # has it end its own children, and its shared memory
    user: ClassVar[str | None] = "postgres"

    def __init__(self, *, durable: bool = True, **settings: str | int) -> None:
        """`settings` are lines of postgresql.conf, as in `max_connections=50`."""
        super().__init__()
        self._settings: dict[str, str | int] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 300,
            **({} if durable else {"fsync": "off", "synchronous_commit": "off"}),
            **settings,
        }
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        """The maintenance database, as SQLAlchemy writes it."""
        return self._url_of("postgres")

    def database(self, name: str | None = None, *, template: str | None = None) -> str:
        """Create a database, and return its URL: empty, or as the one behind the template's URL is.

        The template has no connection.
        """
        name = name or f"d{next(self._numbers)}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(urlsplit(template).path[1:]))
            if _version(installed("postgres").parents[1]) >= 15:
                # As earlier versions do: the files, and no page of them in the log.
                statement += sql.SQL(" STRATEGY file_copy")
        self.execute(statement)
        return self._url_of(name)

    def drop_database(self, url: str) -> None:
        """Drop the database behind a URL of `database`, with all connections to it."""
        name = sql.Identifier(urlsplit(url).path[1:])
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))

    def drop_connections(self) -> None:
        """End every client's connection, as an administrator does."""
        self.execute(
            sql.SQL(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
        )

    def execute(self, statement: sql.SQL | sql.Composed) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, and return its rows."""
        with self._connect() as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def commit_with(self, standbys: str) -> None:
        """Have every commit wait for one of these standbys; ``*`` is any, none is an empty text."""
        name = sql.Literal(standbys)
        self.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(name))
        self.execute(sql.SQL("SELECT pg_reload_conf()"))
        # It is in force when the checkpointer knows of it, which hears it from the first process.
        while self.execute(sql.SQL("SHOW synchronous_standby_names")) != [(standbys,)]:
            time.sleep(0.01)
        self.execute(sql.SQL("CHECKPOINT"))

    def commits_waiting(self) -> list[int]:
        """The processes whose commits wait for a standby."""
        waiting = sql.SQL("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return [pid for (pid,) in self.execute(waiting)]

    def restart(self) -> None:
        """Stop it, which ends every connection, and start it again."""
        self.stop()
        self.start()

    def _prepare(self) -> None:
        self._run(
            [
                installed("initdb"),
                *("--pgdata", self._data(), "--username", "postgres", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ]
        )
        lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        with (self._data() / "postgresql.conf").open("a") as configuration:
            configuration.writelines([*lines, f"port = {self.port}\n"])

    def _command(self) -> Sequence[str | Path]:
        return [installed("postgres"), "-D", self._data()]

    def _answers(self) -> bool:
        try:
            self._connect(within=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self, *, within: float = PATIENCE) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            self.url.replace("+psycopg", ""), autocommit=True, connect_timeout=int(within)
        )

    def _data(self) -> Path:
        return self.folder / "data"

    def _url_of(self, database: str) -> str:
        # The URL's limit for connecting wins over the product's 5 s, which a slow machine reaches.
        place = f"127.0.0.1:{self.port}/{database}"
        return f"postgresql+psycopg://postgres@{place}?connect_timeout={PATIENCE:.0f}"


class Standby(PostgreSQL):
    """A copy of a running cluster that follows it until it is promoted.

    Args:
        primary_url: the cluster, perhaps by way of a proxy that can cut the two off.
    """

    def __init__(self, primary_url: str) -> None:
        super().__init__()
        self._primary_url = primary_url

    def promote(self) -> None:
        """Make it a primary, and return when it takes writes."""
        self.execute(sql.SQL("SELECT pg_promote()"))

    def _prepare(self) -> None:
        primary = urlsplit(self._primary_url)
        source = f"host={primary.hostname} port={primary.port} user=postgres"
        self._run(
            [
                installed("pg_basebackup"),
                *("--pgdata", self._data(), "--dbname", source, "--write-recovery-conf"),
                *("--checkpoint", "fast", "--wal-method", "stream", "--no-sync"),
            ]
        )
        with (self._data() / "postgresql.conf").open("a") as configuration:
            configuration.write(f"port = {self.port}\n")


def installed(name: str) -> Path:
    """One of PostgreSQL's programs, of the newest version that is installed."""
    # Debian keeps a folder for each major version, off the PATH.
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(folders, key=lambda folder: _version(folder.parent), reverse=True)
    return program(name, PostgreSQL.package, *newest_first)


def _version(folder: Path) -> int:
    digits = re.match(r"\d+", folder.name)
    return int(digits[0]) if digits else 0
