"""A dead merchant with thousands of orders ahead of all others: sifted, parked, and drained.

Parked orders may be anywhere and in any form: this looks at the queue ``orders`` and at the
merchants only.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection

from loadtests.bench import filling, orders
from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.figures import Cost
from loadtests.bench.attacks.plays import QUICKEST, account_for, unaccounted
from loadtests.bench.attacks.producer import Producer, Schedule
from loadtests.bench.attacks.series import slots
from loadtests.bench.attacks.trial import TIMEOUT
from loadtests.bench.candidate import OURS, PLAIN, Candidate
from loadtests.bench.gauge import WORKER, Gauge
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer, wait_until
from loadtests.bench.worker import Worker
from loadtests.bench.world import World, world
from loadtests.load.histogram import percentile
from pos_gateway.broker import topology
from pos_gateway.simulated_merchants.levels import BUCKETS

NAME, LETTER = "backlog", "d"
#: Rounds, unless more are asked for: one takes minutes.
ROUNDS = 1

#: Pairs of a moment and the orders made then, from the merchants' records.
Timeline = Sequence[tuple[float, int]]

DEAD, HEALTHY = "dead", "healthy"
_DEAD_ID = f"{DEAD}-0"
_HEALTHY_IDS = [f"{HEALTHY}-{number}" for number in range(200)]

#: The dead merchant's limit, and the seconds it takes over an order once it has recovered.
LIMIT, RECOVERED = 10, 0.05
#: Orders a second that it can take then.
ITS_RATE = LIMIT / RECOVERED
#: Share of these that make a drain, and the seconds over which they are counted.
SHARE, WIDTH = 0.9, 10.0
#: Orders a second for healthy merchants while its own are parked: far from what a worker can do.
RATE = 300.0

#: Seconds for the last healthy orders of the flow; and between two looks at the drain.
_SETTLE, _LOOK = 10.0, 0.5


@dataclass(frozen=True, slots=True)
class BacklogSize:
    """How many orders, and the seconds of each part."""

    #: The dead merchant's orders, and the healthy ones' behind them.
    dead: int
    behind: int
    #: For the healthy orders behind to come.
    sift: float
    #: Between the first of them and the measuring of what the parked orders cost, and that itself.
    rest: float = 10.0
    idle: float = 40.0
    #: Of healthy orders at a steady rate while the others are parked; 0: the run ends before.
    flow: float = 10.0
    #: For the drain to begin, and that it is watched from then on.
    recovery: float = 90.0
    drain: float = 20.0


#: Who plays, quick or not. Plain Celery is watched while it does not come to the healthy orders.
BACKLOGS = {
    False: (
        (OURS, BacklogSize(20_000, 1000, sift=60)),
        (PLAIN, BacklogSize(20_000, 1000, sift=20, flow=0)),
    ),
    True: (
        (OURS, BacklogSize(6000, 500, sift=30, rest=5, idle=8, flow=5, recovery=65, drain=8)),
        (PLAIN, BacklogSize(6000, 500, sift=10, flow=0)),
    ),
}


#: The figures of a run, in the order in which it comes to them, and how each is written.
FIRST_ORDER, RECOVERED_AFTER = "first healthy order, s", "drain begins, s"
_FORMS = {
    "sifted, orders/s": ",.0f",
    FIRST_ORDER: ".1f",
    "last healthy order behind, s": ".1f",
    "parked: worker": ".1%",
    "parked: RabbitMQ": ".1%",
    "parked: PostgreSQL": ".1%",
    "parked: requests/s at the dead one": ".1f",
    "parked: left in queue orders": ",.0f",
    f"parked: healthy at {RATE:.0f}/s, p50 ms": ".1f",
    f"parked: healthy at {RATE:.0f}/s, p99 ms": ".1f",
    "parked: healthy that did not come": ",.0f",
    RECOVERED_AFTER: ".1f",
    "drained then, orders/s": ",.0f",
}
#: What is wanted of the gateway.
_WANTED: Mapping[str, Mapping[str, Any]] = {
    "sifted, orders/s": {"at_least": 2500.0},
    FIRST_ORDER: {"at_most": 10.0},
    "parked: worker": {"at_most": 0.10},
    RECOVERED_AFTER: {"at_most": 60.0},
}


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a run showed."""

    candidate: str
    dead: int
    #: By name; infinite: it did not happen in time; not there: the run did not come to it.
    figures: Mapping[str, float]
    #: None if the candidate publishes no outcomes, or not all healthy ones came.
    accounting: Accounting | None = None
    #: Requests in flight in each tenth of a second from the worker's start, by class.
    slots: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def fault(self) -> str:
        """Why it says nothing; empty if it does."""
        return unaccounted(self.accounting)

    def series(self) -> dict[str, Any]:
        """Its slots over time, as those of an attack."""
        return {
            "run": NAME,
            "candidate": self.candidate,
            "attack": NAME,
            "step": 1 / BUCKETS,
            "slots": self.slots,
        }


