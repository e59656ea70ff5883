"""Figures of the healthy merchants from what a run showed: throughput, latency, and what it cost."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean

from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.plays import FIRST, LATENCY, Observation
from loadtests.bench.attacks.series import slots
from loadtests.bench.candidate import Candidate
from loadtests.bench.gauge import (
    BROKER,
    DATABASE,
    MACHINE,
    PRODUCER,
    SIMULATOR,
    WAITED,
    WORKER,
    Reading,
    used_between,
)
from loadtests.load.histogram import percentile

#: The share of the orders with whose arrival the figures end.
LAST = 0.9


@dataclass(frozen=True, slots=True)
class Cost:
    """Shares of one core; ``machine`` is all cores' sum."""

    worker: float = 0.0
    #: Share of the time that the worker was ready to run and had no core to run on.
    waited: float = 0.0
    simulator: float = 0.0
    rabbitmq: float = 0.0
    postgresql: float = 0.0
    machine: float = 0.0
    producer: float = 0.0

    @classmethod
    def between(cls, readings: Sequence[Reading], start: float, end: float) -> "Cost":
        """The cost between two moments."""
        used = used_between(readings, start, end)
        parts = (WORKER, WAITED, SIMULATOR, BROKER, DATABASE, MACHINE, PRODUCER)
        return cls(*(used.get(part, 0.0) / (end - start) for part in parts))


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of wall-clock time and the orders that arrived in it."""

    start: float
    end: float
    orders: int
    #: Nine tenths of the orders came; else time was up before.
    complete: bool

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    @property
    def rate(self) -> float:
        """Orders a second."""
        return self.orders / self.seconds


def window(
    arrivals: Sequence[float],
    planned: int,
    ended: float,
    *,
    first: float = FIRST,
    struck: float | None = None,
) -> Window | None:
    """The part of a run that counts: start-up and the last stragglers do not.

    From the trouble's beginning, or the first share of the orders, to nine tenths of them. Shares are
    of the planned orders, not of those that came: of a worker that sends 1,000 orders in a second and
    then none for 20, the 20 seconds are to be measured. If the last mark is not reached the window ends
    with the run; if not even the first one is, it begins with the first order. None if there is nothing
    to measure.

    Args:
        arrivals: when each order first reached its merchant, in any order.
        planned: how many were to arrive.
        ended: when the run was ended.
        first: the share of the orders with which it begins.
        struck: when trouble began, if it did in mid-run.
    """
    times = sorted(arrivals)
    begin, last = ceil(planned * first) - 1, ceil(planned * LAST) - 1
    if struck is None and not times:
        return None
    start = struck if struck is not None else times[begin if 0 <= begin < len(times) else 0]
    complete = last < len(times) and times[last] > start
    end = times[last] if complete else ended
    if end <= start:
        return None
    return Window(start, end, bisect_right(times, end) - bisect_right(times, start), complete)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of the merchants that stay healthy in an attack, be the run under it or undisturbed."""

    planned: int
    seconds: float
    #: Nine tenths of the orders came before time was up.
    complete: bool
    rate: float
    #: CPU milliseconds of the worker for each order that came, those of the others included.
    cpu_ms: float
    cost: Cost
    limited_by: str
    filled_at: float | None
    #: Of all orders of merchants that stayed healthy; None if there was none.
    accounting: Accounting | None = None
    #: Why the run says nothing; empty if it does.
    fault: str = ""


