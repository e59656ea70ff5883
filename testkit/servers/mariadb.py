"""A MariaDB server of our own, in MySQL's place: what a backend may have its outbox in."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pymysql

from testkit.servers.process import Server, program


class MariaDB(Server):
    """One server, with a password-free root on the loopback address."""

    package: ClassVar[str] = "mariadb-server"
    user: ClassVar[str | None] = "mysql"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def database(self) -> str:
        """Create an empty database, and return its URL."""
        name = f"d{next(self._numbers)}"
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root") as connection:
            connection.cursor().execute(f"create database {name}")
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/{name}"

    def _prepare(self) -> None:
        self._run(
            [
                program("mariadb-install-db", self.package),
                *("--no-defaults", "--auth-root-authentication-method=normal"),
                *("--skip-test-db", "--skip-name-resolve", f"--datadir={self.folder / 'data'}"),
                # A server that starts removes the temporary tables of others in the same folder.
                f"--tmpdir={self.folder}",
            ]
        )

    def _command(self) -> Sequence[str | Path]:
        return [
            program("mariadbd", self.package),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
            *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"),
        ]

    def _answers(self) -> bool:
        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=5
            ).close()
        except pymysql.OperationalError:
            return False
        return True
