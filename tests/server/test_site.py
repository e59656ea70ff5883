"""The server's components, put together: as it starts and stops, and what each feed has."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from pos_gateway.database.schema import events, pipeline
from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server import site as subject
from pos_gateway.server.following import PAGE_BYTES
from pos_gateway.server.masked_events import masked_event
from pos_gateway.server.site import Site
from pos_gateway.settings import Settings
from pos_gateway.tokens.token import Role
from tests.orders import an_order
from tests.schema import make_tables
from tests.server.inside import Inside, inside

WHO, COUNT = "Quackenbush", 20


@pytest.fixture
def server(database_url: str) -> Iterator[Inside]:
    with inside(database_url, metrics_port=0) as server:
        yield server


def test_it_is_not_ready_before_the_tokens_are_known(server: Inside) -> None:
    server.site.metrics_port.require("broker", lambda: None)
    assert "tokens" in str(server.site.problem())
    assert asyncio.run(server.ask("GET", "/readyz")).status == 503
    server.site.tokens.refresh()
    assert server.site.problem() is None
    assert asyncio.run(server.ask("GET", "/readyz")).status == 200


def test_last_uses_and_the_audit_are_written_as_it_stops(server: Inside) -> None:
    token = server.token(Role.OPERATOR)
    assert asyncio.run(server.ask("GET", "/v1/events", token)).status == 200
    assert [each.used_at for each in server.store.list()] == [None]
    server.site.stop()
    assert [each.used_at is None for each in server.store.list()] == [False]
    assert [each[1] for each in server.audited()] == ["events.reveal"]


def test_they_are_written_before_a_part_that_may_not_end_in_time(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = server.token(Role.OPERATOR)
    assert asyncio.run(server.ask("GET", "/v1/events", token)).status == 200
    written: list[Any] = []
    monkeypatch.setattr(server.site.bulk, "stop", lambda: written.extend(server.audited()))
    server.site.stop()
    assert [each[1] for each in written] == ["events.reveal"]


def test_alerts_end_beside_all_other_parts(server: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that is being sent may take ten seconds."""
    ended, site = list[str](), server.site
    alerts = SimpleNamespace(end=lambda: ended.append("asked"), stop=lambda: ended.append("alerts"))
    monkeypatch.setattr(site, "_alerts", alerts)
    monkeypatch.setattr(site.bulk, "stop", lambda: ended.append("bulk"))
    site.stop()
    assert ended == ["asked", "bulk", "alerts"]


def test_no_request_waits_for_the_first_canary_split(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop would wait for the broker with it."""
    looks: list[str] = []
    monkeypatch.setattr(server.site._splits, "split", lambda: looks.append("look"))
    monkeypatch.setattr(server.site.intake, "start", lambda _: None)

    async def start() -> None:
        server.site.start()

    asyncio.run(start())
    server.site.stop()
    assert looks == ["look"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With published events."""
    site = Site(Settings(database_url=f"sqlite:///{tmp_path}/gateway.db", metrics_port=0))
    make_tables(site.database)
    common = {"type": "accepted", "merchant_id": "m-1", "occurred_at": 1.0, "attempts": 1}
    with site.database.begin() as connection:
        connection.execute(insert(pipeline).values(id=1, epoch=1, assigned=COUNT, published=COUNT))
        for n in range(1, COUNT + 1):
            ids = {"event_id": f"e-{n}", "position": n, "order_id": f"o-{n}"}
            payload = json.dumps(an_order(f"o-{n}", customer={"name": WHO}, notes="x" * 5000))
            connection.execute(insert(events).values(ids | common | {"payload": payload}))
    yield site
    site.reading.close()
    site._masking.close()
    site.database.dispose()


def test_events_are_masked_beside_the_event_loop_and_once_for_all_viewers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    masked: list[int] = []
    threads: set[threading.Thread] = set()

    def noting(body: bytes) -> dict[str, Any]:
        event = masked_event(body)
        masked.append(event["position"])
        threads.add(threading.current_thread())
        return event

    monkeypatch.setattr(subject, "masked_event", noting)

    async def play() -> None:
        feed = site.feeds.masked
        with feed.listening():
            while feed._from is None:
                await asyncio.sleep(0)
            feed._from, feed._seen = 0, 0  # as if they were published now
            pages = await asyncio.gather(*(feed.page(0, PAGE, PAGE_BYTES, 20.0) for _ in range(5)))
        for page in pages:
            assert [event.position for event in page] == list(range(1, COUNT + 1))
            assert WHO.encode() not in b"".join(event.body for event in page)
        site.feeds.stop()

    asyncio.run(play())
    assert masked == list(range(1, COUNT + 1))
    assert len(threads) == 1
    assert threading.main_thread() not in threads


def test_feeds_read_pages_that_are_cut_by_bytes(site: Site) -> None:
    async def play() -> None:
        plain = site.feeds.plain
        whole = await plain.events_after(0, PAGE, PAGE_BYTES)
        assert len(whole) == COUNT
        assert WHO.encode() in whole[0].body
        for feed in site.feeds:
            for size in (1, 12_000):
                page = await feed.events_after(3, PAGE, size)
                assert 1 <= len(page) <= 2
                assert page[0].position == 4

    asyncio.run(play())
