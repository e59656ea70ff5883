"""Bytes of a merchant's Python objects: ``python -m tests.weighing record|lane|connection``;
and the part of freed blocks that stays: ``blocks BYTES``.

In a separate process: objects left by other tests would be counted too.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.directory import Directory
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.limits import return_large_blocks
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard
from tests.schema import make_tables


def bytes_each(number: int, do: Callable[[range], None]) -> float:
    """The memory that remains per item; the first ten are not counted."""
    do(range(10))
    tracemalloc.start()
    try:
        do(range(10, 10 + number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / number
    finally:
        tracemalloc.stop()


def record() -> float:
    """A cached merchant's record."""
    with TemporaryDirectory() as folder:
        engine = open_database(f"sqlite:///{Path(folder) / 'pos_gateway.db'}")
        make_tables(engine)
        store = MerchantStore(engine)
        store.put(
            Merchant(id=f"merchant-{place}", base_url=f"https://{place}.example.com", provider="p")
            for place in range(1010)
        )
        directory = Directory(store, CatalogStore(engine), Polls(engine))

        kept = []

        def look_up(places: range) -> None:
            kept.append(directory._load(f"merchant-{place}" for place in places))

        weight = bytes_each(1000, look_up)
        engine.dispose()
    return weight


def lane() -> float:
    """A merchant's lane in admission, after an order."""
    admission: Admission[None] = Admission(AdmissionLimits(), lambda _: Terms(10, "p"))

    def deliver(places: range) -> None:
        for place in places:
            call = admission.offer(f"merchant-{place}", None, now=float(place))
            assert isinstance(call, Call)
            admission.release(call, place + 0.5)

    return bytes_each(1000, deliver)


def connection(url: str) -> float:
    """A merchant's idle connection; ``{}`` in the URL stands for the merchant."""
    transport = Transport(guard=Guard(allow_all=True))

    def send(places: range) -> None:
        for place in places:
            request = Request("GET", url.format(place) + "/orders/none")
            transport.send(request, key=str(place), connections=2, seconds=10)

    weight = bytes_each(100, send)
    transport.close()
    return weight


def blocks(size: str) -> float:
    """The part of many blocks' memory that the process keeps once they are freed."""
    number, kept = 400, []
    if "untouched" not in sys.argv:
        return_large_blocks()
    bytearray(
        8 * 2**20
    )  # frees one, after which glibc would take blocks of this size from its heap
    before = _resident()
    freed = []
    for _ in range(number):
        freed.append(bytearray(int(size)))
        kept.append(bytes(1000))
    most = _resident()
    freed.clear()
    return (_resident() - before) / (most - before)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    weights = {"record": record, "lane": lane, "connection": connection, "blocks": blocks}
    print(weights[what](*(each for each in arguments if each != "untouched")))
