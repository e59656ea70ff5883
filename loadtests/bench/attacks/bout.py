"""One round: every attack beside the undisturbed run that came within minutes of it; and its tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.figures import Cost, Latency, Throughput, latency, throughput
from loadtests.bench.attacks.plays import (
    Observation,
    SteadySize,
    calibrated,
    full_queue,
    steady_on_time,
)
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS, PLAIN, Candidate
from loadtests.bench.report import (
    Verdict,
    accounted,
    in_capitals,
    number,
    section,
    table,
    verdicts,
)
from loadtests.bench.servers import Servers

Figures = TypeVar("Figures", Throughput, Latency)

#: Is told of every run: what it is, its observation.
Watcher = Callable[[str, Observation], None]
#: Runs a trial.
Play = Callable[[Trial], Observation]

#: What is wanted of the gateway: healthy merchants' throughput and p99, under attack / undisturbed.
LEAST_THROUGHPUT = 0.97
MOST_LATENCY = 1.10

_THROUGHPUT = ("full queue", "orders/s", "CPU ms/order")
_COST = ("worker", "had to wait", "merchants", "RabbitMQ", "PostgreSQL")
#: What ``latency_line`` has, after its name.
LATENCY = (
    *("orders/s", "p50 ms", "p99 ms", "worst ms"),
    *(*_COST, "producer late ms", "disturbed by"),
)


@dataclass(frozen=True, slots=True)
class Pair(Generic[Figures]):
    """The same orders with all merchants healthy, and under attack."""

    undisturbed: Figures
    attacked: Figures

    @property
    def faults(self) -> list[str]:
        """Why they cannot be compared."""
        return [each.fault for each in (self.undisturbed, self.attacked) if each.fault]


@dataclass(frozen=True, slots=True)
class Bout:
    """A candidate under an attack, in one round."""

    candidate: str
    throughput: Pair[Throughput]
    #: None: not played in a round like this.
    latency: Pair[Latency] | None

    @property
    def faults(self) -> list[str]:
        """Why it says nothing."""
        return self.throughput.faults + (self.latency.faults if self.latency else [])


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long the runs of a candidate last; without ``steady`` its latency is not measured."""

    #: As many orders as in a quick run, and seconds from the worker's start until it is stopped.
    quick_queue: bool
    limit: float
    steady: SteadySize | None


#: Plain Celery collapses, and longer runs would show no more of that.
_SIZES = {
    (OURS, False): Sizes(False, 60, SteadySize(5, 25)),
    (OURS, True): Sizes(True, 25, SteadySize(2, 12)),
    (PLAIN, False): Sizes(True, 10, SteadySize(4, 12, settle=2)),
    (PLAIN, True): Sizes(True, 10, None),
}


def play_round(
    servers: Servers, attacks: Sequence[Attack], turn: int, *, quick: bool, watcher: Watcher
) -> dict[str, list[Bout]]:
    """A round of all attacks; the bouts by the attack's name.

    Attacks on the same population share its undisturbed runs. Every other round goes backwards:
    drift meets each run alike. Plain Celery plays in the first one only, under the gateway's load.
    """
    candidates = (OURS, PLAIN) if turn == 0 else (OURS,)
    bouts: dict[str, list[Bout]] = {attack.name: [] for attack in attacks}
    for population in dict.fromkeys(attack.population for attack in attacks):
        upon = [attack for attack in attacks if attack.population is population]
        load = calibrated(servers, Trial(OURS, population))
        for candidate in candidates:
            sizes, trials = _SIZES[candidate, quick], _trials(candidate, upon, turn)
            orders = population.quick_orders if sizes.quick_queue else population.orders
            play: Play = partial(full_queue, servers, number=orders, limit=sizes.limit)
            queues = _seen("full queue", play, trials, watcher)
            steadies: dict[Attack | None, Observation] = {}
            if sizes.steady is not None:
                play = partial(steady_on_time, servers, size=sizes.steady, load=load)
                steadies = _seen("60 % load", play, trials, watcher)
            for attack in upon:
                rates = Pair(throughput(queues[None], attack), throughput(queues[attack], attack))
                delays = _delays(attack, steadies, sizes.steady)
                bouts[attack.name].append(Bout(candidate.name, rates, delays))
    return bouts


def _seen(
    what: str, play: Play, trials: Sequence[Trial], watcher: Watcher
) -> dict[Attack | None, Observation]:
    """Every trial, by its attack; None: the undisturbed one."""
    seen: dict[Attack | None, Observation] = {}
    for trial in trials:
        seen[trial.attack] = play(trial)
        watcher(what, seen[trial.attack])
    return seen


def _delays(
    attack: Attack, seen: Mapping[Attack | None, Observation], size: SteadySize | None
) -> Pair[Latency] | None:
    if size is None:
        return None
    return Pair(*(latency(seen[each], attack, size.warm_up) for each in (None, attack)))


def _trials(candidate: Candidate, attacks: Sequence[Attack], turn: int) -> list[Trial]:
    trials = [Trial(candidate, attacks[0].population, attack) for attack in (None, *attacks)]
    return trials if turn % 2 == 0 else trials[::-1]


