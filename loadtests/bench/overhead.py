"""What the gateway adds to the time that a healthy merchant takes over an order, at 60 % load."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kombu import Connection

from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.load import PROBE, Load, load_at
from loadtests.bench.attacks.patience import wait_for_consumer, wait_until
from loadtests.bench.attacks.population import Group, Population
from loadtests.bench.attacks.producer import Producer
from loadtests.bench.attacks.schedule import Schedule
from loadtests.bench.attacks.steady import SteadySize, calibrated
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.events.stream import Stream
from loadtests.bench.gauge import PRODUCER, WORKER, Gauge
from loadtests.bench.report import table
from loadtests.bench.run import InvalidRunError
from loadtests.bench.servers import Servers
from loadtests.bench.verdict import Verdict
from loadtests.bench.worker import Worker
from loadtests.load.histogram import percentile
from pos_gateway.broker import topology

NAME = "overhead"
#: Milliseconds that the gateway may add to an order's p50, from submitting it to its outcome.
MOST = 8.0

_POPULATION = Population((Group("healthy", 200, 1.0),), orders=0, quick_orders=0)
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

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [asdict(each) for each in self.rounds]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Overhead:
    """Play rounds at the load that this machine's core has 60 % to do with.

    A quick run does not find out what that is: it has 300 orders a second.
    """
    load = load_at(PROBE) if quick else calibrated(servers, Trial(WATCHED, _POPULATION))
    played, faults = [], []
    for _ in range(rounds):
        try:
            played.append(_played(servers, load, _SIZES[quick]))
        except InvalidRunError as error:
            faults.append(str(error))
    return Overhead(played, faults)


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
    verdict = judge(cost)
    parts = (
        f"## {NAME}: what the gateway adds to a healthy merchant's time",
        table(header, lines),
        table(("", "median", "rounds", "target", ""), [verdict.line()]),
        *(f"Invalid: {fault}." for fault in cost.faults),
    )
    return "\n\n".join(parts) + "\n"


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


def _played(servers: Servers, load: Load, size: SteadySize) -> Added:
    try:
        return _play(servers, load, size)
    except InvalidRunError:  # something else was running
        return _play(servers, load, size)


def _play(servers: Servers, load: Load, size: SteadySize) -> Added:
    schedule = Schedule(load.rate, size.warm_up + size.measured)
    whose = _POPULATION.whose(schedule.orders)
    trial = Trial(WATCHED, _POPULATION)
    with trial.world(servers, load.latency) as place:
        with Connection(place.broker_url) as connection:
            topology.declare(connection)
        worker = Worker(WATCHED.command, trial.environment(place), place.folder)
        producer = Producer(place.broker_url, WATCHED, schedule, whose, place.folder)
        with Stream(place.broker_url) as stream, worker:
            wait_for_consumer(place.broker_url, worker)
            with producer:
                parts = {**place.parts(worker), PRODUCER: producer.pid}
                with Gauge(parts, waiting=WORKER) as gauge:
                    production = producer.finish()
                    deadline = time.monotonic() + load.latency + size.settle
                    wait_until(lambda: len(stream.outcomes) >= schedule.orders, deadline)
                worker.check()
        arrived = {order_id: at for _, order_id, at in place.merchants.arrivals()}
    if len(stream.outcomes) < schedule.orders or production.fell_behind:
        raise InvalidRunError(
            f"{len(stream.outcomes):,} of {schedule.orders:,} events came; 1 in 100 orders was "
            f"published {1000 * production.late:.0f} ms late"
        )
    start = production.began + size.warm_up
    counted = {order_id: at for order_id, at in production.published.items() if at >= start}
    cost = Cost.between(gauge.readings, start, max(counted.values()))
    return Added(
        load.rate,
        cost.worker,
        cost.waited,
        added(counted, arrived, 0.0),
        added(counted, {key: at for key, (at, _) in stream.outcomes.items()}, load.latency),
        added(counted, {key: at for key, (_, at) in stream.outcomes.items()}, load.latency),
    )
