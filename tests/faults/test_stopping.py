"""Workers that are told to stop: once, twice, at once, and while something blocks them."""

import signal
from collections.abc import Sequence

import pytest

from testkit.servers.proxy import Proxy
from tests.faults.lab import FaultLab

ORDERS = [f"o{number}" for number in range(20)]


def test_a_second_signal_requeues_orders_in_flight_and_ends_without_a_traceback(
    lab: FaultLab,
) -> None:
    """One worker after the other stops so; a stop is no death, and makes no order poison."""
    lab.open_merchants("m", max_concurrency=10, request_timeout=60)
    lab.merchants.profile("m", {"kind": "hang"})
    lab.place("m", *ORDERS)
    ways: list[tuple[Sequence[signal.Signals], dict[str, str]]] = [
        ([signal.SIGTERM, signal.SIGTERM], {}),
        ([signal.SIGINT, signal.SIGINT], {}),
        ([signal.SIGQUIT], {}),
        ([signal.SIGTERM], {"REMAP_SIGTERM": "SIGQUIT"}),
    ]
    for signals, environment in ways:
        with lab.worker(environment=environment, max_waiting=20) as worker:
            lab.merchants.wait_until(merchant_id="m", in_flight=10)
            lab.wait_until_queued("orders", 0)
            for number in signals[:-1]:
                worker.send(number)
                lab.wait_until_queued("orders", 10)  # waiting orders are requeued at once
            worker.send(signals[-1])
            assert worker.wait() == 0
        assert "Traceback" not in worker.log
        lab.wait_until_queued("orders", 20)
        lab.merchants.wait_until(merchant_id="m", idle=True)
    lab.merchants.profile("m", {"kind": "accept"})
    with lab.worker():
        lab.settle()
    lab.verdict(healthy=lambda _: True)


@pytest.mark.parametrize("away", ["database", "broker"])
def test_a_worker_stops_although_outcomes_cannot_be_stored(lab: FaultLab, away: str) -> None:
    lab.open_merchants("m", request_timeout=2)
    lab.merchants.profile("m", {"kind": "accept", "latency": 1.0})
    lab.place("m", *ORDERS)
    database_url, _, _ = lab.database_url.partition("?")  # no limit but the product's own
    url = {"database": database_url, "broker": lab.broker_url}[away]
    with (
        Proxy(url) as proxy,
        lab.worker(request_timeout=2, **{f"{away}_url": proxy.url}) as worker,
    ):
        lab.merchants.wait_until(merchant_id="m", in_flight=10)
        proxy.timeout()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
    with lab.worker():
        lab.settle()
    lab.verdict(healthy=lambda _: True)


def test_a_rolling_restart_under_load_leaves_no_order_in_doubt(
    lab: FaultLab,
) -> None:
    poses = lab.open_poses(3)
    lab.merchants.profile("blind-*", {"create": {"latency": 0.5}, "keyed": False})
    for _ in range(3):
        lab.place_some(poses, each=10)
        with lab.worker() as worker:
            lab.merchants.wait_until(in_flight=20)
            assert worker.stop() == 0
    with lab.worker():
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
