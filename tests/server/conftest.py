"""A server on a broker and a database of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.servers.rabbitmq import RabbitMQ
from tests.server.lab import Server, migrated, serving


@pytest.fixture(scope="module")
def module_url(rabbitmq: RabbitMQ) -> Iterator[str]:
    """A virtual host for a file's tests."""
    rabbitmq.start()
    url = rabbitmq.add_vhost()
    yield url
    rabbitmq.delete_vhost(url)


@pytest.fixture(scope="module")
def module_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SQLite database with the schema for a file's tests."""
    return migrated(f"sqlite:///{tmp_path_factory.mktemp('server')}/gateway.db")


@pytest.fixture(scope="module")
def server(
    module_url: str, module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that a file's tests share."""
    log: Path = tmp_path_factory.mktemp("log") / "server.log"
    with serving(module_url, module_database, log) as server:
        yield server


@pytest.fixture
def order_id() -> str:
    """An id that no other test has."""
    return f"o-{os.urandom(6).hex()}"
