"""How much comes to a worker that is not to be at its limits."""

from dataclasses import dataclass

from loadtests.bench.candidate import OURS

#: Of all that the worker can do.
SHARE = 0.6
#: Seconds that a healthy merchant takes over an order, at least: the slots allow 1,000 a second.
QUICKEST = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What the producer and the merchants are told."""

    #: Orders a second.
    rate: float
    #: Seconds that a healthy merchant takes over an order.
    latency: float


def share_of(capacity: float) -> Load:
    """The share of the orders a second that the worker's CPU can do, and of its slots.

    On a machine whose CPU allows fewer orders than the slots do, merchants take longer, so that as
    many slots are held.
    """
    rate = SHARE * min(OURS.slots / QUICKEST, capacity)
    return Load(rate, SHARE * OURS.slots / rate)
