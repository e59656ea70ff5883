"""The story that the operations page shows: all is well, then one merchant is slow, and one silent."""

import random
import time
from collections.abc import Iterator
from typing import Any

import gevent

from pos_gateway.client import OrderClient
from pos_gateway.demo.cast import PARTS, place
from pos_gateway.simulated_merchants.client import SimulatedMerchants

#: The merchants in trouble, each of a provider of its own: no other merchant is suspected with it.
SLOW, SILENT = "slow-0", "hang-0"
#: Orders a second, and how they fall on the healthy merchants and on these two.
RATE, WEIGHTS = 16.0, (11, 4, 1)
#: Seconds for which all is well.
WELL = 30.0
#: Seconds that the slow one takes then: some orders run into the time limit.
SECONDS = 3.0
#: What the ids of its orders begin with.
PREFIX = "demo-"
#: Seconds that an order may take: long enough to see it wait, and parked.
_DELIVER_WITHIN = 60.0


def play(merchants: SimulatedMerchants, well: float) -> None:
    """Place orders at a steady rate, without end; the trouble begins after this many seconds."""
    for each in (SLOW, SILENT):
        merchants.profile(each, "fast")
    trouble = gevent.spawn_later(well, _trouble, merchants)
    try:
        with OrderClient() as client:
            client.connect()
            due = time.monotonic()
            for order in _orders():
                client.submit(order)
                due = max(
                    due + 1 / RATE, time.monotonic() - 1
                )  # a machine that slept catches up by a second
                gevent.sleep(max(0.0, due - time.monotonic()))
    finally:
        trouble.kill()


def _trouble(merchants: SimulatedMerchants) -> None:
    merchants.profile(SLOW, {"kind": "accept", "latency": {"lognormal": [SECONDS, 0.3]}})
    merchants.profile(SILENT, "hang")


def _orders() -> Iterator[dict[str, Any]]:
    chance, number = random.Random(1), 0
    classes = PARTS[0].ids, [SLOW], [SILENT]
    while True:
        number += 1
        [ids] = chance.choices(classes, WEIGHTS)
        yield place(f"{PREFIX}{number}", chance.choice(ids), deliver_within=_DELIVER_WITHIN)
