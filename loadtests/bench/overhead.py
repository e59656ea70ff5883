"""What the gateway adds to the time that a healthy merchant takes over an order, at 60 % load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.attacks.figures import Cost
from loadtests.bench.attacks.plays import (
    PROBE,
    Load,
    Observation,
    SteadySize,
    calibrated,
    steady_on_time,
)
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.cases import HEALTHY
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.load.histogram import percentile

NAME = "overhead"
#: Milliseconds that the gateway may add to an order's p50, from submitting it to its outcome.
MOST = 8.0

_SIZES = {False: SteadySize(5, 25), True: SteadySize(2, 8, settle=10)}


@dataclass(frozen=True, slots=True)
class Added:
    """One round. Milliseconds of half the orders and of 99 in 100, less the merchant's own."""

    rate: float
    #: Share of its core that the worker used.
    worker: float
    waited: float
    #: Until the order is at the POS; until its outcome, before it is durable; until the backend knows.
    to_pos: tuple[float, float]
    to_outcome: tuple[float, float]
    to_event: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Overhead:
    """Of each round that says something, and why others say nothing."""

    rounds: Sequence[Added]
    faults: Sequence[str] = ()


def measure(servers: Servers, rounds: int, *, quick: bool) -> Overhead:
    """Play rounds at the load that this machine's core has 60 % to do with.

    A quick run does not find out what that is: it has 300 orders a second.
    """
    trial, size = Trial(WATCHED, HEALTHY), _SIZES[quick]
    load = Load.at(PROBE) if quick else calibrated(servers, trial)
    runs = [steady_on_time(servers, trial, size, load, streamed=True) for _ in range(rounds)]
    wrong = [_fault(seen) for seen in runs]
    valid = [seen for seen, fault in zip(runs, wrong, strict=True) if not fault]
    return Overhead([_added(seen, load, size) for seen in valid], list(filter(None, wrong)))


def faults(cost: Overhead) -> Sequence[str]:
    """Why rounds say nothing."""
    return cost.faults


def report(cost: Overhead) -> str:
    """The table."""
    lines = [
        [
            f"round {number}",
            f"{each.rate:,.0f}",
            f"{each.worker:.0%}",
            f"{each.waited:.0%}",
            *(f"{ms:.1f}" for pair in (each.to_pos, each.to_outcome, each.to_event) for ms in pair),
        ]
        for number, each in enumerate(cost.rounds, 1)
    ]
    header = (
        *("ms beside the merchant's own", "orders/s", "worker", "had to wait"),
        *("to POS p50", "p99", "to outcome p50", "p99", "to event p50", "p99"),
    )
    return section(
        f"{NAME}: what the gateway adds to a healthy merchant's time",
        table(header, lines),
        verdicts([judge(cost)]),
        faults=cost.faults,
    )


def judge(cost: Overhead) -> Verdict:
    """The target."""
    return Verdict(
        "gateway: submit to outcome, p50, ms",
        [each.to_outcome[0] for each in cost.rounds],
        cost.faults,
        at_most=MOST,
        doubtful=any(each.waited > 0.1 for each in cost.rounds),
        form=".1f",
    )


def added(
    published: Mapping[str, float], reached: Mapping[str, float], own: float
) -> tuple[float, float]:
    """p50 and p99 of what the orders that were published took, in ms, less ``own`` seconds."""
    took = sorted(reached[order_id] - at - own for order_id, at in published.items())
    return 1000 * percentile(took, 0.5), 1000 * percentile(took, 0.99)


def _fault(seen: Observation) -> str:
    events, orders = len(seen.outcomes), len(seen.merchant_of)
    return seen.fault or ("" if events >= orders else f"{events:,} of {orders:,} events came")


def _added(seen: Observation, load: Load, size: SteadySize) -> Added:
    start = seen.scheduled.began + size.warm_up
    counted = {key: at for key, at in seen.scheduled.published.items() if at >= start}
    cost = Cost.between(seen.readings, start, max(counted.values()))
    return Added(
        load.rate,
        cost.worker,
        cost.waited,
        added(counted, seen.arrived, 0.0),
        added(counted, {key: at for key, (at, _) in seen.outcomes.items()}, load.latency),
        added(counted, {key: at for key, (_, at) in seen.outcomes.items()}, load.latency),
    )