def measure(servers: Servers, rounds: int, *, quick: bool) -> list[list[Backlog]]:
    """Each candidate in turn; nothing is compared, so plain Celery plays in the first round only."""
    return [
        [play_backlog(servers, *each) for each in BACKLOGS[quick][: None if turn == 0 else 1]]
        for turn in range(rounds)
    ]


def report(rounds: Sequence[Sequence[Backlog]]) -> str:
    """What each candidate's runs showed, and the gateway's targets."""
    played = [each for results in rounds for each in results]
    orders = max(each.dead for each in played)
    lines = [[name, *(_shown(each, name) for each in rounds[0])] for name in _FORMS]
    return section(
        f"{NAME} ({LETTER}): a dead merchant's {orders:,} orders are queued ahead of all others",
        table(("first round", *(each.candidate for each in rounds[0])), lines),
        verdicts(judge([each for each in played if each.candidate == OURS.name]), "gateway"),
        faults=faults(rounds),
    )


def _shown(run: Backlog, name: str) -> str:
    figure = run.figures.get(name)
    if figure is None:
        return "-"
    return "not in time" if math.isinf(figure) else format(figure, _FORMS[name])


def faults(rounds: Sequence[Sequence[Backlog]]) -> list[str]:
    """Why runs say nothing."""
    return [f"{each.candidate}: {each.fault}" for played in rounds for each in played if each.fault]


def judge(results: Sequence[Backlog]) -> list[Verdict]:
    """The gateway's targets. What a run did not come to is infinitely late."""
    valid = [each.figures for each in results if not each.fault]
    return [
        Verdict(name, [each.get(name, math.inf) for each in valid], form=_FORMS[name], **wanted)
        for name, wanted in _WANTED.items()
    ]


def play_backlog(servers: Servers, candidate: Candidate, size: BacklogSize) -> Backlog:
    """Play the parts in turn; the later ones only if the healthy orders behind have come."""
    profiles = {DEAD: {"kind": "hang"}, HEALTHY: {"kind": "accept", "latency": QUICKEST}}
    whose = [_DEAD_ID] * size.dead + orders.spread(size.behind, _HEALTHY_IDS)
    placed = list(orders.place_many(whose))
    terms = {DEAD: {"max_concurrency": LIMIT}}
    with world(servers, [_DEAD_ID, *_HEALTHY_IDS], profiles, terms) as place:
        filling.fill(place.broker_url, [candidate.message(order) for order in placed])
        environment, began = candidate.environment(place, TIMEOUT), time.time()
        with Worker(candidate.command, environment, place.folder) as worker:
            run = _Run(place, candidate, worker, size)
            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                if run.sift():
                    run.rest(gauge)
                    if size.flow:
                        run.flow()
                        run.recover()
            accounting = None
            if candidate.accountable and run.came == run.healthy:
                healthy = [f"order-{size.dead + each}" for each in range(run.healthy)]
                accounting = account_for(place, healthy)
            held = slots(place.merchants.levels(began), {DEAD}, began, time.time())
    return Backlog(candidate.name, size.dead, run.figures, accounting, held)


