"""Plays a trial, and tells what was seen: with a full queue for throughput, or at a steady rate."""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Protocol

from kombu import Connection

from loadtests.bench import filling, orders
from loadtests.bench.accounting import Accounting, account, read_events
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.producer import TOLERANCE, Producer, Production, Schedule
from loadtests.bench.attacks.trial import Trial, strike
from loadtests.bench.candidate import OURS
from loadtests.bench.events.stream import Stream
from loadtests.bench.gauge import PRODUCER, WORKER, Gauge, Reading, used_between
from loadtests.bench.observing import Scraping, held
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError, wait_for_consumer, wait_until
from loadtests.bench.worker import MakeWorker, Worker
from loadtests.bench.world import World
from pos_gateway.broker import topology

#: Seconds that a healthy merchant takes over an order of a full queue: the worker's CPU is the limit.
LATENCY = 0.05
#: Share of the healthy merchants' orders that have come when trouble begins, and the figures with it.
FIRST = 0.2
#: Of a worker's core and of its slots, at a steady rate: it is not to be at its limits.
SHARE = 0.6
#: Orders a second at which it is found out how many that is on this machine: any can do them.
PROBE = 300.0
#: Seconds that a healthy merchant takes over an order, at least: the slots allow 1,000 a second.
QUICKEST = 0.2
#: Seconds for a worker to take or park a backlog.
_SIFTED = 60.0
#: Seconds without an event after which no more are expected: an order that was cut short comes again
#: after half a minute, if its merchant has no other that shows sooner how it does.
_SILENCE = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """Orders a second, and seconds that a healthy merchant takes over one."""

    rate: float
    latency: float

    @classmethod
    def at(cls, rate: float) -> "Load":
        """A rate of orders, and merchants whose replies take long enough for the slots' share."""
        return cls(rate, SHARE * OURS.slots / rate)

    @classmethod
    def share_of(cls, rate: float, cpu: float) -> "Load":
        """The load at which the worker's core has its share, if at this rate ``cpu`` of it was busy.

        No more than the slots allow. What an order costs is less the more orders there are, so that
        the core is busier than that rather than idler, coming from above.
        """
        return cls.at(min(SHARE * OURS.slots / QUICKEST, rate * SHARE / cpu))


@dataclass(frozen=True, slots=True)
class SteadySize:
    """How long a run at a steady rate lasts, in seconds."""

    #: Before trouble begins, and the figures with it.
    warm_up: float
    #: That the figures are of.
    measured: float
    #: For the last orders to arrive.
    settle: float = 5.0


class Beside(Protocol):
    """Other work for the worker, beside the orders that come at a steady rate."""

    def prepare(self, place: World) -> None:
        """What is done before the first order; the worker runs."""

    def send(self, place: World) -> AbstractContextManager[object]:
        """What is done after the warm-up, until the run's end."""

    def done(self, place: World) -> int:
        """How much of that work was done so far."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a run showed, before any figure is made of it. Times are of the wall clock."""

    trial: Trial
    #: The merchant of each order that was planned, by the order's id.
    merchant_of: Mapping[str, str]
    #: When each order that arrived first reached its merchant.
    arrived: Mapping[str, float]
    readings: Sequence[Reading]
    #: When the worker was started or, with a schedule, when the first order was published.
    began: float
    ended: float
    #: When the merchants got into trouble; None: before the beginning, or never.
    struck: float | None
    #: Requests in flight by group, as the merchants saw them.
    levels: Mapping[str, Sequence[tuple[float, int]]]
    #: What was published when, if orders came at a schedule.
    production: Production | None = None
    #: None if the candidate publishes no outcomes, or time was up.
    accounting: Accounting | None = None
    #: Orders a second at which the queue was filled, if it was.
    filled_at: float | None = None
    #: The most memory that the worker held, in MiB.
    peak: float = 0.0
    #: By order: when its outcome was, and when a consumer had its event; of a run with a stream.
    outcomes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    #: How much was done a second of the work beside, from the warm-up's end to the last planned order.
    others: float = 0.0
    #: Why the run says nothing; empty if it does.
    fault: str = ""

    def spared(self, attack: Attack | None) -> list[str]:
        """The orders of the merchants that stay healthy in this attack, be it this run's or not."""
        return [
            order_id
            for order_id, merchant_id in self.merchant_of.items()
            if attack is None or not attack.troubles(merchant_id)
        ]

    @property
    def scheduled(self) -> Production:
        """What was published when, of a run with a schedule."""
        assert self.production is not None, "no orders came at a schedule"
        return self.production


