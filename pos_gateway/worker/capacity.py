"""How many workers a load takes, and what gives way first when more comes than was planned.

Little's law: orders under way at one moment = orders a second, times the seconds that each takes. They
come at random, so that this number strays by its square root; slots are planned so that 99 times in 100
there is one (the square-root rule of staffing). CPU is planned so that a core has time to spare: what
comes to a busy worker waits, and at full use for ever.

Pure arithmetic: nothing is asked of a broker, a database or a clock.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, exp, inf, log, sqrt
from typing import Any

from pos_gateway.admission.limits import RESERVE
from pos_gateway.ledger.commits import GATHER

#: Milliseconds of CPU of an order at 60 % load, where less shares a transaction, a packet and a warm
#: cache than from a full queue (docs/performance.md: on the machine that its figures are from).
CPU_MS = 1.8
#: Seconds for which an order holds its slot beside its merchant's time: until it is durable that it is
#: sent, and what came of it (docs/performance.md: a call of 50 ms holds its permit for 57 to 59).
HELD = 0.01
#: MiB of a worker with nothing to do, for each slot with its orders that wait, and for each merchant
#: that is known (docs/performance.md: memory, admission).
IDLE_MIB, SLOT_MIB, MERCHANT_MIB = 95.0, 0.12, 0.0025
#: Orders that a worker takes for each slot, those under way among them.
WINDOW = 10
#: Events a second that the one worker which publishes them manages (docs/performance.md: events).
EVENTS_PER_SECOND = 5000.0
#: What lies outside is no figure that somebody means.
_LEAST, _MOST = 0.000001, 1_000_000
#: Standard deviations above the mean under which a normal variable is 99 times in 100.
_99 = 2.326


@dataclass(frozen=True, slots=True)
class Demand:
    """What comes. Shares are fractions of 1, times seconds."""

    #: On the average of a day, or whenever it is the peak is a multiple of.
    orders_per_second: float
    #: Seconds that a healthy merchant takes over an order, on average.
    latency: float
    #: How many times as many come at the peak.
    peak: float = 1.0
    #: Share of the orders that go to merchants which answer, but slowly.
    slow: float = 0.0
    #: Seconds that these take.
    slow_latency: float = 8.0
    merchants: int = 1000
    #: Share of the orders that the busiest merchant has.
    busiest: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "orders_per_second", "latency", "peak", "slow_latency", "merchants")
        _check_share(self, "slow", "busiest")

    @property
    def at_peak(self) -> float:
        """Orders a second at the peak."""
        return self.orders_per_second * self.peak

    @property
    def under_way(self) -> float:
        """Orders of healthy merchants under way at the peak, on average."""
        return self.at_peak * (1 - self.slow) * (self.latency + HELD)

    @property
    def slow_under_way(self) -> float:
        """The same of the slow ones."""
        return self.at_peak * self.slow * (self.slow_latency + HELD)

    @property
    def busiest_under_way(self) -> float:
        """The same of the busiest merchant, which is healthy."""
        return self.at_peak * self.busiest * (self.latency + HELD)


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker, and what it has."""

    #: Milliseconds of CPU that an order costs.
    cpu_ms: float = CPU_MS
    #: Of which one process uses one.
    cores: float = 1.0
    #: Share of that which is to be used at the peak.
    busy: float = 0.6
    #: MiB that it may have at worst.
    memory: float = 1024.0
    #: Orders of one merchant under way at once.
    merchant_limit: int = 10

    def __post_init__(self) -> None:
        _check_positive(self, "cpu_ms", "cores", "busy", "memory", "merchant_limit")
        _check_share(self, "busy")

    @property
    def rate(self) -> float:
        """Orders a second that its CPU can do."""
        return 1000 * min(1.0, self.cores) / self.cpu_ms


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Something that more orders a second than so many are too many for."""

    what: str
    #: Mean use at the planned peak; 1 is all of it.
    used: float
    orders_per_second: float
    #: What follows.
    then: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the demand takes. ``pods`` and ``slots`` are what it takes, and not one more."""

    demand: Demand
    pod: Pod
    pods: int
    #: In each of them.
    slots: int

    @property
    def prefetch(self) -> int:
        """Orders that a pod takes from the queue; RabbitMQ is told so."""
        return WINDOW * self.slots

    @property
    def merchant_limit(self) -> int:
        """``max_concurrency`` that the busiest merchant needs, in all pods together."""
        return max(1, ceil(staffed(self.demand.busiest_under_way)))

    @property
    def memory(self) -> float:
        """MiB of a pod that holds all that it may."""
        return memory(self.slots, self.demand.merchants)

    @property
    def transactions(self) -> float:
        """Of the ledger, a second, at most: two writes an order, and those of a moment share one."""
        writes = min(2 * self.demand.at_peak, self.pods / GATHER)
        return writes + min(self.demand.at_peak, _EVENT_BATCHES)

    @property
    def messages(self) -> float:
        """That RabbitMQ takes in a second, and hands out: each order, and its event."""
        return 2 * self.demand.at_peak

    @property
    def bottlenecks(self) -> list[Bottleneck]:
        """What gives way as more comes, the first one first."""
        return sorted(self._bottlenecks(), key=lambda each: each.orders_per_second)

    def as_json(self) -> dict[str, Any]:
        """All of it by name."""
        return {
            "demand": {**asdict(self.demand), "at_peak": self.demand.at_peak},
            "pod": asdict(self.pod),
            "under_way": self.demand.under_way + self.demand.slow_under_way,
            "pods": self.pods,
            "slots": self.slots,
            "prefetch": self.prefetch,
            "merchant_limit": self.merchant_limit,
            "memory_mib": self.memory,
            "transactions_per_second": self.transactions,
            "messages_per_second": self.messages,
            "bottlenecks": [asdict(each) for each in self.bottlenecks],
        }

    def _bottlenecks(self) -> Iterator[Bottleneck]:
        demand, slots = self.demand, self.slots * self.pods
        under_way = demand.under_way + demand.slow_under_way
        yield self._gives_way(
            "CPU", demand.at_peak, self.pods * self.pod.rate, "orders of all wait in RabbitMQ"
        )
        yield self._gives_way(
            "slots", under_way, slots, "those of merchants that use most wait, then are parked"
        )
        if demand.busiest:
            yield self._gives_way(
                f"the busiest merchant's limit of {self.pod.merchant_limit}",
                demand.busiest_under_way,
                self.pod.merchant_limit,
                "its orders wait, then are parked; nobody else notices",
            )
        yield self._gives_way(
            "the worker that publishes events",
            demand.at_peak,
            EVENTS_PER_SECOND,
            "orders go on, and their events come later",
        )

    def _gives_way(self, what: str, needed: float, there: float, then: str) -> Bottleneck:
        return Bottleneck(what, needed / there, self.demand.at_peak * there / needed, then)


