"""Orders that come at a rate while healthy orders come."""

import time
from collections.abc import Iterable

from kombu import Connection

from loadtests.bench.candidate import WATCHED
from loadtests.bench.filling import Confirms
from loadtests.bench.orders import PlacedOrder
from testkit.background import Background


class Publishing(Background):
    """Publishes orders on a thread, ``rate`` a second, until the block is over."""

    def __init__(self, broker_url: str, orders: Iterable[PlacedOrder], rate: float) -> None:
        super().__init__()
        self._broker_url, self._orders, self._pause = broker_url, orders, 1 / rate

    def _run(self) -> None:
        with Connection(self._broker_url) as connection:
            confirms, due = Confirms(connection), time.monotonic()
            for order in self._orders:
                due += self._pause
                confirms.publish(WATCHED.message(order))
                if self._over.wait(max(0.0, due - time.monotonic())):
                    return
