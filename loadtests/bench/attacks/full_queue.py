"""A run for throughput: the queue is full before the worker starts, as in the benchmark's cases."""

import time
from dataclasses import dataclass
from math import ceil

from loadtests.bench import filling, orders
from loadtests.bench.attacks.observation import Observation, unaccounted
from loadtests.bench.attacks.patience import wait_until
from loadtests.bench.attacks.trial import Trial, strike
from loadtests.bench.gauge import WORKER, Gauge
from loadtests.bench.run import account_for
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker

#: Seconds that a healthy merchant takes over an order: the worker's CPU is the limit.
LATENCY = 0.05
#: Share of the healthy merchants' orders that have come when trouble begins, and the figures with
#: it; and the share with which they end.
FIRST, LAST = 0.2, 0.9


@dataclass(frozen=True, slots=True)
class QueueSize:
    """How long it is to last."""

    quick: bool
    #: Seconds from the worker's start until it is stopped.
    limit: float


def full_queue(servers: Servers, trial: Trial, size: QueueSize) -> Observation:
    """Run the worker until all orders of healthy merchants have come, or time is up."""
    population, attack = trial.population, trial.attack
    number = population.quick_orders if size.quick else population.orders
    placed = list(orders.place_many(population.whose(number)))
    healthy = [each.order_id for each in placed if trial.is_healthy(each.merchant_id)]
    with trial.world(servers, LATENCY) as place:
        messages = [trial.candidate.message(order) for order in placed]
        filled = filling.fill(place.broker_url, messages)
        worker = Worker(trial.candidate.command, trial.environment(place), place.folder)
        began, struck, fault = time.time(), None, ""
        with worker:
            deadline = time.monotonic() + size.limit

            def reached(orders: int) -> bool:
                worker.check()
                return trial.created(place) >= orders

            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                if attack is not None and attack.mid_run:
                    if wait_until(lambda: reached(ceil(FIRST * len(healthy))), deadline):
                        struck = strike(place, attack, LATENCY)
                    else:
                        fault = "time was up before the trouble began"
                complete = wait_until(lambda: reached(len(healthy)), deadline)
            ended = time.time()
            arrived = {order_id: at for _, order_id, at in place.merchants.arrivals()}
            accounting = None
            if trial.candidate.accountable and complete:
                accounting = account_for(place, healthy)
            levels = place.merchants.levels(began)
    return Observation(
        trial,
        {each.order_id: each.merchant_id for each in placed},
        arrived,
        gauge.readings,
        began,
        ended,
        struck,
        levels,
        accounting=accounting,
        filled_at=filled.rate,
        fault=fault or unaccounted(accounting),
    )