def compare(
    what: str,
    pairs: Sequence[Pair[Figures]],
    figure: Callable[[Figures, Figures], float],
    *,
    doubtful: bool = False,
    **wanted: Any,
) -> Verdict:
    """What the attacked and the undisturbed run of each valid round make together.

    Args:
        what: the figure's name.
        pairs: the rounds.
        figure: takes the undisturbed run's figures and the attacked one's.
        doubtful: something made the difference that the figures do not name.
        wanted: as ``Verdict`` has it.
    """
    words = (
        each.limited_by if isinstance(each, Throughput) else each.disturbed_by
        for pair in pairs
        for each in (pair.undisturbed, pair.attacked)
    )
    return Verdict(
        what,
        [figure(pair.undisturbed, pair.attacked) for pair in pairs if not pair.faults],
        [fault for pair in pairs for fault in pair.faults],
        doubtful=doubtful or in_capitals(words),
        **wanted,
    )


def p99_ratio(undisturbed: Latency, attacked: Latency) -> float:
    """The p99 under attack, of the undisturbed one."""
    return attacked.p99 / undisturbed.p99


def judge(candidate: str, bouts: Sequence[Bout]) -> list[Verdict]:
    """Throughput and, where it was measured, latency; targets are the gateway's."""
    ours = candidate == OURS.name
    delays = [bout.latency for bout in bouts if bout.latency is not None]
    rates = compare(
        f"{candidate}: throughput",
        [bout.throughput for bout in bouts],
        lambda undisturbed, attacked: attacked.rate / undisturbed.rate,
        at_least=LEAST_THROUGHPUT if ours else None,
    )
    if not delays:
        return [rates]
    late = compare(
        f"{candidate}: p99",
        delays,
        p99_ratio,
        doubtful=any(pair.undisturbed.missing for pair in delays),
        at_most=MOST_LATENCY if ours else None,
    )
    return [rates, late]


def report(attack: Attack, rounds: Sequence[Sequence[Bout]]) -> str:
    """The attack's figures and targets as Markdown."""
    bouts: dict[str, list[Bout]] = {}
    for bout in (each for played in rounds for each in played):
        bouts.setdefault(bout.candidate, []).append(bout)
    delays = [line for name, each in bouts.items() for line in _delay_lines(name, each)]
    judged = [verdict for name, each in bouts.items() for verdict in judge(name, each)]
    faults = [f"{each.what}: {fault}" for each in judged for fault in each.faults]
    return section(
        f"{attack.name} ({attack.letter}): {attack.title}",
        table(
            (*_THROUGHPUT, *_COST, "limited by"),
            [line for name, each in bouts.items() for line in _rate_lines(name, each)],
        ),
        table(("60 % load", *LATENCY), delays) if delays else "",
        verdicts(judged, "healthy merchants, attacked / undisturbed"),
        *([] if faults else _accounts(bouts.get(OURS.name, []))),
        faults=faults,
    )


def _accounts(bouts: Sequence[Bout]) -> Iterator[str]:
    """That the attacked runs' healthy orders add up, and how many runs could not be accounted for."""
    attacked = [bout.throughput.attacked.accounting for bout in bouts]
    attacked += [bout.latency.attacked.accounting for bout in bouts if bout.latency is not None]
    yield accounted(attacked)
    if None in attacked:
        yield (
            f"Not accounted for, since time was up before the last: {attacked.count(None)} "
            f"of the gateway's {len(attacked)} attacked runs."
        )


def _rate_lines(name: str, bouts: Sequence[Bout]) -> Iterator[list[str]]:
    yield _rate_line(name, [bout.throughput.undisturbed for bout in bouts])
    yield _rate_line(f"{name}, attacked", [bout.throughput.attacked for bout in bouts])


def _rate_line(name: str, figures: Sequence[Throughput]) -> list[str]:
    return [
        name,
        number(median(each.rate for each in figures)),
        f"{median(each.cpu_ms for each in figures):.2f}",
        *shares([each.cost for each in figures]),
        limits(figures),
    ]


def limits(figures: Sequence[Throughput]) -> str:
    """What limited the runs."""
    stopped = "" if all(each.complete for each in figures) else " (time was up)"
    return _words([each.limited_by for each in figures]) + stopped


def _delay_lines(name: str, bouts: Sequence[Bout]) -> Iterator[list[str]]:
    pairs = [bout.latency for bout in bouts if bout.latency is not None]
    if pairs:
        yield latency_line(name, [pair.undisturbed for pair in pairs])
        yield latency_line(f"{name}, attacked", [pair.attacked for pair in pairs])


def latency_line(name: str, figures: Sequence[Latency]) -> list[str]:
    """The medians of the rounds, and what was worst in any."""
    missing = sum(each.missing for each in figures) / sum(each.orders for each in figures)
    late = f" ({missing:.1%} had not come)" if missing else ""
    return [
        name,
        number(median(each.rate for each in figures)),
        _ms(median(each.p50 for each in figures)),
        _ms(median(each.p99 for each in figures)),
        _ms(max(each.worst for each in figures)),
        *shares([each.cost for each in figures]),
        _ms(max(each.late for each in figures)),
        _words([each.disturbed_by for each in figures]) + late,
    ]


def shares(costs: Sequence[Cost]) -> list[str]:
    """The medians, as columns ``worker`` to ``PostgreSQL``."""
    parts = ("worker", "waited", "simulator", "rabbitmq", "postgresql")
    return [f"{median(getattr(cost, part) for cost in costs):.0%}" for part in parts]


def _words(words: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"
