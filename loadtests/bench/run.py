"""One run: fill a queue, start a worker, and see from the merchants' side what it does."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from loadtests.bench import filling, orders
from loadtests.bench.accounting import Accounting, account, read_events
from loadtests.bench.candidate import Candidate
from loadtests.bench.gauge import (
    BROKER,
    DATABASE,
    MACHINE,
    SIMULATOR,
    WAITED,
    WORKER,
    Gauge,
    used_between,
)
from loadtests.bench.memory import held
from loadtests.bench.scenario import Entry
from loadtests.bench.scraping import Scraping
from loadtests.bench.servers import Servers
from loadtests.bench.window import window
from loadtests.bench.worker import MakeWorker, Worker
from loadtests.bench.world import World, world
from testkit.merchants.client import SimulatedMerchants

#: Seconds between two looks at whether all orders have come.
_LOOK = 0.2
#: Seconds without an event after which no more are expected: an order that was cut short comes again
#: after half a minute, if its merchant has no other that shows sooner how it does.
_PATIENCE = 60.0


class InvalidRunError(RuntimeError):
    """Raised when a run says nothing about the worker."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run showed. Shares are of one core, over the window."""

    entry: str
    candidate: str
    planned: int
    seconds: float
    complete: bool
    #: Orders a second, and their share of what slots and latency allow.
    rate: float
    of_slots: float
    #: CPU milliseconds of the worker's processes for each of them.
    cpu_ms: float
    #: The most memory that they held, in MiB.
    memory: float
    worker: float
    simulator: float
    rabbitmq: float
    postgresql: float
    #: Share of the whole machine that was busy.
    machine: float
    #: Share of the time that the worker was ready to run and had no core to run on.
    waited: float
    limited_by: str
    #: Orders a second at which the queue was filled, before the worker started.
    filled_at: float
    #: None if the candidate publishes no outcomes, or time was up.
    accounting: Accounting | None
    #: It would have had to account for its orders, but time was up before the last.
    unfinished: bool

    @property
    def per_mib(self) -> float:
        """Orders a second for each MiB."""
        return self.rate / self.memory

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def run(servers: Servers, entry: Entry, *, quick: bool, make: MakeWorker = Worker) -> Result:
    """Run the entry's worker until all orders have come, or time is up.

    Raises:
        InvalidRunError: nothing was measured, or the gateway lost or doubled an order.
        QueueNotFilledError: as it says.
        WorkerEndedError: likewise.
    """
    scenario, candidate = entry.scenario, entry.candidate
    number = entry.quick_orders if quick else entry.orders
    limit = entry.quick_limit if quick else entry.limit
    placed = list(orders.place_many(orders.spread(number, scenario.merchant_ids)))
    with world(servers, scenario.merchant_ids, scenario.profiles) as place:
        filled = filling.fill(place.broker_url, [candidate.message(order) for order in placed])
        environment = candidate.environment(place, scenario.timeout)
        scraping = Scraping(int(environment.get("POS_GATEWAY_METRICS_PORT", 0)))
        memory = 0.0
        with make(candidate.command, environment, place.folder) as worker:

            def look() -> None:
                nonlocal memory
                worker.check()
                scraping.look()
                memory = max(memory, held(worker.pid))

            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                _wait_for(look, place.merchants, number, time.monotonic() + limit)
            time_up = time.time()
            arrivals = [at for _, _, at in place.merchants.arrivals()]
            accounting = None
            if candidate.accountable and len(arrivals) >= number:
                accounting = account_for(place, [order.order_id for order in placed])
    measured = window(arrivals, number, time_up)
    if measured is None:
        raise InvalidRunError(f"{entry.name}: {len(arrivals)} orders came in {limit} s")
    if accounting is not None and not accounting.adds_up:
        raise InvalidRunError(f"{entry.name}: {accounting}")
    used = used_between(gauge.readings, measured.start, measured.end)
    shares = {part: seconds / measured.seconds for part, seconds in used.items()}
    return Result(
        entry=entry.name,
        candidate=candidate.name,
        planned=number,
        seconds=measured.seconds,
        complete=measured.complete,
        rate=measured.rate,
        of_slots=measured.rate * scenario.latency / candidate.slots,
        cpu_ms=1000 * used[WORKER] / max(1, measured.orders),
        memory=memory,
        worker=shares[WORKER],
        simulator=shares[SIMULATOR],
        rabbitmq=shares[BROKER],
        postgresql=shares.get(DATABASE, 0.0),
        machine=shares[MACHINE],
        waited=shares[WAITED],
        limited_by=limited_by(candidate, scenario.latency, measured.rate, shares),
        filled_at=filled.rate,
        accounting=accounting,
        unfinished=candidate.accountable and accounting is None,
    )


def limited_by(
    candidate: Candidate, latency: float, rate: float, shares: Mapping[str, float]
) -> str:
    """What kept the rate from being higher, as far as the figures tell.

    The producer never does: the queue is full before the worker starts, which ``fill`` checks.

    Args:
        candidate: what ran.
        latency: seconds that its merchants take over an order.
        rate: orders a second, those of merchants in trouble included.
        shares: of one core, by part.
    """
    if shares[SIMULATOR] > 0.9:
        return "SIMULATOR"  # in capitals: the figure is a lower bound
    if rate > 0.9 * candidate.slots / latency:
        return f"its {candidate.slots} slots"
    if shares[WAITED] > 0.1 * candidate.processes:
        return "CORES (shared)"
    if shares[WORKER] > 0.85 * candidate.processes:
        return "its CPU"
    return "its waiting"


def _wait_for(
    look: Callable[[], None], merchants: SimulatedMerchants, orders: int, deadline: float
) -> None:
    while time.monotonic() < deadline:
        look()
        healthy = merchants.summary()["profiles"].get("healthy", {"creates": 0})
        if healthy["creates"] >= orders:
            return
        time.sleep(_LOOK)


def account_for(place: World, order_ids: list[str]) -> Accounting:
    """Compare these orders with the merchants' records and the events in the broker."""
    events = read_events(place.broker_url, len(order_ids), patience=_PATIENCE)
    return account(order_ids, place.merchants.orders(), events)
