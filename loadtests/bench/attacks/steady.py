"""A run for latency: orders come at a steady rate, whatever becomes of them."""

import time
from dataclasses import dataclass

from kombu import Connection

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.load import PROBE, Load, load_at, share_of
from loadtests.bench.attacks.observation import Observation, unaccounted
from loadtests.bench.attacks.patience import wait_for_consumer, wait_until
from loadtests.bench.attacks.producer import Producer
from loadtests.bench.attacks.schedule import TOLERANCE, Schedule
from loadtests.bench.attacks.trial import Trial, strike
from loadtests.bench.filling import depth, put
from loadtests.bench.gauge import PRODUCER, WORKER, Gauge
from loadtests.bench.orders import place_many, shuffled
from loadtests.bench.run import InvalidRunError, account_for
from loadtests.bench.servers import Servers
from loadtests.bench.worker import MakeWorker, Worker
from pos_gateway.broker import topology

#: Seconds for a worker to take or park a backlog.
_SIFTED = 60.0


@dataclass(frozen=True, slots=True)
class SteadySize:
    """How long it is to last, in seconds."""

    #: Before trouble begins, and the figures with it.
    warm_up: float
    #: That the figures are of.
    measured: float
    #: For the last orders to arrive.
    settle: float = 5.0


def steady(
    servers: Servers, trial: Trial, size: SteadySize, load: Load, *, make: MakeWorker = Worker
) -> Observation:
    """Publish the orders at their times; stop when those of healthy merchants have come, or soon."""
    schedule = Schedule(load.rate, size.warm_up + size.measured)
    whose = trial.population.whose(schedule.orders)
    merchant_of = {f"order-{number}": merchant_id for number, merchant_id in enumerate(whose)}
    healthy = [order_id for order_id, each in merchant_of.items() if trial.is_healthy(each)]
    struck = None
    with trial.world(servers, load.latency) as place:
        with Connection(place.broker_url) as connection:
            topology.declare(connection)
        worker = make(trial.candidate.command, trial.environment(place), place.folder)
        producer = Producer(place.broker_url, trial.candidate, schedule, whose, place.folder)
        with worker:
            wait_for_consumer(place.broker_url, worker)
            if trial.attack is not None and trial.attack.backlog:
                _put_backlog(place.broker_url, trial, trial.attack, schedule.orders)
            with producer:
                parts = {**place.parts(worker), PRODUCER: producer.pid}
                with Gauge(parts, waiting=WORKER) as gauge:
                    if trial.attack is not None and trial.attack.mid_run:
                        time.sleep(max(0.0, producer.began + size.warm_up - time.time()))
                        struck = strike(place, trial.attack, load.latency)
                    production = producer.finish()

                    def all_came() -> bool:
                        worker.check()
                        return trial.created(place) >= len(healthy)

                    complete = wait_until(all_came, time.monotonic() + size.settle)
            ended = time.time()
            arrived = {
                order_id: at
                for _, order_id, at in place.merchants.arrivals()
                if order_id in merchant_of
            }
            accounting = None
            has_backlog = trial.attack is not None and trial.attack.backlog > 0
            if trial.candidate.accountable and complete and not has_backlog:
                accounting = account_for(place, healthy)
            levels = place.merchants.levels(production.began)
            peak = worker.peak
    return Observation(
        trial,
        merchant_of,
        arrived,
        gauge.readings,
        production.began,
        ended,
        struck,
        levels,
        production=production,
        accounting=accounting,
        peak=peak,
        fault=_behind(production.late) or unaccounted(accounting),
    )


def calibrated(servers: Servers, trial: Trial) -> Load:
    """The load that this machine is to have, from a short run of an undisturbed trial."""
    size = SteadySize(warm_up=3, measured=6)
    seen = steady_on_time(servers, trial, size, load_at(PROBE))
    assert seen.production is not None, "no orders came at a schedule"
    start = seen.production.began + size.warm_up
    cost = Cost.between(seen.readings, start, start + size.measured)
    return share_of(PROBE, cost.worker)


def steady_on_time(servers: Servers, trial: Trial, size: SteadySize, load: Load) -> Observation:
    """The same, once more if the producer fell behind: something else was running."""
    observation = steady(servers, trial, size, load)
    if observation.production is not None and observation.production.fell_behind:
        observation = steady(servers, trial, size, load)
    return observation


def _put_backlog(broker_url: str, trial: Trial, attack: Attack, first: int) -> None:
    """Publish it, and wait until the worker has taken or parked all of it."""
    whose = [
        merchant_id
        for merchant_id in trial.population.merchant_ids
        if attack.troubles(merchant_id)
        for _ in range(attack.backlog)
    ]
    placed = place_many(shuffled(whose), first=first)
    put(broker_url, [trial.candidate.message(order) for order in placed])
    with Connection(broker_url) as connection:
        deadline = time.monotonic() + _SIFTED
        if not wait_until(lambda: not depth(connection, topology.orders_queue), deadline):
            raise InvalidRunError(f"the backlog was not taken or parked within {_SIFTED:g} s")


def _behind(late: float) -> str:
    if late <= TOLERANCE:
        return ""
    return f"the producer fell behind its schedule: 1 in 100 orders was {late * 1000:.0f} ms late"