def unaccounted(accounting: Accounting | None) -> str:
    """What the gateway lost or doubled, which makes a run say nothing about it; empty: nothing."""
    return "" if accounting is None or accounting.adds_up else str(accounting)


def account_for(place: World, order_ids: Sequence[str]) -> Accounting:
    """Compare these orders with the merchants' records and the events in the broker."""
    events = read_events(place.broker_url, len(order_ids), patience=_SILENCE)
    return account(order_ids, place.merchants.orders(), events)


def full_queue(
    servers: Servers,
    trial: Trial,
    number: int,
    limit: float,
    *,
    latency: float = LATENCY,
    make: MakeWorker = Worker,
) -> Observation:
    """Start the worker on a full queue, until all orders of healthy merchants came or time is up."""
    attack = trial.attack
    placed = list(orders.place_many(trial.population.whose(number)))
    merchant_of = {each.order_id: each.merchant_id for each in placed}
    healthy = [order_id for order_id, each in merchant_of.items() if trial.is_healthy(each)]
    struck, fault, peak = None, "", 0.0
    with trial.world(servers, latency) as place:
        messages = [trial.candidate.message(order) for order in placed]
        filled = filling.fill(place.broker_url, messages)
        environment = trial.environment(place)
        scraping = Scraping(int(environment.get("POS_GATEWAY_METRICS_PORT", 0)))
        began = time.time()
        with make(trial.candidate.command, environment, place.folder) as worker:
            deadline = time.monotonic() + limit

            def reached(share: float) -> bool:
                nonlocal peak
                worker.check()
                scraping.look()
                peak = max(peak, held(worker.pid))
                return trial.created(place) >= ceil(share * len(healthy))

            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                if attack is not None and attack.mid_run:
                    if wait_until(lambda: reached(FIRST), deadline):
                        struck = strike(place, attack, latency)
                    else:
                        fault = "time was up before the trouble began"
                complete = wait_until(lambda: reached(1.0), deadline)
            ended = time.time()
            arrived = {order_id: at for _, order_id, at in place.merchants.arrivals()}
            accounting = None
            if trial.candidate.accountable and complete:
                accounting = account_for(place, healthy)
            levels = place.merchants.levels(began)
    return Observation(
        trial,
        merchant_of,
        arrived,
        gauge.readings,
        began,
        ended,
        struck,
        levels,
        accounting=accounting,
        filled_at=filled,
        peak=peak,
        fault=fault or unaccounted(accounting),
    )


