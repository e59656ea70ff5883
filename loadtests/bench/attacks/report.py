"""An attack's tables: what came, how late, and whether that is good enough."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.bout import Bout, Figures, Pair
from loadtests.bench.attacks.cost import Cost
from loadtests.bench.attacks.latency import Latency
from loadtests.bench.attacks.throughput import Throughput
from loadtests.bench.candidate import OURS
from loadtests.bench.report import accounted, number, table
from loadtests.bench.verdict import Verdict

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


def report(attack: Attack, rounds: Sequence[Sequence[Bout]]) -> str:
    """The attack's figures and targets as Markdown."""
    bouts: dict[str, list[Bout]] = {}
    for bout in (each for played in rounds for each in played):
        bouts.setdefault(bout.candidate, []).append(bout)
    rates = [line for name, each in bouts.items() for line in _rates(name, each)]
    delays = [line for name, each in bouts.items() for line in _delays(name, each)]
    verdicts = [verdict for name, each in bouts.items() for verdict in judge(name, each)]
    parts = [
        f"## {attack.name} ({attack.letter}): {attack.title}",
        table((*_THROUGHPUT, *_COST, "limited by"), rates),
    ]
    if delays:
        parts.append(table(("60 % load", *LATENCY), delays))
    parts.append(
        table(
            ("healthy merchants, attacked / undisturbed", "median", "rounds", "target", ""),
            [verdict.line() for verdict in verdicts],
        )
    )
    faults = dict.fromkeys(f"{each.what}: {fault}" for each in verdicts for fault in each.faults)
    if not faults:
        parts += _accounts(bouts.get(OURS.name, []))
    parts += [f"Invalid: {fault}." for fault in faults]
    return "\n\n".join(parts) + "\n"


def judge(candidate: str, bouts: Sequence[Bout]) -> list[Verdict]:
    """Throughput and, where it was measured, latency; targets are the gateway's."""
    ours = candidate == OURS.name
    rates = [bout.throughput for bout in bouts]
    delays = [bout.latency for bout in bouts if bout.latency is not None]
    verdicts = [
        Verdict(
            f"{candidate}: throughput",
            [_ratio(each, lambda figures: figures.rate) for each in rates if not each.fault],
            [each.fault for each in rates if each.fault],
            at_least=LEAST_THROUGHPUT if ours else None,
            doubtful=_doubtful(
                figures.limited_by
                for pair in rates
                for figures in (pair.undisturbed, pair.attacked)
            ),
        )
    ]
    if delays:
        verdicts.append(
            Verdict(
                f"{candidate}: p99",
                [_ratio(each, lambda figures: figures.p99) for each in delays if not each.fault],
                [each.fault for each in delays if each.fault],
                at_most=MOST_LATENCY if ours else None,
                doubtful=_doubtful(
                    figures.disturbed_by
                    for pair in delays
                    for figures in (pair.undisturbed, pair.attacked)
                )
                or any(pair.undisturbed.missing for pair in delays),
            )
        )
    return verdicts


def _doubtful(words: Iterable[str]) -> bool:
    """Whether something else than the worker limited or disturbed a run: it is in capitals."""
    return any(word.split(" ")[0].isupper() for word in words if word)


def _accounts(bouts: Sequence[Bout]) -> list[str]:
    """That the attacked runs' healthy orders add up, and how many runs could not be accounted for."""
    attacked = [bout.throughput.attacked.accounting for bout in bouts]
    attacked += [bout.latency.attacked.accounting for bout in bouts if bout.latency is not None]
    lines = accounted(attacked)
    if None in attacked:
        lines.append(
            f"Not accounted for, since time was up before the last: {attacked.count(None)} "
            f"of the gateway's {len(attacked)} attacked runs."
        )
    return lines


def _ratio(pair: Pair[Figures], figure: Callable[[Figures], float]) -> float:
    return figure(pair.attacked) / figure(pair.undisturbed)


def _rates(name: str, bouts: Sequence[Bout]) -> list[list[str]]:
    return [
        _rate(name, [bout.throughput.undisturbed for bout in bouts]),
        _rate(f"{name}, attacked", [bout.throughput.attacked for bout in bouts]),
    ]


def _rate(name: str, figures: Sequence[Throughput]) -> list[str]:
    stopped = "" if all(each.complete for each in figures) else " (time was up)"
    return [
        name,
        number(median(each.rate for each in figures)),
        f"{median(each.cpu_ms for each in figures):.2f}",
        *_cost([each.cost for each in figures]),
        _words(each.limited_by for each in figures) + stopped,
    ]


def _delays(name: str, bouts: Sequence[Bout]) -> list[list[str]]:
    pairs = [bout.latency for bout in bouts if bout.latency is not None]
    if not pairs:
        return []
    return [
        latency_line(name, [pair.undisturbed for pair in pairs]),
        latency_line(f"{name}, attacked", [pair.attacked for pair in pairs]),
    ]


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
        *_cost([each.cost for each in figures]),
        _ms(max(each.late for each in figures)),
        _words(each.disturbed_by for each in figures) + late,
    ]


def _cost(costs: Sequence[Cost]) -> list[str]:
    parts = (
        [cost.worker for cost in costs],
        [cost.waited for cost in costs],
        [cost.simulator for cost in costs],
        [cost.rabbitmq for cost in costs],
        [cost.postgresql for cost in costs],
    )
    return [f"{median(part):.0%}" for part in parts]


def _words(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"