#: Batches of events a second, each with a transaction of its own.
_EVENT_BATCHES = 50.0


def plan(demand: Demand, pod: Pod) -> Plan:
    """The fewest pods whose CPU is enough, with slots that fit in their memory.

    Raises:
        ValueError: no number of pods is enough; names the field and what would do.
    """
    least = memory(1, demand.merchants)
    if pod.memory < least:
        raise ValueError(f"memory: a worker takes {least:.0f} MiB at least (got {pod.memory:g})")

    def fit(pods: int) -> bool:
        return memory(_slots(demand, pods), demand.merchants) <= pod.memory

    fewest = most = ceil(demand.at_peak / (pod.busy * pod.rate))
    while not fit(most):
        fewest, most = most + 1, 2 * most
    while fewest < most:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if fit(middle) else (middle + 1, most)
    return Plan(demand, pod, most, _slots(demand, most))


def staffed(mean: float) -> float:
    """So many are enough 99 times in 100 where at random so many are there on average."""
    return mean + _99 * sqrt(mean)


def memory(slots: int, merchants: int) -> float:
    """MiB of a worker that holds all that it may."""
    return IDLE_MIB + SLOT_MIB * slots + MERCHANT_MIB * merchants


def mean_of(p50: float, p99: float) -> float:
    """Mean of times of which so much is the half and the hundredth, as log-normal ones are."""
    if not 0 < p50 <= p99 < inf:
        raise ValueError(
            f"p99: must be at least p50, and both greater than 0 (got {p50:g}, {p99:g})"
        )
    deviation = log(p99 / p50) / _99
    return p50 * exp(deviation**2 / 2)


def _slots(demand: Demand, pods: int) -> int:
    """In each pod: for everybody, and those that heavy merchants leave free."""
    under_way = staffed(demand.under_way / pods) + staffed(demand.slow_under_way / pods)
    return max(1, ceil(under_way / (1 - RESERVE)))


def _check_positive(options: Demand | Pod, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not _LEAST <= value <= _MOST:
            wanted = f"must be a number from {_LEAST:f} to {_MOST:,}"
            raise ValueError(f"{name}: {wanted} (got {value:g})")


def _check_share(options: Demand | Pod, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: must be a share, 0 to 1 (got {value:g})")
