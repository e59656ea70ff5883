"""One adversary on a part of a core: healthy orders undisturbed, beside it, and the adversary alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.bench.attacks.figures import Cost, Latency, latency
from loadtests.bench.attacks.plays import Load, Observation, steady_on_time
from loadtests.bench.attacks.series import slots
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.limited import Limited
from loadtests.bench.report import Verdict
from loadtests.bench.servers import Servers
from loadtests.bench.slow_merchants import OTHERS_GROUP
from loadtests.bench.small_core.adversary import Scene
from loadtests.bench.small_core.core import LEAST_ALONE, LEAST_SHARE, REPLY, Core
from loadtests.bench.small_core.share import Alone, share
from loadtests.bench.stages import Stage, stages

UNDISTURBED, BESIDE, ALONE = "undisturbed", "beside", "alone"


@dataclass(frozen=True, slots=True)
class Seen:
    """Healthy orders of one run."""

    latency: Latency
    stages: Sequence[Stage]
    #: Orders a second of the adversary.
    others: float = 0.0


@dataclass(frozen=True, slots=True)
class Trio:
    """The three runs, which took turns within two minutes."""

    core: Core
    #: The adversary's name and title.
    name: str
    title: str
    undisturbed: Seen
    beside: Seen
    alone: Alone
    #: Its orders come at a rate, so that it may leave CPU unused.
    at_a_rate: bool = False

    @property
    def faults(self) -> list[str]:
        """Why a run says nothing."""
        what, runs = f"{self.core}, {self.name}", (self.undisturbed, self.beside)
        return [f"{what}: {each.latency.fault}" for each in runs if each.latency.fault]

    @property
    def could(self) -> float:
        """Orders a second of the adversary that the CPU allows beside the healthy ones."""
        return self.alone.could(self.core, self.undisturbed.latency.cost.worker)

    @property
    def added(self) -> float:
        """Milliseconds that the adversary adds to the healthy orders' p99."""
        return 1000 * (self.beside.latency.p99 - self.undisturbed.latency.p99)

    @property
    def share(self) -> float:
        """The part of the CPU left that the adversary got, in its orders."""
        return share(self.beside.others, self.could)

    @property
    def used_alone(self) -> float:
        """The part of its quota, or of its slots, that the worker used for the adversary alone."""
        return self.alone.used(self.core)


def play(servers: Servers, scene: Scene, *, backwards: bool) -> Trio:
    """Play the three runs. Raises InvalidRunError: one of them could not be played."""
    names = (UNDISTURBED, BESIDE, ALONE)[:: -1 if backwards else 1]
    runs = {name: _run(servers, scene, name) for name in names}
    return Trio(
        scene.core,
        scene.adversary.name,
        scene.adversary.title,
        _seen(scene, *runs[UNDISTURBED]),
        _seen(scene, *runs[BESIDE]),
        _alone(scene, runs[ALONE][0]),
        scene.adversary.at_a_rate,
    )


def judge(trios: Sequence[Trio]) -> Iterator[Verdict]:
    """What is wanted of an adversary on a core: latency, orders, share; of all rounds."""
    core = trios[0].core
    yield Verdict("added", [each.added for each in trios], at_most=core.most_added, form=",.1f")
    missing = [float(each.beside.latency.missing) for each in trios]
    yield Verdict("missing", missing, at_most=0, form=",.0f")
    yield Verdict("share", [each.share for each in trios], at_least=LEAST_SHARE)
    least = None if trios[0].at_a_rate else LEAST_ALONE
    yield Verdict("used alone", [each.used_alone for each in trios], at_least=least)


def _run(servers: Servers, scene: Scene, name: str) -> tuple[Observation, Limited]:
    made: list[Limited] = []

    def make(*arguments: Any) -> Limited:
        made.append(Limited(*arguments, cores=scene.core.part))
        return made[-1]

    attack = scene.adversary.attack
    disturbed = name != UNDISTURBED
    seen = steady_on_time(
        servers,
        Trial(WATCHED, attack.population, attack if disturbed else None),
        scene.size,
        Load(0.0 if name == ALONE else scene.core.rate, REPLY),
        make=make,
        beside=scene if disturbed else None,
    )
    return seen, made[-1]


def _seen(scene: Scene, seen: Observation, worker: Limited) -> Seen:
    attack, warm_up = scene.adversary.attack, scene.size.warm_up
    start = seen.scheduled.began + warm_up
    published = {each: at for each, at in seen.scheduled.published.items() if at >= start}
    return Seen(
        latency(seen, attack, warm_up),
        stages(worker.printed, published, seen.arrived),
        seen.others,
    )


def _alone(scene: Scene, seen: Observation) -> Alone:
    start = seen.scheduled.began + scene.size.warm_up
    end = start + scene.size.measured
    held = slots(seen.levels, {OTHERS_GROUP}, start, end)["troubled"]
    return Alone(
        seen.others,
        Cost.between(seen.readings, start, end).worker,
        sum(held) / len(held) / WATCHED.slots,
    )
