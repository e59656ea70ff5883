"""What is run against which merchants, and what is wanted of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadtests.bench.candidate import OURS, PLAIN, PLAIN_WITHOUT_FLAGS, SYNCHRONOUS, Candidate


@dataclass(frozen=True, slots=True)
class Scenario:
    """The merchants of a run."""

    #: Seconds that a healthy merchant takes over an order.
    latency: float
    #: Healthy merchants: so many that no merchant's limit of ten binds before the slots do.
    healthy: int = 200
    #: Seconds after which an exchange is given up.
    timeout: float = 10.0

    @property
    def profiles(self) -> Mapping[str, object]:
        """How the simulated merchants are to behave."""
        return {"healthy": {"kind": "accept", "latency": self.latency}}

    @property
    def merchant_ids(self) -> list[str]:
        """All of them."""
        return [f"healthy-{number}" for number in range(self.healthy)]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a case: a candidate in a scenario."""

    name: str
    candidate: Candidate
    scenario: Scenario
    #: Orders, and the seconds from the worker's start until it is stopped.
    orders: int
    limit: float
    #: The same of a quick run.
    quick_orders: int
    quick_limit: float


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted: orders a second, or their ratio to those of another entry."""

    entry: str
    against: str | None = None
    #: None: only shown, for what it tells about the others.
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Runs that are compared with each other."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...] = field(default=())


_20_MS = Scenario(latency=0.02)
_200_MS = Scenario(latency=0.2)

CASES = (
    Case(
        "20ms",
        "Merchants reply after 20 ms: what a worker can do",
        (
            Entry("gateway", OURS, _20_MS, 15_000, 60, 4000, 16),
            Entry("plain", PLAIN, _20_MS, 15_000, 60, 4000, 16),
            # Its first window of 800 may start at once, before Celery's loop begins to count out
            # ten a second: so many orders that the first tenth of them lies behind it.
            Entry("plain, no flags", PLAIN_WITHOUT_FLAGS, _20_MS, 8500, 30, 8500, 14),
            Entry("gateway, prefork -c 4", SYNCHRONOUS, _20_MS, 2000, 30, 600, 10),
        ),
        (
            Target("gateway", at_least=1000),
            Target("gateway", "plain", at_least=0.7),
            Target("gateway", "gateway, prefork -c 4"),
        ),
    ),
    Case(
        "200ms",
        "Merchants reply after 200 ms: 200 slots allow 1,000 orders/s",
        (
            Entry("gateway", OURS, _200_MS, 15_000, 60, 4000, 16),
            Entry("plain", PLAIN, _200_MS, 15_000, 60, 4000, 16),
        ),
        (Target("gateway", at_least=900), Target("gateway", "plain")),
    ),
)
