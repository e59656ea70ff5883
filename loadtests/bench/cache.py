"""A cached value under thousands of readers as it is refreshed: who loads, and who waits."""

import asyncio
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.bench import cache_readers
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.load.histogram import percentile
from testkit.background import Background
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
#: Seconds of a load that is alone, and how many others at once double it: six thousand take 15 s.
ALONE, CROWD = 3.0, 1500


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


class SlowSource(Background):
    """A server on loopback, in a thread, that answers each line after some seconds."""

    def __init__(self) -> None:
        super().__init__()
        #: When each load began and ended, by the wall clock.
        self.loads: list[tuple[float, float]] = []
        self.port, self.listening = 0, threading.Event()
        self._active = 0

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=8192)
        self.port = server.sockets[0].getsockname()[1]
        self.listening.set()
        while not self._over.is_set():
            await asyncio.sleep(0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        began = time.time()
        self._active += 1
        await asyncio.sleep(ALONE * (1 + self._active / CROWD))
        self._active -= 1
        self.loads.append((began, time.time()))
        writer.write(b"value\n")
        writer.close()


def measure(_servers: Servers, _rounds: int, *, quick: bool) -> list[Reads]:
    """Play the candidates in turn; a quick run is as long, to see two refreshes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with Redis() as redis:
        return [_play(name, redis) for name in cache_readers.CANDIDATES]


def _play(candidate: str, redis: Redis) -> Reads:
    redis.flush()
    with SlowSource() as source:
        source.listening.wait()
        arguments = (redis.url, source.port, READERS // PROCESSES, SECONDS, LIFETIME)
        command = [sys.executable, "-m", "gevent.monkey", "--module", cache_readers.__name__]
        processes = [
            subprocess.Popen([*command, candidate, *map(str, arguments)], stdout=subprocess.PIPE)
            for _ in range(PROCESSES)
        ]
        try:
            seen = [json.loads(process.communicate()[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
        loads = sorted(source.loads)
    reads = [read for each in seen for read in each["reads"]]
    return judge(candidate, loads, reads, max(each["cpu"] for each in seen))


def judge(
    candidate: str,
    loads: Sequence[tuple[float, float]],
    reads: Sequence[tuple[float, float]],
    cpu: float,
) -> Reads:
    """The figures from when loads began and ended, and reads began and how long they took."""
    (_, first_end), *later = _waves(loads)
    during: list[float] = []
    outside: list[float] = []
    for at, seconds in reads:
        if at > first_end:
            refreshing = any(begin <= at <= end for begin, end in later)
            (during if refreshing else outside).append(seconds)
    first_loads = sum(begin <= first_end for begin, _ in loads)
    return Reads(
        candidate,
        first_loads,
        len(later),
        len(loads) - first_loads,
        longest=max((*during, *outside), default=0.0),
        p99_during=percentile(sorted(during) or [0.0], 0.99),
        p99_outside=percentile(sorted(outside) or [0.0], 0.99),
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


def report(reads: Sequence[Reads]) -> str:
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
        for each in reads
    ]
    ours = next(each for each in reads if each.candidate == "gateway")
    ratio = ours.p99_during / ours.p99_outside if ours.p99_outside else float("inf")
    wanted = [
        Verdict("loads at first", [ours.first_loads], at_most=1, form=".0f"),
        Verdict("loads a refresh", [ours.loads_a_refresh], at_most=1, form=".1f"),
        Verdict("refreshes seen", [ours.refreshes], at_least=2, form=".0f"),
        Verdict(
            "longest wait after the first load, ms",
            [ours.longest * 1000],
            at_most=MOST_WAIT,
            form=",.1f",
        ),
        Verdict("p99 of a read, during a refresh / outside", [ratio], at_most=MOST_RATIO),
        Verdict("CPU of a read, us", [ours.cpu * 1e6], at_most=MOST_READ),
    ]
    return section(
        f"{NAME}: {READERS:,} readers in {PROCESSES} processes, loads of 3 s",
        table(header, lines),
        verdicts(wanted, "gateway"),
    )
