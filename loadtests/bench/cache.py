"""A cached value under thousands of readers as it is refreshed: who loads, and who waits."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtests.bench.reading import CANDIDATES
from loadtests.bench.report import table
from loadtests.bench.slow_source import SlowSource
from loadtests.load.histogram import percentile
from testkit.servers.redis import Redis

NAME = "cache"
#: Readers in all, and the processes that they are in.
READERS, PROCESSES = 6000, 2
#: Seconds that a value is good; it is refreshed after half of them. And those of a run, which sees two
#: refreshes at least.
LIFETIME, SECONDS = 16.0, 32.0
#: What is wanted: microseconds of a read; p99 of a read during a refresh / outside; and the
#: milliseconds after which a reader has waited.
MOST_READ, MOST_RATIO, MOST_WAIT = 1.0, 2.0, 1000.0


@dataclass(frozen=True, slots=True)
class Reads:
    """What one candidate's readers saw after the first value was there. Times are seconds."""

    candidate: str
    first_loads: int
    refreshes: int
    later_loads: int
    longest: float
    p99_during: float
    p99_outside: float
    cpu: float

    @property
    def loads_a_refresh(self) -> float:
        """How many loads a refresh cost."""
        return self.later_loads / max(1, self.refreshes)


@dataclass(frozen=True, slots=True)
class CacheCost:
    """Of each candidate."""

    reads: Sequence[Reads]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [asdict(each) for each in self.reads]


def measure() -> CacheCost:
    """Play the candidates in turn."""
    with Redis() as redis:
        return CacheCost([_play(name, redis) for name in CANDIDATES])


def _play(candidate: str, redis: Redis) -> Reads:
    redis.flush()
    with SlowSource() as source:
        arguments = (redis.url, source.port, READERS // PROCESSES, SECONDS, LIFETIME)
        command = [sys.executable, "-m", "gevent.monkey", "--module", "loadtests.bench.reading"]
        processes = [
            subprocess.Popen([*command, candidate, *map(str, arguments)], stdout=subprocess.PIPE)
            for _ in range(PROCESSES)
        ]
        try:
            told = [json.loads(process.communicate()[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
        loads = sorted(source.loads)
    reads = [read for each in told for read in each["reads"]]
    return judge(candidate, loads, reads, max(each["cpu"] for each in told))


def judge(
    candidate: str,
    loads: Sequence[tuple[float, float]],
    reads: Sequence[tuple[float, float]],
    cpu: float,
) -> Reads:
    """The figures from when loads began and ended, and reads began and how long they took."""
    waves = _waves(loads)
    (_, first_end), *later = waves
    after = [(at, seconds) for at, seconds in reads if at > first_end]
    during = [s for at, s in after if any(begin <= at <= end for begin, end in later)]
    outside = [s for at, s in after if not any(begin <= at <= end for begin, end in later)]
    first_loads = sum(begin <= first_end for begin, _ in loads)
    return Reads(
        candidate,
        first_loads,
        len(later),
        len(loads) - first_loads,
        longest=max((seconds for _, seconds in after), default=0.0),
        p99_during=percentile(sorted(during), 0.99) if during else 0.0,
        p99_outside=percentile(sorted(outside), 0.99) if outside else 0.0,
        cpu=cpu,
    )


def _waves(loads: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Loads that overlap are one."""
    waves: list[tuple[float, float]] = []
    for begin, end in sorted(loads):
        if waves and begin <= waves[-1][1]:
            waves[-1] = waves[-1][0], max(end, waves[-1][1])
        else:
            waves.append((begin, end))
    return waves


def report(cost: CacheCost) -> str:
    """The tables."""
    header = (
        *("", "first loads", "refreshes", "loads a refresh", "longest wait ms"),
        *("p99 of a read us", "during a refresh us", "CPU of a read us"),
    )
    lines = [
        [
            each.candidate,
            f"{each.first_loads:,}",
            str(each.refreshes),
            f"{each.loads_a_refresh:,.1f}",
            f"{each.longest * 1000:,.1f}",
            f"{each.p99_outside * 1e6:,.1f}",
            f"{each.p99_during * 1e6:,.1f}",
            f"{each.cpu * 1e6:.2f}",
        ]
        for each in cost.reads
    ]
    ours = next(each for each in cost.reads if each.candidate == "gateway")
    ratio = ours.p99_during / ours.p99_outside if ours.p99_outside else float("inf")
    wanted = [
        ("loads at first", f"{ours.first_loads}", "1", ours.first_loads == 1),
        ("loads a refresh", f"{ours.loads_a_refresh:.1f}", "1", ours.loads_a_refresh == 1),
        ("refreshes seen", f"{ours.refreshes}", ">= 2", ours.refreshes >= 2),
        (
            "longest wait after the first load, ms",
            f"{ours.longest * 1000:,.1f}",
            f"<= {MOST_WAIT:,.0f}",
            ours.longest * 1000 <= MOST_WAIT,
        ),
        (
            "p99 of a read, during a refresh / outside",
            f"{ratio:.2f}",
            f"<= {MOST_RATIO:.2f}",
            ratio <= MOST_RATIO,
        ),
        (
            "CPU of a read, us",
            f"{ours.cpu * 1e6:.2f}",
            f"<= {MOST_READ:.2f}",
            ours.cpu * 1e6 <= MOST_READ,
        ),
    ]
    verdicts = [[what, got, want, "met" if met else "MISSED"] for what, got, want, met in wanted]
    return (
        "\n\n".join(
            (
                f"## cache: {READERS:,} readers in {PROCESSES} processes, loads of 3 s",
                table(header, lines),
                table(("gateway", "", "target", ""), verdicts),
            )
        )
        + "\n"
    )
