"""A PostgreSQL whose connections go silent: what is in between acknowledges, and no answer comes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pos_gateway.database.engine import open_database
from pos_gateway.tokens.store import TokenStore
from testkit.servers.proxy import Proxy
from tests.server.lab import SOON, Server, migrated, order, serving


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(migrated(postgres_url)) as proxy:
        yield proxy


@pytest.fixture
def server(broker_url: str, proxy: Proxy, tmp_path: Path) -> Iterator[Server]:
    """A server with idle connections to the database."""
    with serving(broker_url, proxy.url, tmp_path / "log") as server:
        with ThreadPoolExecutor(8) as reads:
            list(reads.map(lambda _: server.get("/v1/events"), range(16)))
        assert server.post("/v1/orders", order()).status_code == 202
        yield server


def test_a_server_recovers_and_refuses_what_was_revoked(
    server: Server, proxy: Proxy, postgres_url: str
) -> None:
    proxy.half_open()
    engine = open_database(postgres_url)
    store = TokenStore(engine)
    [name] = [each.name for each in store.list()]
    other = store.create("other", store.list()[0].role, operator="test")
    server.session.headers["Authorization"] = f"Bearer {other}"
    until = time.monotonic() + SOON
    while not server.get("/v1/events").ok:
        assert time.monotonic() < until, "a new token stays unknown, or events unread"
        time.sleep(0.02)
    assert server.post("/v1/orders", order()).status_code == 202
    store.revoke(name, operator="test")
    engine.dispose()
    server.session.headers["Authorization"] = f"Bearer {server.token}"
    while server.get("/v1/events").status_code != 401:
        assert time.monotonic() < until, "a revoked token stays valid"
        time.sleep(0.02)


def test_a_server_ends_although_its_database_is_silent(server: Server, proxy: Proxy) -> None:
    proxy.half_open()
    with ThreadPoolExecutor(8) as reads:
        list(reads.map(lambda _: server.get("/v1/events"), range(8)))
        assert server.stop() == 0
