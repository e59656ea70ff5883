"""One round: every attack beside the undisturbed run that came within minutes of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.full_queue import QueueSize, full_queue
from loadtests.bench.attacks.latency import Latency, latency
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.attacks.population import Population
from loadtests.bench.attacks.steady import SteadySize, steady_on_time
from loadtests.bench.attacks.throughput import Throughput, throughput
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS, PLAIN, Candidate
from loadtests.bench.servers import Servers

Figures = TypeVar("Figures", Throughput, Latency)

#: Hears of every run: what it is, its observation.
Watcher = Callable[[str, Observation], None]


@dataclass(frozen=True, slots=True)
class Pair(Generic[Figures]):
    """The same orders with all merchants healthy, and under attack."""

    undisturbed: Figures
    attacked: Figures

    @property
    def fault(self) -> str:
        """Why they cannot be compared; empty if they can."""
        return self.undisturbed.fault or self.attacked.fault


@dataclass(frozen=True, slots=True)
class Bout:
    """A candidate under an attack, in one round."""

    candidate: str
    throughput: Pair[Throughput]
    #: None: not played in a round like this.
    latency: Pair[Latency] | None

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long the runs of a candidate last; without ``steady`` its latency is not measured."""

    queue: QueueSize
    steady: SteadySize | None


_QUICK_QUEUE = QueueSize(quick=True, limit=10)

#: Plain Celery collapses, and longer runs would show no more of that.
_SIZES = {
    (OURS, False): Sizes(QueueSize(quick=False, limit=60), SteadySize(5, 25)),
    (OURS, True): Sizes(QueueSize(quick=True, limit=25), SteadySize(2, 12)),
    (PLAIN, False): Sizes(_QUICK_QUEUE, SteadySize(4, 12, settle=2)),
    (PLAIN, True): Sizes(_QUICK_QUEUE, None),
}


def play_round(
    servers: Servers, attacks: Sequence[Attack], turn: int, *, quick: bool, watcher: Watcher
) -> dict[str, list[Bout]]:
    """A round of all attacks; the bouts by the attack's name.

    Attacks on the same population share its undisturbed runs. Every other round goes backwards:
    what drifts meets each run alike. Plain Celery plays in the first one only.
    """
    candidates = (OURS, PLAIN) if turn == 0 else (OURS,)
    bouts: dict[str, list[Bout]] = {attack.name: [] for attack in attacks}
    for population in dict.fromkeys(attack.population for attack in attacks):
        upon = [attack for attack in attacks if attack.population is population]
        for candidate in candidates:
            sizes = _SIZES[candidate, quick]
            rates = _throughputs(servers, candidate, upon, sizes.queue, turn, watcher)
            delays = _latencies(servers, candidate, upon, sizes.steady, turn, watcher)
            for attack in upon:
                bout = Bout(candidate.name, rates[attack.name], delays.get(attack.name))
                bouts[attack.name].append(bout)
    return bouts


def _throughputs(
    servers: Servers,
    candidate: Candidate,
    attacks: Sequence[Attack],
    size: QueueSize,
    turn: int,
    watcher: Watcher,
) -> dict[str, Pair[Throughput]]:
    seen: dict[Attack | None, Observation] = {}
    for trial in _trials(candidate, attacks, turn):
        seen[trial.attack] = full_queue(servers, trial, size)
        watcher("full queue", seen[trial.attack])
    return {
        attack.name: Pair(throughput(seen[None], attack), throughput(seen[attack], attack))
        for attack in attacks
    }


def _latencies(
    servers: Servers,
    candidate: Candidate,
    attacks: Sequence[Attack],
    size: SteadySize | None,
    turn: int,
    watcher: Watcher,
) -> dict[str, Pair[Latency]]:
    if size is None:
        return {}
    seen: dict[Attack | None, Observation] = {}
    for trial in _trials(candidate, attacks, turn):
        observation = steady_on_time(servers, trial, size)
        seen[trial.attack] = observation
        watcher("60 % load", observation)
    return {
        attack.name: Pair(
            latency(seen[None], attack, size.warm_up), latency(seen[attack], attack, size.warm_up)
        )
        for attack in attacks
    }


def _trials(candidate: Candidate, attacks: Sequence[Attack], turn: int) -> Iterator[Trial]:
    population: Population = attacks[0].population
    trials = [Trial(candidate, population, attack) for attack in (None, *attacks)]
    yield from trials if turn % 2 == 0 else reversed(trials)