def steady(
    servers: Servers,
    trial: Trial,
    size: SteadySize,
    load: Load,
    *,
    make: MakeWorker = Worker,
    streamed: bool = False,
    beside: Beside | None = None,
) -> Observation:
    """Publish the orders at their times; stop when those of healthy merchants have come, or soon.

    If ``streamed``, a consumer takes the events as they come, and the run waits for all of them. At a
    rate of 0 the run lasts as long, and the worker has the work ``beside`` alone.
    """
    attack, schedule = trial.attack, Schedule(load.rate, size.warm_up + size.measured)
    whose = trial.population.whose(schedule.orders)
    merchant_of = {f"order-{number}": merchant_id for number, merchant_id in enumerate(whose)}
    healthy = [order_id for order_id, each in merchant_of.items() if trial.is_healthy(each)]
    struck, backlog, others = None, 0 if attack is None else attack.backlog, 0.0
    with trial.world(servers, load.latency) as place:
        filling.declare(place.broker_url)
        stream = Stream(place.broker_url)
        worker = make(trial.candidate.command, trial.environment(place), place.folder)
        producer = Producer(place.broker_url, trial.candidate, schedule, whose, place.folder)

        def all_came() -> bool:
            worker.check()
            received = not streamed or len(stream.outcomes) >= schedule.orders
            return received and trial.created(place) >= len(healthy)

        with stream if streamed else nullcontext(), worker, ExitStack() as sent:
            wait_for_consumer(place.broker_url, worker)
            if attack is not None and backlog:
                _put_backlog(place.broker_url, trial, attack, schedule.orders)
            if beside is not None:
                beside.prepare(place)
            with producer:
                parts = {**place.parts(worker), PRODUCER: producer.pid}
                with Gauge(parts, waiting=WORKER) as gauge:
                    if attack is not None and attack.mid_run:
                        _sleep_until(producer.began + size.warm_up)
                        struck = strike(place, attack, load.latency)
                    if beside is not None:
                        _sleep_until(producer.began + size.warm_up)
                        before, since = beside.done(place), time.time()
                        sent.enter_context(beside.send(place))
                    production = producer.finish()
                    if beside is not None:
                        _sleep_until(producer.began + schedule.seconds)
                        others = (beside.done(place) - before) / (time.time() - since)
                    complete = wait_until(all_came, time.monotonic() + size.settle)
            ended = time.time()
            arrivals = place.merchants.arrivals()
            accounting = None
            if trial.candidate.accountable and complete and not (backlog or streamed or beside):
                accounting = account_for(place, healthy)
            levels, peak = place.merchants.levels(production.began), worker.peak
    behind = (
        "the producer fell behind its schedule: 1 in 100 orders was "
        f"{production.late * 1000:.0f} ms late"
    )
    return Observation(
        trial,
        merchant_of,
        {order_id: at for _, order_id, at in arrivals if order_id in merchant_of},
        gauge.readings,
        production.began,
        ended,
        struck,
        levels,
        production=production,
        accounting=accounting,
        peak=peak,
        outcomes=stream.outcomes,
        others=others,
        fault=behind if production.late > TOLERANCE else unaccounted(accounting),
    )


def steady_on_time(
    servers: Servers,
    trial: Trial,
    size: SteadySize,
    load: Load,
    *,
    make: MakeWorker = Worker,
    streamed: bool = False,
    beside: Beside | None = None,
) -> Observation:
    """The same, once more if the producer fell behind: something else was running."""
    play = partial(steady, servers, trial, size, load, make=make, streamed=streamed, beside=beside)
    observation = play()
    return play() if observation.scheduled.fell_behind else observation


def calibrated(servers: Servers, trial: Trial) -> Load:
    """The load that this machine is to have, from a short run of an undisturbed trial."""
    size = SteadySize(warm_up=3, measured=6)
    seen = steady_on_time(servers, trial, size, Load.at(PROBE))
    start = seen.scheduled.began + size.warm_up
    used = used_between(seen.readings, start, start + size.measured)
    return Load.share_of(PROBE, used[WORKER] / size.measured)


def _put_backlog(broker_url: str, trial: Trial, attack: Attack, first: int) -> None:
    """Publish it; if the attack is to begin with it sifted, wait until the worker has taken or parked it."""
    whose = [
        merchant_id
        for merchant_id in trial.population.merchant_ids
        if attack.troubles(merchant_id)
        for _ in range(attack.backlog)
    ]
    placed = orders.place_many(orders.shuffled(whose), first=first)
    filling.put(broker_url, [trial.candidate.message(order) for order in placed])
    if attack.sifted:
        wait_until_sifted(broker_url)


def wait_until_sifted(broker_url: str) -> None:
    """Return once the worker has taken or parked all orders. Raises InvalidRunError: it did not."""
    with Connection(broker_url) as connection:
        deadline = time.monotonic() + _SIFTED
        if not wait_until(lambda: not filling.depth(connection, topology.orders_queue), deadline):
            raise InvalidRunError(f"the backlog was not taken or parked within {_SIFTED:g} s")


def _sleep_until(moment: float) -> None:
    """Return at a moment of the wall clock."""
    time.sleep(max(0.0, moment - time.time()))
