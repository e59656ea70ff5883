"""The servers that a worker is run against."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ


@dataclass(frozen=True, slots=True)
class Servers:
    """What is shared by all runs of a benchmark; each has a virtual host and a database of its own.

    SQLite writes on a native thread of the worker's own process, and so on its core; PostgreSQL is
    somewhere else, in production too.
    """

    rabbitmq: RabbitMQ
    #: None: a SQLite file.
    postgresql: PostgreSQL | None = None

    @contextmanager
    def vhost(self) -> Iterator[str]:
        """The URL of an empty virtual host, gone at the end of the block."""
        url = self.rabbitmq.add_vhost()
        try:
            yield url
        finally:
            self.rabbitmq.delete_vhost(url)

    @contextmanager
    def database(self, folder: Path) -> Iterator[str]:
        """The URL of an empty database, gone at the end of the block; a file is in the folder."""
        if self.postgresql is None:
            yield f"sqlite:///{folder / 'pos_gateway.db'}"
            return
        url = self.postgresql.database()
        try:
            yield url
        finally:
            self.postgresql.drop_database(url)
