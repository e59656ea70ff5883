"""A dead merchant with thousands of orders ahead of all others: sifted, parked, and drained.

Parked orders may be anywhere and in any form: this looks at the queue ``orders`` and at the
merchants only.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from loadtests.bench.report import Verdict, number, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer, wait_until
from loadtests.bench.worker import Worker
from loadtests.bench.world import World, world
from loadtests.load.histogram import percentile
from pos_gateway.broker import topology
from testkit.merchants.levels import BUCKETS

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

#: What is wanted of the gateway: orders of the dead merchant sifted a second, seconds to the first
#: healthy order behind them, share of a core while all are parked, seconds from recovery to drain.
LEAST_SIFTED, MOST_FIRST, MOST_IDLE, MOST_RECOVERY = 2500.0, 10.0, 0.10, 60.0

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
class Recovery:
    """A backlog's drain, once its merchant replies again."""

    #: Seconds until enough had come in a stretch of time; None: it was watched in vain.
    seconds: float | None
    #: Orders a second from then on, or (in vain) those of the best stretch.
    rate: float
    watched: float

    @classmethod
    def of(
        cls, made: Timeline, moment: float, since: float | None, width: float, now: float
    ) -> "Recovery":
        """The drain of a merchant that recovered at ``moment`` and is at its rate ``since`` then."""
        watched = now - moment
        if since is None:
            return cls(None, busiest(made, width) / width, watched)
        # Not beyond the last order: a backlog that is drained has no rate.
        end = min(now, made[-1][0])
        if end <= since:
            return cls(since - moment, busiest(made, width) / width, watched)
        return cls(since - moment, made_between(made, since, end) / (end - since), watched)


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

    def series(self) -> dict[str, Any]:
        """Its slots over time, as those of an attack."""
        return {
            "run": "backlog",
            "candidate": self.candidate,
            "attack": "backlog",
            "step": 1 / BUCKETS,
            "slots": self.slots,
        }


def measure(servers: Servers, rounds: int, *, quick: bool) -> list[list[Backlog]]:
    """Each candidate in turn; nothing is compared, so plain Celery plays in the first round only."""
    return [
        [play_backlog(servers, *each) for each in BACKLOGS[quick][: None if turn == 0 else 1]]
        for turn in range(rounds)
    ]


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


def full_since(made: Timeline, start: float, width: float, wanted: float) -> float | None:
    """When so many orders had been made within ``width`` seconds for the first time.

    At the earliest after as many seconds from ``start``, since the stretch lies behind it. None:
    never.
    """
    for end, in_stretch in _stretches(made, width):
        if in_stretch >= wanted:
            return max(end, start + width)
    return None


def busiest(made: Timeline, width: float) -> int:
    """The most orders that were made within so many seconds."""
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


def report(rounds: Sequence[Sequence[Backlog]]) -> str:
    """What each candidate's runs showed, and the gateway's targets."""
    played = [each for results in rounds for each in results]
    orders = max(each.dead for each in played)
    lines = [[name, *(show(each) or "-" for each in rounds[0])] for name, show in _ROWS]
    return section(
        f"{NAME} ({LETTER}): a dead merchant's {orders:,} orders are queued ahead of all others",
        table(("first round", *(each.candidate for each in rounds[0])), lines),
        verdicts(judge([each for each in played if each.candidate == OURS.name]), "gateway"),
        faults=faults(rounds),
    )


def faults(rounds: Sequence[Sequence[Backlog]]) -> list[str]:
    """Why runs say nothing."""
    return [f"{each.candidate}: {each.fault}" for played in rounds for each in played if each.fault]


def judge(results: Sequence[Backlog]) -> list[Verdict]:
    """The gateway's targets. What a run did not come to is infinitely late."""
    valid = [each for each in results if not each.fault]
    return [
        Verdict(
            "sifted, orders/s",
            [each.sift_rate for each in valid],
            at_least=LEAST_SIFTED,
            form=",.0f",
        ),
        Verdict(
            "first healthy order, s",
            [_or_never(each.first_healthy) for each in valid],
            at_most=MOST_FIRST,
            form=".1f",
        ),
        Verdict(
            "CPU while parked, share of a core",
            [each.idle.cost.worker if each.idle else math.inf for each in valid],
            at_most=MOST_IDLE,
            form=".1%",
        ),
        Verdict(
            f"from recovery to {SHARE * ITS_RATE:.0f}/s over {WIDTH:.0f} s, s",
            [_or_never(each.recovery.seconds if each.recovery else None) for each in valid],
            at_most=MOST_RECOVERY,
            form=".1f",
        ),
    ]


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _seconds(seconds: float | None) -> str:
    return "not in time" if seconds is None else f"{seconds:.1f}"


#: What is shown of a run; a dash stands for what it did not come to.
_ROWS: tuple[tuple[str, Callable[[Backlog], str | None]], ...] = (
    ("sifted, orders/s", lambda run: number(run.sift_rate)),
    ("first healthy order, s", lambda run: _seconds(run.first_healthy)),
    ("last healthy order behind, s", lambda run: _seconds(run.last_healthy)),
    ("parked: worker", lambda run: f"{run.idle.cost.worker:.1%}" if run.idle else None),
    ("parked: RabbitMQ", lambda run: f"{run.idle.cost.rabbitmq:.1%}" if run.idle else None),
    ("parked: PostgreSQL", lambda run: f"{run.idle.cost.postgresql:.1%}" if run.idle else None),
    (
        "parked: requests/s at the dead one",
        lambda run: f"{run.idle.probes:.1f}" if run.idle else None,
    ),
    ("parked: left in queue orders", lambda run: f"{run.idle.waiting:,}" if run.idle else None),
    (
        f"parked: healthy at {RATE:.0f}/s, p50 ms",
        lambda run: f"{run.flow.p50 * 1000:.1f}" if run.flow else None,
    ),
    (
        f"parked: healthy at {RATE:.0f}/s, p99 ms",
        lambda run: f"{run.flow.p99 * 1000:.1f}" if run.flow else None,
    ),
    ("parked: healthy that did not come", lambda run: f"{run.flow.missing}" if run.flow else None),
    ("drain begins, s", lambda run: _seconds(run.recovery.seconds) if run.recovery else None),
    ("drained then, orders/s", lambda run: number(run.recovery.rate) if run.recovery else None),
)
