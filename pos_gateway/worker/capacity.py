"""How many workers a load takes, and the first resource to saturate beyond the plan.

Little's law: orders in flight = orders a second x seconds of each. Arrivals are random, and the number strays by its
square root; slots are planned so that one is free 99 times in 100 (the square-root rule of staffing). CPU is planned
with headroom: at full use, queues only grow.

Pure arithmetic: no broker, database or clock is used.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, exp, inf, log, sqrt
from typing import Any

from pos_gateway.admission.limits import RESERVE
from pos_gateway.ledger.commits import GATHER

#: Milliseconds of CPU per order at 60 % load, where fewer orders share a transaction, a packet and
#: a warm cache than from a full queue (docs/performance.md, on the machine of its figures).
CPU_MS = 1.8
#: Seconds that an order holds a slot beyond the merchant's reply time (docs/capacity.md: a 50 ms call holds a permit
#: for 57 to 59).
SLOT_OVERHEAD = 0.01
#: MiB of an idle worker, per slot with its waiting orders, and per known merchant
#: (docs/performance.md: memory, admission).
IDLE_MIB, SLOT_MIB, MERCHANT_MIB = 95.0, 0.12, 0.0025
#: Share of the slots that heavy merchants leave free beyond the reserve, since light calls come
#: at random (docs/why-admission.md; 3 % are enough in virtual time, ``tests/capacity``).
CHANCE = 0.03
#: Orders that a worker prefetches per slot, orders in flight included, and at most: AMQP's prefetch count has 16 bits.
WINDOW, MOST = 10, 65_535
#: Events a second that the only publishing worker sustains (docs/performance.md: events).
EVENTS_PER_SECOND = 5000.0
#: Bounds of a plausible figure.
_MIN, _MAX = 0.000001, 1_000_000
#: The 99th percentile of a normal variable, in standard deviations above its mean.
_99 = 2.326


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load. Shares are fractions of 1, times seconds."""

    #: The daily average, or whatever rate ``peak`` is a multiple of.
    orders_per_second: float
    #: Mean seconds of a healthy merchant per order.
    latency: float
    #: The peak rate, as a multiple of ``orders_per_second``.
    peak: float = 1.0
    #: Share of the orders for slow merchants.
    slow: float = 0.0
    #: Mean seconds of a slow merchant.
    slow_latency: float = 8.0
    merchants: int = 1000
    #: The busiest merchant's share of the orders.
    busiest: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "orders_per_second", "latency", "peak", "slow_latency", "merchants")
        _check_share(self, "slow", "busiest")

    @property
    def at_peak(self) -> float:
        """Orders a second at the peak."""
        return self.orders_per_second * self.peak

    @property
    def in_flight(self) -> float:
        """Mean orders in flight at the peak, of healthy merchants."""
        return self.at_peak * (1 - self.slow) * (self.latency + SLOT_OVERHEAD)

    @property
    def slow_in_flight(self) -> float:
        """The same, of slow merchants."""
        return self.at_peak * self.slow * (self.slow_latency + SLOT_OVERHEAD)

    @property
    def busiest_in_flight(self) -> float:
        """``in_flight`` of the busiest merchant, a healthy one."""
        return self.at_peak * self.busiest * (self.latency + SLOT_OVERHEAD)


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's resources."""

    #: Milliseconds of CPU per order.
    cpu_ms: float = CPU_MS
    #: Cores; one process uses at most one.
    cores: float = 1.0
    #: Share of the CPU to use at the peak.
    busy: float = 0.6
    #: Memory limit in MiB.
    memory: float = 1024.0
    #: A merchant's concurrency limit.
    merchant_limit: int = 10

    def __post_init__(self) -> None:
        _check_positive(self, "cpu_ms", "cores", "busy", "memory", "merchant_limit")
        _check_share(self, "busy")

    @property
    def rate(self) -> float:
        """Orders a second within the CPU's limit."""
        return 1000 * min(1.0, self.cores) / self.cpu_ms


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A resource that saturates above ``orders_per_second``."""

    what: str
    #: Mean use at the planned peak; 1 is full use.
    used: float
    orders_per_second: float
    #: The consequence of saturation.
    then: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The resources for the demand. ``pods`` and ``slots`` are the minimum."""

    demand: OfferedLoad
    pod: Pod
    pods: int
    #: Slots per pod.
    slots: int

    @property
    def prefetch(self) -> int:
        """A pod's prefetch count."""
        return min(WINDOW * self.slots, MOST)

    @property
    def merchant_limit(self) -> int:
        """``max_concurrency`` of the busiest merchant, over all pods."""
        return max(1, ceil(staffed(self.demand.busiest_in_flight)))

    @property
    def memory(self) -> float:
        """MiB of a fully loaded pod."""
        return memory(self.slots, self.demand.merchants)

    @property
    def transactions(self) -> float:
        """Ledger transactions a second, at most: two grouped writes an order, and event batches."""
        writes = min(2 * self.demand.at_peak, self.pods / GATHER)
        return writes + min(self.demand.at_peak, _EVENT_BATCHES)

    @property
    def messages(self) -> float:
        """Messages a second into RabbitMQ, and out: each order, and the order's event."""
        return 2 * self.demand.at_peak

    @property
    def bottlenecks(self) -> list[Bottleneck]:
        """The bottlenecks, the first to saturate first."""
        return sorted(self._bottlenecks(), key=lambda each: each.orders_per_second)

    def as_json(self) -> dict[str, Any]:
        """The plan as a JSON object."""
        return {
            "demand": {**asdict(self.demand), "at_peak": self.demand.at_peak},
            "pod": asdict(self.pod),
            "in_flight": self.demand.in_flight + self.demand.slow_in_flight,
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
        in_flight = demand.in_flight + demand.slow_in_flight
        yield self._gives_way(
            "CPU",
            demand.at_peak,
            self.pods * self.pod.rate,
            "those of merchants that do not keep up wait, then all in RabbitMQ",
        )
        yield self._gives_way(
            "slots", in_flight, slots, "those of merchants that use most wait, then are parked"
        )
        if demand.busiest:
            yield self._gives_way(
                f"the busiest merchant's limit of {self.pod.merchant_limit}",
                demand.busiest_in_flight,
                self.pod.merchant_limit,
                "its orders wait, then are parked; no other merchant notices",
            )
        yield self._gives_way(
            "the worker that publishes events",
            demand.at_peak,
            EVENTS_PER_SECOND,
            "orders go on, and their events come later",
        )

    def _gives_way(self, what: str, needed: float, there: float, then: str) -> Bottleneck:
        return Bottleneck(what, needed / there, self.demand.at_peak * there / needed, then)


#: Event batches a second, each one transaction.
_EVENT_BATCHES = 50.0


def plan(demand: OfferedLoad, pod: Pod) -> Plan:
    """The fewest pods with enough CPU whose slots fit in their memory.

    Raises:
        ValueError: a pod has too little memory for a slot; names the field and the minimum.
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
    """Capacity that is enough 99 times in 100 for a random load with this mean."""
    return mean + _99 * sqrt(mean)


def memory(slots: int, merchants: int) -> float:
    """MiB of a fully loaded worker."""
    return IDLE_MIB + SLOT_MIB * slots + MERCHANT_MIB * merchants


def mean_of(p50: float, p99: float) -> float:
    """Mean of log-normal times with this median and 99th percentile."""
    if not 0 < p50 <= p99 < inf:
        raise ValueError(
            f"p99: must be at least p50, and both greater than 0 (got {p50:g}, {p99:g})"
        )
    deviation = log(p99 / p50) / _99
    return p50 * exp(deviation**2 / 2)


def _slots(demand: OfferedLoad, pods: int) -> int:
    """Slots per pod, with the reserve left free by heavy merchants."""
    in_flight = staffed(demand.in_flight / pods) + staffed(demand.slow_in_flight / pods)
    return max(1, ceil(in_flight / (1 - RESERVE - CHANCE)))


def _check_positive(options: OfferedLoad | Pod, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not _MIN <= value <= _MAX:
            wanted = f"must be a number from {_MIN:f} to {_MAX:,}"
            raise ValueError(f"{name}: {wanted} (got {value:g})")


def _check_share(options: OfferedLoad | Pod, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not 0 <= value <= 1:
            raise ValueError(f"{name}: must be a share, 0 to 1 (got {value:g})")
