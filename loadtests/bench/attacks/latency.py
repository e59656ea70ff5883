"""Latency: from an order's entering the queue to its arrival at the POS, at a steady rate."""

from dataclasses import dataclass

from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.observation import Observation
from loadtests.load.histogram import percentile


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the merchants that stay healthy in an attack, be the run under it or undisturbed."""

    orders: int
    #: Orders that came in a second, of whichever merchants.
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


def latency(seen: Observation, attack: Attack, warm_up: float) -> Latency:
    """The figures of the merchants that stay healthy in the attack, after the warm-up."""
    production = seen.production
    assert production is not None, "no orders came at a schedule"
    start = production.began + warm_up if seen.struck is None else seen.struck
    counted = {
        order_id: production.published[order_id]
        for order_id in seen.spared(attack)
        if production.published[order_id] >= start
    }
    seconds = sorted(seen.arrived.get(each, seen.ended) - at for each, at in counted.items())
    missing = sum(each not in seen.arrived for each in counted)
    cost = Cost.between(seen.readings, start, max(production.published.values()))
    return Latency(
        orders=len(counted),
        rate=len(production.published) / (max(production.published.values()) - production.began),
        missing=missing,
        p50=percentile(seconds, 0.5),
        p99=percentile(seconds, 0.99),
        worst=seconds[-1],
        late=production.late,
        cost=cost,
        disturbed_by=disturbed_by(cost, production.fell_behind),
        accounting=seen.accounting,
        fault=seen.fault,
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
