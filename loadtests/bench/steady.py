"""What an order costs when few come a second, as in production: each finds the worker's code cold."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from loadtests.bench import filling
from loadtests.bench.attacks.figures import Cost, disturbed_by
from loadtests.bench.attacks.plays import Load, SteadySize, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import ASYNCIO, DRAMATIQ, PLAIN, WATCHED, Candidate
from loadtests.bench.cases import HEALTHY
from loadtests.bench.gauge import WORKER, Gauge
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_for_consumer
from loadtests.bench.worker import Worker

NAME = "steady"
RIVALS = [PLAIN, DRAMATIQ, ASYNCIO]
#: Seconds that merchants take over an order.
_REPLY = 0.2
#: Orders a second; of a quick run one rate, by the gateway on PostgreSQL and by plain Celery.
_RATES = (30.0, 100.0, 300.0)
_QUICK = 100.0
_SIZES = {False: SteadySize(4, 16), True: SteadySize(2, 8)}
#: Seconds that an idle worker is watched for, after as many in which it comes to rest.
_IDLE = {False: (8.0, 30.0), True: (4.0, 8.0)}
#: CPU milliseconds of an order, at most: the worker's; and with those of broker and database.
_MOST, _MOST_IN_ALL = {100.0: 1.1, 300.0: 0.8}, {100.0: 2.2, 300.0: 1.6}
#: Of a core, in percent, at most.
_MOST_IDLE = 1.0
_POSTGRESQL, _SQLITE = "PostgreSQL", "SQLite"


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate, and where its ledger is; empty: it has none."""

    candidate: Candidate
    ledger: str = ""

    def __str__(self) -> str:
        return f"{self.candidate.name}{', ' if self.ledger else ''}{self.ledger}"


_GATEWAYS = [Entry(WATCHED, _POSTGRESQL), Entry(WATCHED, _SQLITE)]
_ALL = [*_GATEWAYS, *map(Entry, RIVALS)]


@dataclass(frozen=True, slots=True)
class Seen:
    """One run. CPU milliseconds of an order, without the merchants' and the producer's."""

    entry: str
    rate: float
    worker: float
    broker: float
    database: float
    disturbed_by: str
    fault: str = ""

    @property
    def in_all(self) -> float:
        """With the stores."""
        return self.worker + self.broker + self.database


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen of each entry at each rate; and of idle workers, the percent of a core."""

    seen: Sequence[Seen]
    idle: dict[str, float]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Sequence[Round]:
    """Play the rounds, every other one backwards: drift meets each entry alike."""
    there = [each for each in _ALL if servers.postgresql or each.ledger != _POSTGRESQL]
    entries, rates = ([there[0], Entry(PLAIN)], [_QUICK]) if quick else (there, _RATES)
    played = []
    for turn in range(rounds):
        order = [(each, rate) for rate in rates for each in entries][:: 1 if turn % 2 == 0 else -1]
        seen = [_run(servers, each, rate, _SIZES[quick]) for each, rate in order]
        idle = {
            str(each): _idle(servers, each, *_IDLE[quick]) for each in _GATEWAYS if each in entries
        }
        played.append(Round(seen, idle))
    return played


def faults(rounds: Sequence[Round]) -> Sequence[str]:
    """Why runs say nothing."""
    return [each.fault for played in rounds for each in played.seen if each.fault]


def report(rounds: Sequence[Round]) -> str:
    """The tables."""
    by_entry: dict[tuple[float, str], list[Seen]] = {}
    for each in sorted((seen for played in rounds for seen in played.seen), key=lambda s: s.rate):
        by_entry.setdefault((each.rate, each.entry), []).append(each)
    columns = ("orders/s", "", "worker", "RabbitMQ", "PostgreSQL", "in all", "disturbed by")
    lines = [_line(*key, runs) for key, runs in by_entry.items()]
    return section(
        f"{NAME}: CPU ms of an order at a steady rate, {_REPLY * 1e3:g} ms merchants",
        table(columns, lines),
        verdicts([*_judged(by_entry), *_judged_idle(rounds)]),
        faults=faults(rounds),
    )


def _line(rate: float, entry: str, runs: Sequence[Seen]) -> list[str]:
    parts = [
        [run.worker for run in runs],
        [run.broker for run in runs],
        [run.database for run in runs],
        [run.in_all for run in runs],
    ]
    disturbed = ", ".join(dict.fromkeys(run.disturbed_by for run in runs))
    return [f"{rate:g}", entry, *(f"{median(each):.2f}" for each in parts), disturbed]


def _judged(by_entry: dict[tuple[float, str], list[Seen]]) -> Iterator[Verdict]:
    for (rate, entry), runs in by_entry.items():
        if entry not in map(str, _GATEWAYS):
            continue
        what = f"{rate:g} a second, {entry}"
        workers = [run.worker for run in runs]
        yield Verdict(f"{what}: worker, ms", workers, at_most=_MOST.get(rate))
        if entry == str(_GATEWAYS[0]):
            in_all = [run.in_all for run in runs]
            yield Verdict(f"{what}: in all, ms", in_all, at_most=_MOST_IN_ALL.get(rate))
        if plain := by_entry.get((rate, PLAIN.name)):
            ratios = _ratios(workers, [run.worker for run in plain])
            yield Verdict(f"{what}: worker / plain Celery's", ratios, at_most=1.0)


def _judged_idle(rounds: Iterable[Round]) -> Iterator[Verdict]:
    for each in map(str, _GATEWAYS):
        shares = [played.idle[each] for played in rounds if each in played.idle]
        if shares:
            yield Verdict(f"idle, {each}: % of a core", shares, at_most=_MOST_IDLE)


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=False)]


def _run(servers: Servers, entry: Entry, rate: float, size: SteadySize) -> Seen:
    trial = Trial(entry.candidate, HEALTHY)
    seen = steady_on_time(_with_ledger(servers, entry), trial, size, Load(rate, _REPLY))
    start = seen.scheduled.began + size.warm_up
    cost = Cost.between(seen.readings, start, start + size.measured)
    ms = 1000 / rate
    return Seen(
        str(entry),
        rate,
        cost.worker * ms,
        cost.rabbitmq * ms,
        cost.postgresql * ms,
        disturbed_by(cost, seen.scheduled.fell_behind),
        seen.fault,
    )


def _idle(servers: Servers, entry: Entry, rest: float, watched: float) -> float:
    """The percent of a core that a worker takes to which nothing comes."""
    trial = Trial(entry.candidate, HEALTHY)
    with trial.world(_with_ledger(servers, entry), _REPLY) as place:
        filling.declare(place.broker_url)
        worker = Worker(trial.candidate.command, trial.environment(place), place.folder)
        with worker:
            wait_for_consumer(place.broker_url, worker)
            time.sleep(rest)
            with Gauge(place.parts(worker), waiting=WORKER) as gauge:
                began = time.time()
                time.sleep(watched)
            return 100 * Cost.between(gauge.readings, began, began + watched).worker


def _with_ledger(servers: Servers, entry: Entry) -> Servers:
    return servers if entry.ledger == _POSTGRESQL else replace(servers, postgresql=None)
