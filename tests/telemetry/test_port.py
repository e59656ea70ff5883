"""The pages of the metrics port, in every process."""

import socket
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Gauge

from pos_gateway.runtime import green
from pos_gateway.telemetry import port as subject
from pos_gateway.telemetry.port import PERIOD, YIELD_EVERY, MetricsPort
from testkit.servers.process import free_port
from tests.telemetry.lab import Samples, get, get_json, value


@pytest.fixture
def port() -> Iterator[tuple[MetricsPort, int]]:
    number = free_port()
    port = MetricsPort(number)
    port.start()
    yield port, number
    port.stop()


def test_the_port_listens_on_loopback_unless_it_is_opened() -> None:
    """On Linux 127.0.0.2 is this machine's, too, and differs from 127.0.0.1 as any other does."""
    for host, is_open in ((None, False), ("0.0.0.0", True), ("::", True)):
        number = free_port()
        port = MetricsPort(number) if host is None else MetricsPort(number, host)
        port.start()
        try:
            assert get_json(number, "/healthz")[0] == 200
            with closing(socket.socket()) as other:
                assert (other.connect_ex(("127.0.0.2", number)) == 0) is is_open, host
        finally:
            port.stop()


def test_the_process_is_healthy_while_it_answers(port: tuple[MetricsPort, int]) -> None:
    assert get_json(port[1], "/healthz") == (200, {"healthy": True})


def test_the_process_is_ready_once_it_has_no_reason_against_it(
    port: tuple[MetricsPort, int],
) -> None:
    shown, number = port
    wrong: dict[str, str | None] = {"broker": "it is away", "database": None}
    shown.require("broker", lambda: wrong["broker"])
    shown.require("database", lambda: wrong["database"])
    assert get_json(number, "/readyz") == (
        503,
        {"ready": False, "reasons": {"broker": "it is away"}},
    )
    assert not_ready(number) == {("broker",): 1, ("database",): 0}
    wrong["broker"] = None
    assert get_json(number, "/readyz") == (200, {"ready": True, "reasons": {}})
    assert not_ready(number) == {("broker",): 0, ("database",): 0}


def not_ready(number: int) -> dict[tuple[str, ...], float]:
    found = Samples(get(number, "/metrics")[1]).of("pos_gateway_not_ready")
    return {labels: found[labels] for labels in (("broker",), ("database",))}


def test_a_scrape_has_the_versions_and_no_created_series(
    port: tuple[MetricsPort, int],
) -> None:
    samples = Samples(get(port[1], "/metrics")[1])
    assert samples.of("pos_gateway_build_info", version=version("pos-gateway"))
    assert [name for name in samples.names if name.endswith("_created")] == []


def test_port_0_is_off() -> None:
    port = MetricsPort(0)
    port.start()
    assert port._server is None
    assert port._lag_thread is None
    port.stop()


def test_a_scrape_sets_its_gauges_and_yields_after_each_metric(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    gauges = [Gauge(f"g{n}", "help", registry=registry) for n in range(4)]
    turns: list[float] = []

    def others_turn(_seconds: float) -> None:
        turns.append(gauges[0]._value.get())
        gauges[3].inc()  # a value is of the moment at which it is written

    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=others_turn))
    monkeypatch.setattr(subject, "REGISTRY", registry)
    scrape = MetricsPort(0)
    scrape.before_scrape(lambda: gauges[0].inc(7))
    for times in (1, 2):
        text = scrape.text().decode()
        assert f"g0 {7.0 * times}\n" in text
        assert f"g3 {3.0 * times - 1}\n" in text
    assert turns == [7.0] * 3 + [14.0] * 3


def test_writing_a_long_metric_yields_and_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, turns = CollectorRegistry(), []
    long = Gauge("long", "help", ["name"], registry=registry)
    for number in range(3 * YIELD_EVERY):
        long.labels(f"n{number}").set(number)
    monkeypatch.setattr(green, "time", SimpleNamespace(sleep=turns.append))
    monkeypatch.setattr(subject, "REGISTRY", registry)
    samples = Samples(MetricsPort(0).text().decode())
    assert len(samples) == 3 * YIELD_EVERY
    assert len(turns) == 2


def test_the_loops_lag_is_the_delay_of_a_wake_up_and_of_the_loops_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, late = 100.0, [0.0, 0.2, 0.0]
    turns = [0.0, 0.0, 0.1]

    class Loop:
        def wait(self, seconds: float) -> bool:
            nonlocal now
            if not late:
                return True
            now += seconds + late.pop(0)
            return False

    monkeypatch.setattr(subject, "time", SimpleNamespace(monotonic=lambda: now))

    def turn(_timeout: float | None) -> bool:
        nonlocal now
        now += turns.pop(0)
        return True

    port = MetricsPort(0, turn=turn)
    port._stopping = Loop()  # type: ignore[assignment]
    before = value("pos_gateway_event_loop_lag_seconds_sum")
    looks = value("pos_gateway_event_loop_lag_seconds_count")
    port._measure_lag()
    assert value("pos_gateway_event_loop_lag_seconds_count") == looks + 3
    assert value("pos_gateway_event_loop_lag_seconds_sum") == pytest.approx(before + 0.3)
    assert now == pytest.approx(100.0 + 3 * PERIOD + 0.3)
