"""CPU time and memory by process tree while a run lasts, to be read for any stretch of it afterwards."""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loadtests.bench.cores import left_cores
from testkit.background import Background

#: Seconds between two looks, each of which takes 7 ms of a core (psutil reads all processes).
_PERIOD = 0.5

#: The parts of a run.
WORKER, SIMULATOR, BROKER, DATABASE = "worker", "simulator", "rabbitmq", "postgresql"
PRODUCER = "producer"
#: The machine's busy cores; those that the worker leaves to everything else, each on average; and the
#: time that the worker was ready to run and had to wait.
MACHINE, LEFT, WAITED = "machine", "left", "waited"


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds used since each part started, and MiB of memory that it holds."""

    at: float
    used: Mapping[str, float]
    held: Mapping[str, float] = field(default_factory=dict)


class Gauge(Background):
    """Looks at process trees from a thread of its own while its block lasts.

    Args:
        parts: the first process of each part, by the part's name.
        waiting: the part whose wait for a core is looked at too.
    """

    def __init__(self, parts: Mapping[str, int], *, waiting: str) -> None:
        super().__init__()
        self.readings: list[Reading] = []
        self._roots = {name: psutil.Process(pid) for name, pid in parts.items()}
        self._waiting = waiting

    def _run(self) -> None:
        while True:
            self.readings.append(self._look())
            if self._over.wait(_PERIOD):
                self.readings.append(self._look())
                return

    def _look(self) -> Reading:
        busy = [_busy(each) for each in psutil.cpu_times(percpu=True)]
        left = [busy[core] for core in left_cores() if core < len(busy)]  # some are not shown to us
        used = {MACHINE: sum(busy), LEFT: sum(left) / max(1, len(left)), WAITED: 0.0}
        held = {}
        for name, root in self._roots.items():
            tree = _tree(root)
            used[name] = sum(map(_cpu_seconds, tree))
            held[name] = sum(map(_resident, tree))
            if name == self._waiting:
                used[WAITED] = sum(map(_waited_seconds, tree))
        return Reading(time.time(), used, held)


def used_between(readings: Sequence[Reading], start: float, end: float) -> dict[str, float]:
    """What each part used between two moments; between two readings it is taken as even."""
    if not readings:
        return {}
    before, after = _at(readings, start), _at(readings, end)
    return {name: max(0.0, after[name] - before[name]) for name in after if name in before}


def _at(readings: Sequence[Reading], moment: float) -> Mapping[str, float]:
    place = bisect_left(readings, moment, key=lambda reading: reading.at)
    if place == 0:
        return readings[0].used
    if place == len(readings):
        return readings[-1].used
    left, right = readings[place - 1], readings[place]
    share = (moment - left.at) / (right.at - left.at)
    return {
        name: left.used[name] + share * (right.used[name] - left.used[name])
        for name in right.used
        if name in left.used
    }


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return [root]


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:
        return 0.0


def _waited_seconds(process: psutil.Process) -> float:
    """How long the process's main thread was ready to run while its core ran something else."""
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0  # only Linux tells


def _busy(times: Any) -> float:
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
