"""One round: every attack beside the undisturbed run that came within minutes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.full_queue import QueueSize, full_queue
from loadtests.bench.attacks.latency import Latency, latency
from loadtests.bench.attacks.observation import Observation
from loadtests.bench.attacks.steady import SteadySize, calibrated, steady_on_time
from loadtests.bench.attacks.throughput import Throughput, throughput
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import OURS, PLAIN, Candidate
from loadtests.bench.servers import Servers

Figures = TypeVar("Figures", Throughput, Latency)

#: Hears of every run: what it is, its observation.
Watcher = Callable[[str, Observation], None]
#: Runs a trial.
Play = Callable[[Trial], Observation]


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
    what drifts meets each run alike. Plain Celery plays in the first one only, under the gateway's
    load.
    """
    candidates = (OURS, PLAIN) if turn == 0 else (OURS,)
    bouts: dict[str, list[Bout]] = {attack.name: [] for attack in attacks}
    for population in dict.fromkeys(attack.population for attack in attacks):
        upon = [attack for attack in attacks if attack.population is population]
        load = calibrated(servers, Trial(OURS, population))
        for candidate in candidates:
            sizes, trials = _SIZES[candidate, quick], _trials(candidate, upon, turn)
            play: Play = partial(full_queue, servers, size=sizes.queue)
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
    undisturbed, attacked = (latency(seen[each], attack, size.warm_up) for each in (None, attack))
    return Pair(undisturbed, attacked)


def _trials(candidate: Candidate, attacks: Sequence[Attack], turn: int) -> list[Trial]:
    trials = [Trial(candidate, attacks[0].population, attack) for attack in (None, *attacks)]
    return trials if turn % 2 == 0 else trials[::-1]
