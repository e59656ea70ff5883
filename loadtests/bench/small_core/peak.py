"""A peak: more orders of quick merchants than the worker has CPU for."""

from collections.abc import Iterator
from contextlib import contextmanager

from loadtests.bench.orders import place_many, spread
from loadtests.bench.slow_merchants import OTHERS_GROUP
from loadtests.bench.small_core.adversary import FIRST
from loadtests.bench.small_core.publishing import Publishing
from loadtests.bench.world import World

MERCHANTS = 200
#: Orders a second, more than half a core delivers, and orders that outlast a run.
RATE, ORDERS = 600, 60_000


@contextmanager
def come(place: World) -> Iterator[None]:
    """Publish them at their rate."""
    ids = [f"{OTHERS_GROUP}-{number}" for number in range(MERCHANTS)]
    with Publishing(place.broker_url, place_many(spread(ORDERS, ids), first=FIRST), RATE):
        yield
