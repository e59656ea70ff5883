"""Runs of all-healthy merchants that are compared with each other, and what is wanted of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from loadtests.bench.attacks.attack import Group, Population
from loadtests.bench.attacks.bout import limits, shares
from loadtests.bench.attacks.figures import Throughput, throughput
from loadtests.bench.attacks.plays import full_queue
from loadtests.bench.attacks.trial import Trial
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
from loadtests.bench.report import Verdict, accounted, number, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import MakeWorker, Worker

#: Enough that no merchant's limit of ten binds before the slots do.
HEALTHY = Population((Group("healthy", 200, 1.0),), orders=0, quick_orders=0)
#: The share of the orders with whose arrival the figures begin.
FIRST = 0.1


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a case: a candidate, and merchants that reply after ``seconds``.

    Where the slots are the limit all start and end together, wave by wave: eight tenths of the
    orders, which are measured, are then whole waves.
    """

    name: str
    candidate: Candidate
    latency: float
    #: Orders, and the seconds from the worker's start until it is stopped.
    orders: int
    limit: float
    #: The same of a quick run; without orders there is none.
    quick_orders: int = 0
    quick_limit: float = 0.0
    merchants: Population = HEALTHY


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


@dataclass(frozen=True, slots=True)
class Case:
    """Runs that are compared with each other."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...] = ()

    def of_size(self, *, quick: bool) -> "Case":
        """The case without the entries that a quick run leaves out, and what is said of them."""
        entries = tuple(each for each in self.entries if each.quick_orders or not quick)
        names = {None, *(each.name for each in entries)}
        targets = tuple(each for each in self.targets if {each.entry, each.against} <= names)
        return replace(self, entries=entries, targets=targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Throughput):
    """What one run showed."""

    entry: str
    #: The rate's share of what slots and latency allow.
    of_slots: float
    #: The most memory that the worker's processes held, in MiB.
    memory: float
    #: It would have had to account for its orders, but time was up before the last.
    unfinished: bool

    @property
    def per_mib(self) -> float:
        """Orders a second for each MiB."""
        return self.rate / self.memory


#: One round: the results of a case's entries by name.
Round = Mapping[str, Result]

#: What targets are about, as it is called and written.
FIGURES = {
    "rate": ("orders/s", ",.0f"),
    "cpu_ms": ("CPU ms/order", ".2f"),
    "of_slots": ("of what the slots allow", ".3f"),
    "memory": ("MiB", ",.0f"),
    "per_mib": ("orders/s for a MiB", ".3f"),
}


def run(servers: Servers, entry: Entry, *, quick: bool, make: MakeWorker = Worker) -> Result:
    """Run the entry's worker until all orders have come, or time is up.

    Raises:
        InvalidRunError: nothing was measured, or the gateway lost or doubled an order.
        QueueNotFilledError: as it says.
        WorkerEndedError: likewise.
    """
    orders = entry.quick_orders if quick else entry.orders
    limit = entry.quick_limit if quick else entry.limit
    trial = Trial(entry.candidate, entry.merchants)
    seen = full_queue(servers, trial, orders, limit, latency=entry.latency, make=make)
    figures = throughput(seen, None, first=FIRST, latency=entry.latency)
    if figures.fault:
        raise InvalidRunError(f"{entry.name}: {figures.fault}")
    return Result(
        **{name: getattr(figures, name) for name in Throughput.__slots__},
        entry=entry.name,
        of_slots=figures.rate * entry.latency / entry.candidate.slots,
        memory=seen.peak,
        unfinished=entry.candidate.accountable and figures.accounting is None,
    )


_COLUMNS = (
    *("", "orders/s", "CPU ms/order", "MiB"),
    *("worker", "had to wait", "merchants", "RabbitMQ", "PostgreSQL", "limited by"),
)


def report(case: Case, rounds: Sequence[Round]) -> str:
    """A case's figures and targets as Markdown, which a terminal shows as well."""
    results = [result for each in rounds for result in each.values()]
    unfinished = ", ".join(dict.fromkeys(each.entry for each in results if each.unfinished))
    lines = [_line(entry.name, [each[entry.name] for each in rounds]) for entry in case.entries]
    return section(
        f"{case.name}: {case.title}",
        table(_COLUMNS, lines),
        verdicts(judge(target, rounds) for target in case.targets) if case.targets else "",
        accounted(each.accounting for each in results),
        unfinished and f"Not accounted for, since time was up before the last: {unfinished}.",
    )


