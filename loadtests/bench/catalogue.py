"""Healthy merchants beside all that the catalogue of hostile peers has: their latency, our memory."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.bout import Pair
from loadtests.bench.attacks.latency import Latency, latency
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.attacks.population import Group, Population
from loadtests.bench.attacks.report import MOST_LATENCY
from loadtests.bench.attacks.steady import SteadySize, calibrated, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS
from loadtests.bench.report import accounted, table
from loadtests.bench.servers import Servers
from loadtests.bench.verdict import Verdict
from testkit.hostile.catalogue import CATALOGUE

NAME = "catalogue"
#: MiB by which the worker may grow.
MOST_GROWTH = 64.0
#: Attackers there are at least, each behaviour by as many.
ATTACKERS = 200
_EACH = -(-ATTACKERS // len(CATALOGUE))

POPULATION = Population(
    (
        # Their time limit is short, so that those that hang do it again and again.
        Group("hostile", _EACH * len(CATALOGUE), 0.1, {"request_timeout": 2.0}),
        Group("healthy", 200, 0.9),
    ),
    orders=0,  # no queue is filled with them
    quick_orders=0,
)
#: Messages that the gateway has the broker delay for each order of a hostile peer: 343 to 354 for 500
#: orders, as queues counted them that were bound to where delayed messages enter (20 s, three runs).
#: Most retries wait in the worker.
DELAYED = 0.7
ATTACK = Attack(
    NAME,
    "",
    f"{len(CATALOGUE)} ways to treat a connection, by {_EACH} merchants each; 10 % of the orders",
    POPULATION,
    troubled=("hostile",),
    mid_run=False,
    hostile=True,
)
#: The broker's part of it: all merchants are well, and it delays as much for another application.
SHAM = Attack(f"{NAME}, its broker alone", "", "", POPULATION, troubled=(), mid_run=False)

_SIZES = {False: SteadySize(4, 16, settle=3), True: SteadySize(2, 8, settle=3)}


@dataclass(frozen=True, slots=True)
class Bout:
    """One round: undisturbed and attacked."""

    latency: Pair[Latency]
    #: The most memory that the worker held in each run, in MiB.
    undisturbed_peak: float
    attacked_peak: float
    #: Undisturbed, but for a broker that has as much to delay as under attack.
    sham: Latency | None = None

    @property
    def growth(self) -> float:
        """MiB that the attackers took."""
        return self.attacked_peak - self.undisturbed_peak

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def play(servers: Servers, turn: int, *, quick: bool) -> Bout:
    """One round; every other one begins with the attack."""
    size, load = _SIZES[quick], calibrated(servers, Trial(OURS, POPULATION))
    sham = replace(SHAM, delays=DELAYED * POPULATION.groups[0].share * load.rate)
    attacks: list[Attack | None] = [None, ATTACK] if quick else [None, ATTACK, sham]
    seen: dict[Attack | None, Observation] = {
        attack: steady_on_time(servers, Trial(OURS, POPULATION, attack), size, load)
        for attack in (attacks if turn % 2 == 0 else reversed(attacks))
    }
    figures = {attack: latency(each, ATTACK, size.warm_up) for attack, each in seen.items()}
    return Bout(
        Pair(figures[None], figures[ATTACK]),
        seen[None].peak,
        seen[ATTACK].peak,
        figures.get(sham),
    )


def report(bouts: Sequence[Bout]) -> str:
    """The figures and targets as Markdown."""
    parts = [
        f"## {NAME}: {ATTACK.title}",
        table(
            (
                "60 % load, healthy merchants",
                "orders/s",
                "p50 ms",
                "p99 ms",
                "worst ms",
                "worker",
                "worker MiB",
                "disturbed by",
            ),
            list(_lines(bouts)),
        ),
        table(("", "median", "rounds", "target", ""), [each.line() for each in judge(bouts)]),
        *accounted([bout.latency.attacked.accounting for bout in bouts]),
        *(f"Invalid: {bout.latency.fault}." for bout in bouts if bout.latency.fault),
    ]
    return "\n\n".join(parts) + "\n"


def judge(bouts: Sequence[Bout]) -> list[Verdict]:
    """The targets."""
    valid = [bout for bout in bouts if not bout.latency.fault]
    pairs = [bout.latency for bout in valid]
    faults = [bout.latency.fault for bout in bouts if bout.latency.fault]
    words = [each.disturbed_by for pair in pairs for each in (pair.undisturbed, pair.attacked)]
    return [
        Verdict(
            "p99, attacked / undisturbed",
            [pair.attacked.p99 / pair.undisturbed.p99 for pair in pairs],
            faults,
            at_most=MOST_LATENCY,
            doubtful=any(word.split(" ")[0].isupper() for word in words),
        ),
        *_sham(valid),
        Verdict(
            "growth of the worker, MiB",
            [bout.growth for bout in valid],
            faults,
            at_most=MOST_GROWTH,
            form=".0f",
        ),
    ]


def _sham(bouts: Sequence[Bout]) -> Iterator[Verdict]:
    """How much of the first figure is the broker's; nothing is wanted of it."""
    rounds = [(bout.sham, bout.latency.undisturbed) for bout in bouts if bout.sham is not None]
    if rounds:
        faults = [sham.fault for sham, _ in rounds if sham.fault]
        ratios = [sham.p99 / undisturbed.p99 for sham, undisturbed in rounds if not sham.fault]
        yield Verdict("p99, its broker alone / undisturbed", ratios, faults)


def _lines(bouts: Sequence[Bout]) -> Iterator[list[str]]:
    for number, bout in enumerate(bouts, 1):
        runs = [
            ("undisturbed", bout.latency.undisturbed, f"{bout.undisturbed_peak:.0f}"),
            ("attacked", bout.latency.attacked, f"{bout.attacked_peak:.0f}"),
        ]
        if bout.sham is not None:
            runs.append(("its broker alone", bout.sham, ""))
        for name, figures, peak in runs:
            late = f" ({figures.missing:,} had not come)" if figures.missing else ""
            milliseconds = [f"{1000 * at:.1f}" for at in (figures.p50, figures.p99, figures.worst)]
            yield [
                f"round {number}, {name}",
                f"{figures.rate:,.0f}",
                *milliseconds,
                f"{figures.cost.worker:.0%}",
                peak,
                figures.disturbed_by + late,
            ]
