"""What a merchant takes that is known and well: a worker knows ten thousand of them.

Bytes of Python objects, which are the same on every machine. The whole of a real worker is weighed
by ``python -m loadtests.bench --only admission``.
"""

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from loadtests.merchants.client import SimulatedMerchants
from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.ledger.database import open_database, upgrade
from pos_gateway.merchant import Merchant
from pos_gateway.merchants.directory import Directory
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard


def bytes_each(number: int, do: Callable[[range], None]) -> float:
    """What stays in memory of doing something for so many; for the first ten it is not counted."""
    do(range(10))
    tracemalloc.start()
    try:
        do(range(10, 10 + number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / number
    finally:
        tracemalloc.stop()


def test_a_merchants_record_takes_little(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'pos_gateway.db'}")
    upgrade(engine)
    store = MerchantStore(engine)
    store.put(
        Merchant(id=f"merchant-{place}", base_url=f"https://{place}.example.com", provider="p")
        for place in range(1010)
    )
    directory = Directory(store)

    def look_up(places: range) -> None:
        directory._load(f"merchant-{place}" for place in places)

    assert bytes_each(1000, look_up) < 750
    engine.dispose()


def test_a_merchants_lane_takes_little() -> None:
    admission: Admission[None] = Admission(Limits(), lambda _: Terms(10, "p"))

    def deliver(places: range) -> None:
        for place in places:
            call = admission.offer(f"merchant-{place}", None, now=float(place))
            assert isinstance(call, Call)
            admission.release(call, place + 0.5)

    assert bytes_each(1000, deliver) < 720


def test_a_merchants_idle_connection_takes_little(simulated_merchants: SimulatedMerchants) -> None:
    transport = Transport(guard=Guard(allow_all=True))
    for place in range(110):
        simulated_merchants.profile(f"m-{place}", {"kind": "accept"})  # at once

    def send(places: range) -> None:
        for place in places:
            url = simulated_merchants.base_url(f"m-{place}") + "/orders/none"
            transport.send(Request("GET", url), key=str(place), connections=2, seconds=10)

    assert bytes_each(100, send) < 2900
    transport.close()
