"""What a server does as it starts and stops, and when it is ready."""

import asyncio
from collections.abc import Iterator

import pytest

from pos_gateway.tokens.token import Role
from tests.server.inside import Inside, inside


@pytest.fixture
def server(database_url: str) -> Iterator[Inside]:
    with inside(database_url, metrics_port=0) as server:
        yield server


def test_it_is_not_ready_before_the_tokens_are_known(server: Inside) -> None:
    server.site.metrics_port.readiness.require("broker", lambda: None)
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
