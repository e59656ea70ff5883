"""How much comes to a worker that is not to be at its limits."""

from dataclasses import dataclass

from loadtests.bench.candidate import OURS

#: Of its core's time, and of its slots.
SHARE = 0.6
#: Orders a second at which it is found out what that is on this machine: any can do them.
PROBE = 300.0
#: Seconds that a healthy merchant takes over an order, at least: the slots allow 1,000 a second.
QUICKEST = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What the producer and the merchants are told."""

    #: Orders a second.
    rate: float
    #: Seconds that a healthy merchant takes over an order.
    latency: float


def load_at(rate: float) -> Load:
    """So many orders a second, and merchants that take so long that the slots have their share."""
    return Load(rate, SHARE * OURS.slots / rate)


def share_of(rate: float, cpu: float) -> Load:
    """The load at which the worker's core has its share, if at this rate it was busy for that part.

    No more than the slots allow. What an order costs is less the more orders there are, so that the
    core is busier than that rather than idler, coming from above.
    """
    return load_at(min(SHARE * OURS.slots / QUICKEST, rate * SHARE / cpu))