def throughput(
    seen: Observation, attack: Attack | None, *, first: float = FIRST, latency: float = LATENCY
) -> Throughput:
    """The figures of the merchants that stay healthy in the attack, from a run with a full queue."""
    spared = seen.spared(attack)
    arrivals = [seen.arrived[each] for each in spared if each in seen.arrived]
    measured = window(arrivals, len(spared), seen.ended, first=first, struck=seen.struck)
    if measured is None or not (measured.orders or seen.trial.attack):
        fault = seen.fault or f"{len(arrivals)} of {len(spared)} orders came"
        return Throughput(
            len(spared), 0.0, False, 0.0, 0.0, Cost(), "", seen.filled_at, fault=fault
        )
    cost = Cost.between(seen.readings, measured.start, measured.end)
    everything = sum(measured.start < at <= measured.end for at in seen.arrived.values())
    return Throughput(
        planned=len(spared),
        seconds=measured.seconds,
        complete=measured.complete,
        rate=measured.rate,
        cpu_ms=1000 * cost.worker * measured.seconds / max(1, everything),
        cost=cost,
        limited_by=limited_by(seen.trial.candidate, latency, everything / measured.seconds, cost),
        filled_at=seen.filled_at,
        accounting=seen.accounting,
        fault=seen.fault,
    )


def limited_by(candidate: Candidate, latency: float, rate: float, cost: Cost) -> str:
    """What kept the rate from being higher, as far as the figures tell.

    The producer never does: the queue is full before the worker starts, which ``fill`` checks.

    Args:
        candidate: what ran.
        latency: seconds that its merchants take over an order.
        rate: orders a second, those of merchants in trouble included.
        cost: of the same stretch.
    """
    if cost.simulator > 0.9:
        return "SIMULATOR"  # in capitals: the figure is a lower bound
    if rate > 0.9 * candidate.slots / latency:
        return f"its {candidate.slots} slots"
    if cost.waited > 0.1 * candidate.processes:
        return "CORES (shared)"
    if cost.worker > 0.85 * candidate.processes:
        return "its CPU"
    return "its waiting"


@dataclass(frozen=True, slots=True)
class Latency:
    """From an order's entering the queue to its arrival at the POS, of merchants that stay healthy."""

    orders: int
    #: Orders that came in a second, of all merchants.
    rate: float
    #: Those that had not arrived when time was up; until then they count as on their way, so that
    #: the percentiles are lower bounds.
    missing: int
    #: Seconds.
    p50: float
    p99: float
    worst: float
    #: Seconds by which the latest hundredth of the orders was published late, or more.
    late: float
    cost: Cost
    disturbed_by: str
    #: Of all orders of merchants that stayed healthy; None if there was none.
    accounting: Accounting | None = None
    #: Why the run says nothing; empty if it does.
    fault: str = ""
    #: The most memory that the worker held, in MiB.
    peak: float = 0.0
    #: The share of the slots that merchants in trouble held, on average.
    held: float = 0.0


def latency(seen: Observation, attack: Attack, warm_up: float) -> Latency:
    """The figures of the merchants that stay healthy in the attack, after the warm-up."""
    production = seen.scheduled
    start = production.began + warm_up if seen.struck is None else seen.struck
    counted = {
        order_id: production.published[order_id]
        for order_id in seen.spared(attack)
        if production.published[order_id] >= start
    }
    seconds = sorted(seen.arrived.get(each, seen.ended) - at for each, at in counted.items())
    last = max(production.published.values())
    cost = Cost.between(seen.readings, start, last)
    troubled = slots(seen.levels, attack.troubled, start, last)["troubled"]
    return Latency(
        orders=len(counted),
        rate=len(production.published) / (last - production.began),
        missing=sum(each not in seen.arrived for each in counted),
        p50=percentile(seconds, 0.5),
        p99=percentile(seconds, 0.99),
        worst=seconds[-1],
        late=production.late,
        cost=cost,
        disturbed_by=disturbed_by(cost, production.fell_behind),
        accounting=seen.accounting,
        fault=seen.fault,
        peak=seen.peak,
        held=fmean(troubled or [0.0]) / seen.trial.candidate.slots,
    )


def disturbed_by(cost: Cost, fell_behind: bool) -> str:
    """What else than the merchants in trouble may have delayed orders; in capitals: not the worker.

    At 60 % of what the slots allow nothing should.
    """
    if fell_behind:
        return "PRODUCER"
    if cost.simulator > 0.9:
        return "SIMULATOR"
    if cost.waited > 0.1:
        return "CORES (shared)"
    if cost.worker > 0.95:
        return "its CPU"
    return "nothing"