class _Run:
    """The parts of a run, each of which adds its figures."""

    def __init__(
        self, place: World, candidate: Candidate, worker: Worker, size: BacklogSize
    ) -> None:
        self._place, self._candidate, self._worker, self._size = place, candidate, worker, size
        #: Healthy merchants' orders, and how many of them came.
        self.healthy, self.came = size.behind, 0
        self._first = 0.0
        self.figures: dict[str, float] = {}

    def sift(self) -> bool:
        """The worker comes to the healthy orders behind; whether it did in time."""
        ready = wait_for_consumer(self._place.broker_url, self._worker)
        sifted = self._wait(self._size.sift)
        arrivals = self._place.merchants.arrivals()
        came = sorted(at for each, _, at in arrivals if each != _DEAD_ID)
        if came:
            self._first = came[0]
            rate = self._size.dead / max(1e-9, came[0] - ready)
        else:
            taken = self._size.dead + self._size.behind - self._depth()
            rate = taken / (time.time() - ready)
        self.figures["sifted, orders/s"] = rate
        self.figures[FIRST_ORDER] = came[0] - ready if came else math.inf
        self.figures["last healthy order behind, s"] = came[-1] - ready if sifted else math.inf
        return sifted

    def rest(self, gauge: Gauge) -> None:
        """Everything is parked and nothing comes."""
        time.sleep(max(0.0, self._first + self._size.rest - time.time()))
        before, start = self._requests(), time.time()
        time.sleep(self._size.idle)
        end, requests = time.time(), self._requests() - before
        cost = Cost.between(gauge.readings, start, end)
        self.figures |= {
            "parked: worker": cost.worker,
            "parked: RabbitMQ": cost.rabbitmq,
            "parked: PostgreSQL": cost.postgresql,
            "parked: requests/s at the dead one": requests / (end - start),
            "parked: left in queue orders": self._depth(),
        }

    def flow(self) -> None:
        """Healthy merchants' orders come while the others are parked."""
        schedule = Schedule(RATE, self._size.flow)
        whose = orders.spread(schedule.orders, _HEALTHY_IDS)
        first = self._size.dead + self._size.behind
        self.healthy += schedule.orders
        url, folder = self._place.broker_url, self._place.folder
        with Producer(url, self._candidate, schedule, whose, folder, first=first) as producer:
            published = producer.finish().published
        self._wait(_SETTLE)
        ended = time.time()
        arrived = {order_id: at for _, order_id, at in self._place.merchants.arrivals()}
        seconds = sorted(arrived.get(each, ended) - at for each, at in published.items())
        for share in (50, 99):
            name = f"parked: healthy at {RATE:.0f}/s, p{share} ms"
            self.figures[name] = 1000 * percentile(seconds, share / 100)
        missing = sum(order_id not in arrived for order_id in published)
        self.figures["parked: healthy that did not come"] = missing

    def recover(self) -> None:
        """The merchant replies, and is watched until it has drained for long enough, or never did."""
        moment, deadline = time.time(), time.monotonic() + self._size.recovery
        wanted, nearly_all = SHARE * ITS_RATE * WIDTH, 0.95 * self._size.dead
        self._place.merchants.profile(f"{DEAD}-*", {"kind": "accept", "latency": RECOVERED})
        while True:
            self._worker.check()
            made = self._place.merchants.timeline(moment).get(DEAD, [])
            since = full_since(made, moment, WIDTH, wanted)
            if sum(count for _, count in made) >= nearly_all:
                break
            watched = since is not None and time.time() >= since + self._size.drain
            if watched or (since is None and time.monotonic() >= deadline):
                break
            time.sleep(_LOOK)
        self.figures[RECOVERED_AFTER] = math.inf if since is None else since - moment
        # Not beyond the last order: a backlog that is drained has no rate.
        end = min(time.time(), made[-1][0]) if made else moment
        self.figures["drained then, orders/s"] = (
            busiest(made, WIDTH) / WIDTH
            if since is None or end <= since
            else made_between(made, since, end) / (end - since)
        )

    def _wait(self, seconds: float) -> bool:
        def came() -> bool:
            self._worker.check()
            counts = self._place.merchants.summary()["profiles"].get(HEALTHY, {})
            self.came = int(counts.get("creates", 0))
            return self.came >= self.healthy

        return wait_until(came, time.monotonic() + seconds)

    def _depth(self) -> int:
        with Connection(self._place.broker_url) as connection:
            return filling.depth(connection, topology.orders_queue)

    def _requests(self) -> int:
        counts = self._place.merchants.merchant(_DEAD_ID)
        return int(counts["requests"]) + int(counts["lookups"])


def full_since(made: Timeline, start: float, width: float, wanted: float) -> float | None:
    """When ``wanted`` orders had been made within ``width`` seconds for the first time.

    At the earliest after as many seconds from ``start``, since the stretch lies behind it. None:
    never.
    """
    for end, in_stretch in _stretches(made, width):
        if in_stretch >= wanted:
            return max(end, start + width)
    return None


def busiest(made: Timeline, width: float) -> int:
    """The most orders that were made within ``width`` seconds."""
    return max((number for _, number in _stretches(made, width)), default=0)


def made_between(made: Timeline, start: float, end: float) -> int:
    """Orders made after ``start``, up to ``end``."""
    return sum(number for at, number in made if start < at <= end)


def _stretches(made: Timeline, width: float) -> list[tuple[float, int]]:
    """At each moment: how many orders were made in the ``width`` seconds up to it."""
    stretches, first, total = [], 0, 0
    for at, count in made:
        total += count
        while made[first][0] <= at - width:
            total -= made[first][1]
            first += 1
        stretches.append((at, total))
    return stretches
