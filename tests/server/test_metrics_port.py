"""The metrics port of a server: the loop is none of its threads', and it says so all the same."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pos_gateway.server.loop_turn import LoopTurn
from pos_gateway.telemetry import port
from pos_gateway.telemetry.port import MetricsPort
from testkit.servers.process import free_port
from tests.server.lab import SOON, serving
from tests.telemetry.lab import Samples, get, get_json


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    running.join(SOON)
    loop.close()


def test_a_loop_that_stands_still_is_not_healthy(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start() -> None:
        turn.start()
        metrics_port.start()

    number, turn, goes_on = free_port(), LoopTurn(), threading.Event()
    metrics_port = MetricsPort(number, turn=turn)
    asyncio.run_coroutine_threadsafe(start(), loop).result(SOON)
    try:
        monkeypatch.setattr(port, "LOOP_TIMEOUT", SOON)
        assert get_json(number, "/healthz") == (200, {"healthy": True})
        loop.call_soon_threadsafe(goes_on.wait, SOON)
        monkeypatch.setattr(port, "LOOP_TIMEOUT", 0.1)
        assert get_json(number, "/healthz") == (503, {"healthy": False})
        goes_on.set()
        monkeypatch.setattr(port, "LOOP_TIMEOUT", SOON)
        assert get_json(number, "/healthz") == (200, {"healthy": True})
    finally:
        goes_on.set()
        metrics_port.stop()


def test_a_server_says_what_it_lacks_and_what_it_has_taken(
    module_url: str, module_database: str, tmp_path: Path
) -> None:
    number = free_port()
    settings = {"POS_GATEWAY_METRICS_PORT": str(number)}
    with serving(module_url, module_database, tmp_path / "log", settings) as server:
        assert get_json(number, "/healthz") == (200, {"healthy": True})
        assert get_json(number, "/readyz") == (200, {"ready": True, "reasons": {}})
        assert server.get("/v1/events").status_code == 200
        samples = Samples(get(number, "/metrics")[1])
        assert samples.value("pos_gateway_http_requests_total", route="/v1/events", status="200")
        assert samples.value("pos_gateway_not_ready", reason="tokens") == 0
        assert samples.of("pos_gateway_slots") == {}, "alerts tell workers from servers by it"
    settings["POS_GATEWAY_BROKER_URL"] = "amqp://127.0.0.1:1//"
    away = serving(module_url, module_database, tmp_path / "log", settings, is_ready=False)
    with away:
        status, found = get_json(number, "/readyz")
        assert status == 503
        assert found["reasons"].keys() == {"broker"}
