"""Healthy merchants' orders while 100 people look at the operations page: the workers are not to notice."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtests.bench.attacks.figures import Cost, disturbed_by
from loadtests.bench.attacks.plays import Load, SteadySize, steady
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.cases import HEALTHY
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker
from loadtests.load.histogram import percentile
from loadtests.viewers import logged_in, viewers
from pos_gateway.database.engine import open_database
from pos_gateway.tokens.store import TokenStore
from pos_gateway.tokens.token import Role
from testkit.servers.http_server import HttpServer

NAME = "viewers"
#: At once; and p99 with them beside p99 without, at most.
VIEWERS, AT_MOST = 100, 1.1
#: Orders a second: the worker has time, and each delay is seen.
RATE = 100.0
_SIZES = {False: SteadySize(5, 30), True: SteadySize(2, 8, settle=10)}


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: seconds from an order's entering the queue to its arrival at the POS."""

    p50: float
    p99: float
    cost: Cost
    disturbed_by: str
    fault: str


@dataclass(frozen=True, slots=True)
class Round:
    """A server without viewers, and the same with them."""

    alone: Seen
    viewed: Seen


def measure(servers: Servers, rounds: int, *, quick: bool) -> Sequence[Round]:
    """Play the rounds; every other one begins with the viewers."""
    played = []
    for turn in range(rounds):
        counts = (0, VIEWERS) if turn % 2 == 0 else (VIEWERS, 0)
        seen = {count: _run(servers, count, _SIZES[quick]) for count in counts}
        played.append(Round(seen[0], seen[VIEWERS]))
    return played


def faults(rounds: Sequence[Round]) -> Sequence[str]:
    """Why rounds say nothing."""
    return [seen.fault for each in rounds for seen in (each.alone, each.viewed) if seen.fault]


def report(rounds: Sequence[Round]) -> str:
    """The tables."""
    lines = [
        _line("no viewer", [each.alone for each in rounds]),
        _line(f"{VIEWERS} viewers", [each.viewed for each in rounds]),
    ]
    ratio = [each.viewed.p99 / each.alone.p99 for each in rounds]
    return section(
        f"{NAME}: {RATE:g} orders a second, while {VIEWERS} people look at the operations page",
        table(("", "p50 ms", "p99 ms", "CPU ms/order", "disturbed by"), lines),
        verdicts([Verdict("p99 with viewers / without", ratio, at_most=AT_MOST)]),
    )


def _line(name: str, runs: Sequence[Seen]) -> list[str]:
    return [
        name,
        f"{median(each.p50 for each in runs) * 1e3:.1f}",
        f"{median(each.p99 for each in runs) * 1e3:.1f}",
        f"{median(each.cost.worker for each in runs) / RATE * 1e3:.2f}",
        ", ".join(dict.fromkeys(each.disturbed_by for each in runs)),
    ]


def _run(servers: Servers, count: int, size: SteadySize) -> Seen:
    def make(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Worker:
        return _Viewed(command, environment, folder, count)

    seen = steady(servers, Trial(WATCHED, HEALTHY), size, Load.at(RATE), make=make)
    start = seen.scheduled.began + size.warm_up
    counted = {key: at for key, at in seen.scheduled.published.items() if at >= start}
    took = sorted(seen.arrived.get(key, seen.ended) - at for key, at in counted.items())
    cost = Cost.between(seen.readings, start, max(counted.values()))
    why = disturbed_by(cost, seen.scheduled.fell_behind)
    return Seen(percentile(took, 0.5), percentile(took, 0.99), cost, why, seen.fault)


class _Viewed(Worker):
    """A worker, and a server beside it at whose page people look."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, count: int
    ) -> None:
        super().__init__(command, environment, folder)
        self._beside = _viewed(environment, count)

    def __enter__(self) -> "_Viewed":
        super().__enter__()
        self._beside.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._beside.__exit__(None, None, None)
        finally:
            super().__exit__()


@contextmanager
def _viewed(environment: Mapping[str, str], count: int) -> Iterator[None]:
    broker_url, url = (environment[f"POS_GATEWAY_{name}_URL"] for name in ("BROKER", "DATABASE"))
    engine = open_database(url)
    token = TokenStore(engine).create("bench", Role.VIEWER, operator="bench")
    engine.dispose()
    with ExitStack() as stack:
        server = stack.enter_context(HttpServer(broker_url, url))
        session = stack.enter_context(logged_in(server.url, token))
        stack.enter_context(viewers(server.url, session, count))
        yield
