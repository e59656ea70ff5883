"""All adversaries on all parts of a core, in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.bench.cores import nothing_pinned
from loadtests.bench.servers import Servers
from loadtests.bench.small_core import report
from loadtests.bench.small_core.adversaries import ADVERSARIES
from loadtests.bench.small_core.adversary import Adversary, Scene
from loadtests.bench.small_core.core import CORES, QUICK, SIZES, Core
from loadtests.bench.small_core.report import Played
from loadtests.bench.small_core.trio import play
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import WorkerEndedError


@dataclass(frozen=True, slots=True)
class SmallCore:
    """A case of the benchmark: adversaries, and the parts of a core on which each is played."""

    adversaries: Sequence[Adversary] = ADVERSARIES
    #: None: all, or half a core if quick.
    cores: Sequence[Core] | None = None
    NAME: str = "small-core"

    def measure(self, servers: Servers, rounds: int, *, quick: bool) -> Sequence[Played]:
        """Play each adversary on each core, every other round backwards.

        A run that says nothing costs its adversary the round, and the others nothing.
        """
        scenes = [
            Scene(adversary, core, SIZES[quick])
            for core in self.cores or (QUICK if quick else CORES)
            for adversary in self.adversaries
        ]
        with nothing_pinned():
            return [
                _round(servers, scenes[:: -1 if turn % 2 else 1], backwards=turn % 2 == 1)
                for turn in range(rounds)
            ]

    def faults(self, rounds: Sequence[Played]) -> Sequence[str]:
        """Why runs say nothing."""
        return [fault for played in rounds for fault in played.faults]

    def report(self, rounds: Sequence[Played]) -> str:
        """The tables."""
        return report.report(self.NAME, rounds)


def _round(servers: Servers, scenes: Sequence[Scene], *, backwards: bool) -> Played:
    played = Played()
    for scene in scenes:
        try:
            played.trios.append(play(servers, scene, backwards=backwards))
        except (InvalidRunError, WorkerEndedError) as error:
            played.broken.append(f"{scene.core}, {scene.adversary.name}: {error}")
    return played
