"""A dead merchant with thousands of orders ahead of everyone: sifted, kept, and drained.

What is parked may be anywhere and in any form: this looks at the queue ``orders`` and at the
merchants only.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kombu import Connection

from loadtests.bench import filling, orders
from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.drain import Recovery, full_since
from loadtests.bench.attacks.load import QUICKEST
from loadtests.bench.attacks.observation import unaccounted
from loadtests.bench.attacks.patience import wait_for_consumer, wait_until
from loadtests.bench.attacks.producer import Producer
from loadtests.bench.attacks.schedule import Schedule
from loadtests.bench.attacks.series import slots
from loadtests.bench.attacks.trial import TIMEOUT
from loadtests.bench.candidate import OURS, PLAIN, Candidate
from loadtests.bench.gauge import WORKER, Gauge
from loadtests.bench.run import account_for
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker
from loadtests.bench.world import World, world
from loadtests.load.histogram import percentile
from pos_gateway.broker import topology
from testkit.merchants.levels import BUCKETS

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


@dataclass(frozen=True, slots=True)
class Idle:
    """While everything is parked and nothing comes."""

    cost: Cost
    #: Requests a second at the dead merchant.
    probes: float
    #: Messages that wait in the queue ``orders`` at the end: those that are not parked.
    waiting: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Healthy merchants' orders while the others are parked; seconds from queue to POS."""

    orders: int
    missing: int
    p50: float
    p99: float
    #: Seconds by which the latest hundredth of the orders was published late, or more.
    late: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a run showed."""

    candidate: str
    dead: int
    #: The dead merchant's orders taken out of the queue a second, until the first healthy one came.
    sift_rate: float
    #: Seconds from the worker's beginning to take orders; None: it did not come in time.
    first_healthy: float | None
    #: Seconds until the last of those behind had come.
    last_healthy: float | None
    #: None, as those that follow: the run did not come to it.
    idle: Idle | None
    flow: Flow | None
    recovery: Recovery | None
    #: None if the candidate publishes no outcomes, or not all healthy ones came.
    accounting: Accounting | None
    #: Requests in flight in each tenth of a second from the worker's start, by class.
    slots: Mapping[str, Sequence[int]]
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return {name: value for name, value in asdict(self).items() if name != "slots"}

    def series(self) -> dict[str, Any]:
        """Its slots over time, as those of an attack."""
        return {
            "run": "backlog",
            "candidate": self.candidate,
            "attack": "backlog",
            "step": 1 / BUCKETS,
            "slots": self.slots,
        }


def play_backlog(servers: Servers, candidate: Candidate, size: BacklogSize) -> Backlog:
    """Play the parts in turn; the later ones only if the healthy orders behind have come."""
    profiles = {DEAD: {"kind": "hang"}, HEALTHY: {"kind": "accept", "latency": QUICKEST}}
    whose = [_DEAD_ID] * size.dead + orders.spread(size.behind, _HEALTHY_IDS)
    placed = list(orders.place_many(whose))
    terms = {DEAD: {"max_concurrency": LIMIT}}
    idle, flow, recovery, accounting = None, None, None, None
    with world(servers, [_DEAD_ID, *_HEALTHY_IDS], profiles, terms) as place:
        filling.fill(place.broker_url, [candidate.message(order) for order in placed])
        worker = Worker(candidate.command, candidate.environment(place, TIMEOUT), place.folder)
        began = time.time()
        with worker:
            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                ready = wait_for_consumer(place.broker_url, worker)
                sifted = _wait_for_healthy(place, worker, size.behind, size.sift)
                came = sorted(at for each, _, at in place.merchants.arrivals() if each != _DEAD_ID)
                rate = _sift_rate(place, size, ready, came)
                if sifted:
                    time.sleep(max(0.0, came[0] + size.rest - time.time()))
                    idle = _idle(place, gauge, size.idle)
                if sifted and size.flow:
                    flow = _flow(place, candidate, worker, size)
                    recovery = _recover(place, worker, size)
            if sifted and candidate.accountable and not (flow and flow.missing):
                number = size.behind + (flow.orders if flow else 0)
                healthy = [f"order-{size.dead + each}" for each in range(number)]
                accounting = account_for(place, healthy)
            held = slots(place.merchants.levels(began), {DEAD}, began, time.time())
    return Backlog(
        candidate=candidate.name,
        dead=size.dead,
        sift_rate=rate,
        first_healthy=came[0] - ready if came else None,
        last_healthy=came[-1] - ready if sifted else None,
        idle=idle,
        flow=flow,
        recovery=recovery,
        accounting=accounting,
        slots=held,
        fault=unaccounted(accounting),
    )


def _created(place: World, group: str) -> int:
    counts = place.merchants.summary()["profiles"].get(group)
    return int(counts["creates"]) if counts else 0


def _wait_for_healthy(place: World, worker: Worker, number: int, seconds: float) -> bool:
    def came() -> bool:
        worker.check()
        return _created(place, HEALTHY) >= number

    return wait_until(came, time.monotonic() + seconds)


def _sift_rate(place: World, size: BacklogSize, ready: float, came: Sequence[float]) -> float:
    if came:
        return size.dead / max(1e-9, came[0] - ready)
    return (size.dead + size.behind - _depth(place)) / (time.time() - ready)


def _depth(place: World) -> int:
    with Connection(place.broker_url) as connection:
        return filling.depth(connection, topology.orders_queue)


def _idle(place: World, gauge: Gauge, seconds: float) -> Idle:
    before, start = _requests(place), time.time()
    time.sleep(seconds)
    end, requests = time.time(), _requests(place) - before
    cost = Cost.between(gauge.readings, start, end)
    return Idle(cost, requests / (end - start), _depth(place))


def _requests(place: World) -> int:
    counts = place.merchants.merchant(_DEAD_ID)
    return int(counts["requests"]) + int(counts["lookups"])


def _flow(place: World, candidate: Candidate, worker: Worker, size: BacklogSize) -> Flow:
    schedule = Schedule(RATE, size.flow)
    whose = orders.spread(schedule.orders, _HEALTHY_IDS)
    first = size.dead + size.behind
    with Producer(
        place.broker_url, candidate, schedule, whose, place.folder, first=first
    ) as producer:
        production = producer.finish()
    _wait_for_healthy(place, worker, size.behind + schedule.orders, _SETTLE)
    ended = time.time()
    arrived = {order_id: at for _, order_id, at in place.merchants.arrivals()}
    published = production.published
    seconds = sorted(arrived.get(order_id, ended) - at for order_id, at in published.items())
    return Flow(
        orders=schedule.orders,
        missing=sum(order_id not in arrived for order_id in published),
        p50=percentile(seconds, 0.5),
        p99=percentile(seconds, 0.99),
        late=production.late,
    )


def _recover(place: World, worker: Worker, size: BacklogSize) -> Recovery:
    """Let the merchant reply, and watch until it has drained for long enough, or never did."""
    moment = time.time()
    deadline = time.monotonic() + size.recovery
    wanted, nearly_all = SHARE * ITS_RATE * WIDTH, 0.95 * size.dead
    since: float | None = None
    place.merchants.profile(f"{DEAD}-*", {"kind": "accept", "latency": RECOVERED})
    while True:
        worker.check()
        made = place.merchants.timeline(moment).get(DEAD, [])
        since = full_since(made, moment, WIDTH, wanted)
        if sum(number for _, number in made) >= nearly_all:
            break
        if time.monotonic() >= deadline if since is None else time.time() >= since + size.drain:
            break
        time.sleep(_LOOK)
    return Recovery.of(made, moment, since, WIDTH, time.time())
