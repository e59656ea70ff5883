"""Throughput: the healthy merchants' orders a second, from a run with a full queue."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.full_queue import FIRST, LAST, LATENCY
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.run import limited_by
from loadtests.bench.window import Window


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


def throughput(seen: Observation, attack: Attack) -> Throughput:
    """The figures of the merchants that stay healthy in the attack."""
    spared = seen.spared(attack)
    arrivals = sorted(seen.arrived[each] for each in spared if each in seen.arrived)
    measured = measured_window(arrivals, len(spared), seen.struck, seen.ended)
    if measured is None or not (measured.orders or seen.trial.attack):
        nothing = Cost.of({})
        fault = seen.fault or f"{len(arrivals)} of {len(spared)} orders came"
        return Throughput(
            len(spared), 0.0, False, 0.0, 0.0, nothing, "", seen.filled_at, fault=fault
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
        limited_by=limited_by(
            seen.trial.candidate, LATENCY, everything / measured.seconds, cost.shares
        ),
        filled_at=seen.filled_at,
        accounting=seen.accounting,
        fault=seen.fault,
    )


def measured_window(
    arrivals: Sequence[float], planned: int, struck: float | None, ended: float
) -> Window | None:
    """From the trouble's beginning, or the first fifth of the orders, to nine tenths of them.

    It ends when time is up if they have not come by then. None if there is nothing to measure.

    Args:
        arrivals: when each order first reached its merchant, in order.
        planned: how many were to arrive.
        struck: when trouble began, if it did in mid-run.
        ended: when the run was ended.
    """
    first, last = ceil(planned * FIRST) - 1, ceil(planned * LAST) - 1
    if struck is not None:
        start = struck
    elif 0 <= first < len(arrivals):
        start = arrivals[first]
    elif arrivals:
        start = arrivals[0]
    else:
        return None
    complete = last < len(arrivals) and arrivals[last] > start
    end = arrivals[last] if complete else ended
    if end <= start:
        return None
    orders = bisect_right(arrivals, end) - bisect_right(arrivals, start)
    return Window(start, end, orders, complete)