def judge(target: Target, rounds: Sequence[Round]) -> Verdict:
    """A target's figure, or its ratio to another entry's within each round."""
    what, form = FIGURES[target.figure]
    note = f" ({target.note})" if target.note else ""

    def figures(entry: str) -> list[float]:
        return [float(getattr(each[entry], target.figure)) for each in rounds]

    values, of = figures(target.entry), target.entry
    if target.against is not None:
        others, form = figures(target.against), ",.2f"
        values = [ours / theirs for ours, theirs in zip(values, others, strict=True)]
        of += f" / {target.against}"
    return Verdict(
        f"{of}: {what}{note}",
        values,
        at_least=target.at_least,
        at_most=target.at_most,
        form=form,
    )


def _line(name: str, results: Sequence[Result]) -> list[str]:
    return [
        name,
        number(median(each.rate for each in results)),
        f"{median(each.cpu_ms for each in results):.2f}",
        number(median(each.memory for each in results)),
        *shares([each.cost for each in results]),
        limits(results),
    ]


#: Slots of a gateway that fits where the synchronous one does.
_MANY = 500
_WITH_MANY = replace(WATCHED, slots=_MANY, settings={"POS_GATEWAY_SLOTS": str(_MANY)})


def _of_slots(name: str, latency: float, orders: int, quick_orders: int, share: float) -> Case:
    """A case in which the slots are the limit."""
    long, quick = (orders, 60), (quick_orders, 16)
    allowed = round(WATCHED.slots / latency)
    rivals = {"Celery threads": THREADS, "dramatiq-gevent": DRAMATIQ, "bare asyncio": ASYNCIO}
    return Case(
        name,
        f"Merchants reply after {latency * 1000:.0f} ms: 200 slots allow {allowed:,} orders/s",
        (
            Entry("gateway", WATCHED, latency, *long, *quick),
            Entry("plain", PLAIN, latency, *long, *quick),
            *(Entry(rival, candidate, latency, *long) for rival, candidate in rivals.items()),
        ),
        (
            Target("gateway", figure="of_slots", at_least=share),
            *(Target(other, figure="of_slots") for other in ("plain", *rivals)),
            Target("gateway", "plain"),
        ),
    )


CASES = (
    Case(
        "20ms",
        "Merchants reply after 20 ms: what a worker can do",
        (
            Entry("gateway", WATCHED, 0.02, 15_000, 60, 3000, 16),
            Entry("plain", PLAIN, 0.02, 15_000, 60, 3000, 16),
            Entry("Celery threads", THREADS, 0.02, 15_000, 60, 2000, 16),
            Entry("dramatiq-gevent", DRAMATIQ, 0.02, 15_000, 60, 3000, 16),
            Entry("bare asyncio", ASYNCIO, 0.02, 15_000, 60, 3000, 16),
            # Its first window of 800 may start at once, before Celery's loop begins to count out
            # ten a second: enough orders that the first tenth of them lies behind it.
            Entry("plain, no flags", PLAIN_WITHOUT_FLAGS, 0.02, 8500, 30),
            Entry("gateway, prefork -c 4", SYNCHRONOUS, 0.02, 2000, 30),
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
    _of_slots("200ms", 0.2, 15_000, 3000, 0.98),
    _of_slots("500ms", 0.5, 8000, 2000, 0.99),
    Case(
        "1s",
        "Merchants reply after 1 s: pods of the same memory, synchronous and not",
        (
            Entry("gateway", _WITH_MANY, 1.0, 10_000, 60, 2500, 16),
            Entry("gateway, prefork -c 4", SYNCHRONOUS, 1.0, 80, 40, 20, 12),
            Entry("Celery prefork -c 4", PREFORK, 1.0, 80, 40),
        ),
        (
            Target("gateway", "gateway, prefork -c 4", at_least=100, note="orders an hour too"),
            Target("gateway", "gateway, prefork -c 4", figure="memory", at_most=1.0),
            Target("gateway", "Celery prefork -c 4", figure="per_mib"),
        ),
    ),
)
