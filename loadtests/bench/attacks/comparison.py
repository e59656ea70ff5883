"""Runs at a steady rate beside an undisturbed one: what the healthy merchants' latency shows of each."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.attacks.attack import Attack, Population
from loadtests.bench.attacks.bout import LATENCY, Pair, latency_line
from loadtests.bench.attacks.figures import Latency, latency
from loadtests.bench.attacks.plays import Load, SteadySize, calibrated, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS, Candidate
from loadtests.bench.report import Verdict, accounted, section, table, verdicts
from loadtests.bench.servers import Servers

#: The figures of each round's runs, by the run's name.
Rounds = Sequence[Mapping[str, Latency]]
UNDISTURBED = "undisturbed"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs of a round are made for."""

    turn: int
    quick: bool
    size: SteadySize
    load: Load


@dataclass(frozen=True, slots=True)
class Comparison:
    """A case of the benchmark: in each round, the same orders undisturbed and under other conditions."""

    NAME: str
    title: str
    population: Population
    sizes: Mapping[bool, SteadySize]
    #: The other runs of a round, by name: the candidate, and what is done to it.
    runs: Callable[[Setting], Mapping[str, tuple[Candidate, Attack]]]
    #: What is wanted: of the rounds in which a run was played, with it and without.
    judged: Callable[[str, Sequence[Pair[Latency]]], Iterable[Verdict]]
    candidate: Candidate = OURS
    #: None: what leaves the worker 40 % of its core and of its slots.
    load: Load | None = None

    def measure(self, servers: Servers, rounds: int, *, quick: bool) -> Rounds:
        """Play the runs in turn, every other round backwards."""
        return [self._play(servers, turn, quick=quick) for turn in range(rounds)]

    def _play(self, servers: Servers, turn: int, *, quick: bool) -> dict[str, Latency]:
        undisturbed, size = Trial(self.candidate, self.population), self.sizes[quick]
        load = self.load or calibrated(servers, undisturbed)
        others = self.runs(Setting(turn, quick, size, load))
        trials = {UNDISTURBED: undisturbed} | {
            name: Trial(candidate, attack.population, attack)
            for name, (candidate, attack) in others.items()
        }
        _, spared = next(iter(others.values()))
        figures = {}
        for name in trials if turn % 2 == 0 else reversed(trials):
            seen = steady_on_time(servers, trials[name], size, load)
            figures[name] = latency(seen, trials[name].attack or spared, size.warm_up)
        return {name: figures[name] for name in trials}

    def report(self, rounds: Rounds) -> str:
        """The figures and targets as Markdown."""
        names = dict.fromkeys(name for played in rounds for name in played)
        lines = []
        for name in names:
            figures = [played[name] for played in rounds if name in played]
            peak = " ".join(f"{each.peak:.0f}" for each in figures)
            held = " ".join(f"{each.held:.0%}" for each in figures)
            lines.append([*latency_line(name, figures), peak, held])
        return section(
            f"{self.NAME}: {self.title}",
            table(("healthy merchants", *LATENCY, "worker MiB", "slots of the others"), lines),
            verdicts(self.judge(rounds)),
            accounted(each.accounting for played in rounds for each in played.values()),
            faults=self.faults(rounds),
        )

    def judge(self, rounds: Rounds) -> list[Verdict]:
        """The targets."""
        return [
            verdict
            for name in dict.fromkeys(name for played in rounds for name in played)
            if name != UNDISTURBED
            for verdict in self.judged(name, _pairs(rounds, name))
        ]

    def faults(self, rounds: Rounds) -> list[str]:
        """Why runs that are judged say nothing."""
        return [fault for verdict in self.judge(rounds) for fault in verdict.faults]


def _pairs(rounds: Rounds, name: str) -> list[Pair[Latency]]:
    return [Pair(each[UNDISTURBED], each[name]) for each in rounds if name in each]
