"""Runs one micro-benchmark in a process that gevent has patched, on the worker's core.

    python -m gevent.monkey --module loadtests.bench.micro.runner MODULE NUMBER ROUNDS ARGUMENT...

A module has ``opened(number, *arguments)``, a context manager that yields what plays a round: it takes
the round's number and returns figures by name. The child prints the rounds as a JSON list.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module

import gevent

from loadtests.bench.cores import on_the_workers_core
from loadtests.bench.report import Verdict, section, verdicts
from loadtests.bench.servers import Servers

#: Units in a row, and seconds until the next ones: as a busy worker has them, not a flood.
YIELD_EVERY, PAUSE = 20, 0.02

#: Plays a round of that number.
Play = Callable[[int], Mapping[str, float]]


@contextmanager
def nothing() -> Iterator[Sequence[object]]:
    """No arguments."""
    yield ()


@dataclass(frozen=True, slots=True)
class Micro:
    """A micro-benchmark."""

    NAME: str
    title: str
    unit: str
    #: Units of a round and rounds, by whether the run is quick.
    sizes: Mapping[bool, tuple[int, int]]
    #: The most that figures may be, by name.
    at_most: Mapping[str, float] = field(default_factory=dict)
    #: Figures that the others are compared with: as a ratio, as a difference.
    over: str = ""
    above: str = ""
    form: str = ".1f"
    #: Arguments of the child, which last as long as it runs.
    given: Callable[[], AbstractContextManager[Sequence[object]]] = nothing

    def measure(self, _servers: Servers, _rounds: int, *, quick: bool) -> list[dict[str, float]]:
        """Figures by name, of each round."""
        module = f"{__package__}.{self.NAME}_case"
        child = [sys.executable, "-m", "gevent.monkey", "--module", __name__, module]
        with self.given() as given:
            command = [*child, *map(str, (*self.sizes[quick], *given))]
            run = subprocess.run(
                on_the_workers_core(command), check=True, stdout=subprocess.PIPE, text=True
            )
        rounds: list[dict[str, float]] = json.loads(run.stdout)
        return rounds

    def report(self, rounds: Sequence[Mapping[str, float]]) -> str:
        """The table: each figure's median and spread."""
        judged = []
        for name in rounds[0]:
            values = [each[name] for each in rounds]
            judged.append(Verdict(name, values, at_most=self.at_most.get(name), form=self.form))
            if self.over and name != self.over:
                ratios = [each[name] / each[self.over] for each in rounds]
                judged.append(Verdict(f"{name} / {self.over}", ratios))
            if self.above and name != self.above:
                more = [each[name] - each[self.above] for each in rounds]
                judged.append(Verdict(f"{name}, above {self.above}", more, form=self.form))
        return section(f"{self.NAME}: {self.title}", verdicts(judged, self.unit))


def in_turn(candidates: Mapping[str, Callable[[], float]], turn: int) -> dict[str, float]:
    """Each candidate's figure; every other round backwards, so that drift meets all alike."""
    names = list(candidates)
    figures = {name: candidates[name]() for name in (names if turn % 2 else reversed(names))}
    return {name: figures[name] for name in names}


def thread_cpu(number: int, unit: Callable[[int], object], *, pause: float = 0.0) -> float:
    """Seconds of this thread's CPU for a unit, the pauses between them left out."""
    used = 0.0
    for start in range(0, number, YIELD_EVERY):
        began = time.thread_time()
        for each in range(start, start + YIELD_EVERY):
            unit(each)
        used += time.thread_time() - began
        gevent.sleep(pause)
    return used / number


def main(module: str, number: str, rounds: str, *arguments: str) -> None:
    """Play one round to warm up, then those that count."""
    with import_module(module).opened(int(number), *arguments) as play:
        played = [play(turn) for turn in range(int(rounds) + 1)]
    print(json.dumps(played[1:]))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
