"""What admission itself costs: time for a decision, and memory for merchants that are known."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median

from kombu import Connection

from loadtests.bench import filling, orders
from loadtests.bench.candidate import OURS
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker
from loadtests.bench.world import world
from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms

NAME = "admission"
#: Merchants known and orders waiting; the last is what is wanted.
SIZES = ((100, 20), (100, 2000), (10_000, 20), (10_000, 2000))
#: Microseconds for a decision, and mebibytes for ten thousand merchants, at most.
MICROSECONDS, MEBIBYTES = 15.0, 40.0
#: Merchants that a worker is made to know, those that it knows before, and orders at a time:
#: thousands that wait would take memory too, for any merchants.
MERCHANTS, FEW, AT_A_TIME = 10_000, 100, 100


@dataclass(frozen=True, slots=True)
class AdmissionCost:
    """Microseconds of a decision, and a worker's resident memory in mebibytes."""

    #: The median of several rounds, by merchants known and orders waiting.
    decisions: Sequence[tuple[int, int, float]]
    #: Of a worker that knows few merchants, and of the same when it knows all of them.
    few: float
    all: float


def measure(servers: Servers, _rounds: int, *, quick: bool) -> AdmissionCost:
    """Time the pure core by itself, and weigh a real worker."""
    rounds = 3 if quick else 9
    decisions = [(*size, median(_decision(*size) for _ in range(rounds))) for size in SIZES]
    return AdmissionCost(decisions, *_weigh(servers))


def report(cost: AdmissionCost) -> str:
    """The tables."""
    lines = [[f"{known:,}", f"{waiting:,}", f"{us:.1f}"] for known, waiting, us in cost.decisions]
    added = cost.all - cost.few
    wanted = [
        Verdict("a decision, us", [cost.decisions[-1][2]], at_most=MICROSECONDS, form=".1f"),
        Verdict(f"{MERCHANTS:,} merchants, MiB", [added], at_most=MEBIBYTES, form=".1f"),
    ]
    return section(
        f"{NAME}: what it costs itself",
        table(("merchants known", "orders waiting", "a decision, us"), lines),
        verdicts(wanted),
        f"The worker took {cost.few:.0f} MiB with {FEW}, and {cost.all:.0f} MiB after.",
    )


def _decision(merchants: int, waiting: int, rounds: int = 20_000) -> float:
    """Microseconds for each of taking an order in, looking for one to start, and taking one back.

    All slots are taken that may be, `waiting` orders wait; one is done, what may start does, another
    comes.
    """
    ids = [f"m{place}" for place in range(merchants)]
    limits = AdmissionLimits(max_waiting=10**6, max_blocked=10**6)
    admission: Admission[int] = Admission(limits, lambda name: Terms(10, f"p{name[-1]}"))
    now = 0.0
    for merchant in ids:
        known = admission.offer(merchant, 0, now)
        assert isinstance(known, Call)
        admission.began(known, now)
        admission.release(known, now + 0.05)
    whose = cycle(Random(4).choices(ids, k=10_000))
    calls = _fill(admission, whose, waiting, now)
    decisions, began = 0, time.thread_time()
    for turn in range(rounds):
        now += 0.001
        admission.release(calls.popleft(), now)
        decisions += 3
        while (call := admission.next_start(now)) is not None:
            admission.began(call, now)
            calls.append(call)
            decisions += 1
        offered = admission.offer(next(whose), turn, now, now + 1800)
        if isinstance(offered, Call):
            admission.began(offered, now)
            calls.append(offered)
    return (time.thread_time() - began) / decisions * 1e6


def _fill(
    admission: Admission[int], whose: Iterator[str], waiting: int, now: float
) -> deque[Call[int]]:
    calls: deque[Call[int]] = deque()
    while admission.waiting < waiting:
        offered = admission.offer(next(whose), 0, now, now + 1800)
        if isinstance(offered, Call):
            admission.began(offered, now)
            calls.append(offered)
    return calls


def _weigh(servers: Servers) -> list[float]:
    """A worker's memory when it has delivered ten thousand orders to a hundred merchants, and then
    as many to ten thousand: what orders for any merchants leave behind is in both."""
    known = [f"healthy-{place}" for place in range(MERCHANTS)]
    whose = [known[place % FEW] for place in range(MERCHANTS)]
    with world(servers, known, {"healthy": {"kind": "accept"}}) as place:
        placed = [OURS.message(order) for order in orders.place_many([*whose, *known])]
        filling.fill(place.broker_url, placed[:AT_A_TIME])
        with (
            Worker(OURS.command, OURS.environment(place, 10.0), place.folder) as worker,
            Connection(place.broker_url) as connection,
        ):
            confirms = filling.Confirms(connection)
            weights = []
            for first in range(0, len(placed), AT_A_TIME):
                for message in placed[first : first + AT_A_TIME] if first else ():
                    confirms.publish(message)
                confirms.settle(timeout=30)
                creates = first + AT_A_TIME
                place.merchants.wait_until(creates=creates, idle=True, timeout=60)
                if creates % MERCHANTS == 0:
                    weights.append(_resident(worker.pid))
            return weights


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20
