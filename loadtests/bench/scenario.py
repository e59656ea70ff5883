"""What is run against which merchants, and what is wanted of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loadtests.bench.candidate import (
    ASYNCIO,
    DRAMATIQ,
    PLAIN,
    PLAIN_WITHOUT_FLAGS,
    PREFORK,
    SYNCHRONOUS,
    THREADS,
    WATCHED,
    Candidate,
)


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
    """One line of a case: a candidate in a scenario.

    Where the slots are the limit all start and end together, wave by wave: eight tenths of the
    orders, which are measured, are then whole waves.
    """

    name: str
    candidate: Candidate
    scenario: Scenario
    #: Orders, and the seconds from the worker's start until it is stopped.
    orders: int
    limit: float
    #: The same of a quick run; without orders there is none.
    quick_orders: int = 0
    quick_limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """What is wanted of an entry's figure, or of its ratio to another entry's."""

    entry: str
    against: str | None = None
    #: One of ``FIGURES``.
    figure: str = "rate"
    #: Neither: only shown, for what it tells about the others.
    at_least: float | None = None
    at_most: float | None = None
    #: What there is to say of it.
    note: str = ""


#: What targets are about, as it is called and written.
FIGURES = {
    "rate": ("orders/s", ",.0f"),
    "cpu_ms": ("CPU ms/order", ".2f"),
    "of_slots": ("of what the slots allow", ".3f"),
    "memory": ("MiB", ",.0f"),
    "per_mib": ("orders/s for a MiB", ".3f"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Runs that are compared with each other."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...] = field(default=())

    def of_size(self, *, quick: bool) -> "Case":
        """The case without the entries that a quick run leaves out, and what is said of them."""
        entries = tuple(each for each in self.entries if each.quick_orders or not quick)
        names = {None, *(each.name for each in entries)}
        targets = tuple(each for each in self.targets if {each.entry, each.against} <= names)
        return replace(self, entries=entries, targets=targets)


_20_MS, _200_MS, _500_MS, _1_S = (Scenario(latency) for latency in (0.02, 0.2, 0.5, 1.0))
#: Slots of a gateway that fits where the synchronous one does.
_MANY = 500
_WITH_MANY = replace(WATCHED, slots=_MANY, settings={"POS_GATEWAY_SLOTS": str(_MANY)})

CASES = (
    Case(
        "20ms",
        "Merchants reply after 20 ms: what a worker can do",
        (
            Entry("gateway", WATCHED, _20_MS, 15_000, 60, 3000, 16),
            Entry("plain", PLAIN, _20_MS, 15_000, 60, 3000, 16),
            Entry("Celery threads", THREADS, _20_MS, 15_000, 60, 2000, 16),
            Entry("dramatiq-gevent", DRAMATIQ, _20_MS, 15_000, 60, 3000, 16),
            Entry("bare asyncio", ASYNCIO, _20_MS, 15_000, 60, 3000, 16),
            # Its first window of 800 may start at once, before Celery's loop begins to count out
            # ten a second: so many orders that the first tenth of them lies behind it.
            Entry("plain, no flags", PLAIN_WITHOUT_FLAGS, _20_MS, 8500, 30),
            Entry("gateway, prefork -c 4", SYNCHRONOUS, _20_MS, 2000, 30),
        ),
        (
            Target("gateway", at_least=1000),
            Target("gateway", "plain", at_least=0.7),
            Target("gateway", "Celery threads"),
            Target("gateway", "dramatiq-gevent"),
            Target("gateway", "bare asyncio"),
            Target("gateway", "gateway, prefork -c 4"),
            Target("gateway", figure="cpu_ms", at_most=0.6),
            Target("gateway", figure="cpu_ms", at_most=0.4, note="stretch"),
            Target("gateway", "plain", figure="cpu_ms", at_most=1.0),
            Target("gateway", "dramatiq-gevent", figure="cpu_ms"),
            Target("gateway", "bare asyncio", figure="cpu_ms"),
        ),
    ),
    Case(
        "200ms",
        "Merchants reply after 200 ms: 200 slots allow 1,000 orders/s",
        (
            Entry("gateway", WATCHED, _200_MS, 15_000, 60, 3000, 16),
            Entry("plain", PLAIN, _200_MS, 15_000, 60, 3000, 16),
            Entry("Celery threads", THREADS, _200_MS, 15_000, 60),
            Entry("dramatiq-gevent", DRAMATIQ, _200_MS, 15_000, 60),
            Entry("bare asyncio", ASYNCIO, _200_MS, 15_000, 60),
        ),
        (
            Target("gateway", figure="of_slots", at_least=0.98),
            Target("plain", figure="of_slots"),
            Target("Celery threads", figure="of_slots"),
            Target("dramatiq-gevent", figure="of_slots"),
            Target("bare asyncio", figure="of_slots"),
            Target("gateway", "plain"),
        ),
    ),
    Case(
        "500ms",
        "Merchants reply after 500 ms: 200 slots allow 400 orders/s",
        (
            Entry("gateway", WATCHED, _500_MS, 8000, 60, 2000, 16),
            Entry("plain", PLAIN, _500_MS, 8000, 60, 2000, 16),
            Entry("Celery threads", THREADS, _500_MS, 8000, 60),
            Entry("dramatiq-gevent", DRAMATIQ, _500_MS, 8000, 60),
            Entry("bare asyncio", ASYNCIO, _500_MS, 8000, 60),
        ),
        (
            Target("gateway", figure="of_slots", at_least=0.99),
            Target("plain", figure="of_slots"),
            Target("Celery threads", figure="of_slots"),
            Target("dramatiq-gevent", figure="of_slots"),
            Target("bare asyncio", figure="of_slots"),
            Target("gateway", "plain"),
        ),
    ),
    Case(
        "1s",
        "Merchants reply after 1 s: pods of the same memory, synchronous and not",
        (
            Entry("gateway", _WITH_MANY, _1_S, 10_000, 60, 2500, 16),
            Entry("gateway, prefork -c 4", SYNCHRONOUS, _1_S, 80, 40, 20, 12),
            Entry("Celery prefork -c 4", PREFORK, _1_S, 80, 40),
        ),
        (
            Target("gateway", "gateway, prefork -c 4", at_least=100, note="orders an hour too"),
            Target("gateway", "gateway, prefork -c 4", figure="memory", at_most=1.0),
            Target("gateway", "Celery prefork -c 4", figure="per_mib"),
        ),
    ),
)
