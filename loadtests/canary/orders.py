"""Orders at a steady rate, and how long each took, by the step of the move in which it was placed: a table."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random

from rich import box
from rich.table import Table

from loadtests.bench.orders import place
from loadtests.canary.picture import Delivered
from loadtests.load.histogram import percentile
from testkit.background import Background
from testkit.faults.backend import TERMINAL, Backend, Name

#: A step, and whether the order's merchant was in the canary.
Where = tuple[str, bool]


class Orders(Background):
    """Places orders on a thread of its own while the block lasts. Customers do not wait in line."""

    def __init__(self, backend: Backend, merchants: Sequence[str], rate: float, seed: int) -> None:
        super().__init__()
        self.step = ""
        self._backend, self._merchants, self._rate = backend, merchants, rate
        self._chance = Random(seed)
        self._placed: dict[Name, tuple[Where, float]] = {}

    def counts(self) -> dict[Where, int]:
        """How many were placed so far."""
        found: dict[Where, int] = defaultdict(int)
        for where, _ in list(self._placed.values()):
            found[where] += 1
        return found

    def seconds(self, merchants: str) -> dict[Where, list[float]]:
        """How long those took of which an end was told, of the merchants with this prefix."""
        found: dict[Where, list[float]] = defaultdict(list)
        for where, _, seconds in self._ended(merchants):
            found[where].append(seconds)
        return found

    def delivered(self, merchants: str) -> list[Delivered]:
        """The same orders, each with when it was placed."""
        return [
            Delivered(at, in_canary, seconds)
            for (_, in_canary), at, seconds in self._ended(merchants)
        ]

    def _ended(self, merchants: str) -> Iterator[tuple[Where, float, float]]:
        for name, (where, at) in self._placed.items():
            ends = [each for each in self._backend.told[name] if each["type"] in TERMINAL]
            if ends and name[0].startswith(merchants):
                yield where, at, datetime.fromisoformat(ends[0]["occurred_at"]).timestamp() - at

    def _run(self) -> None:
        due, number = time.monotonic(), 0
        while not self._over.wait(max(0.0, due - time.monotonic())):
            merchant, number = self._chance.choice(self._merchants), number + 1
            order = place(f"o{number}", merchant)
            where = self.step, self._backend.split.takes(merchant)
            self._placed[merchant, order["order_id"]] = where, time.time()
            if not self._backend.place(order):
                return
            due += self._chance.expovariate(self._rate)


@dataclass(frozen=True, slots=True)
class Step:
    """One share of the merchants in the canary, for a while."""

    name: str
    #: Milliseconds of CPU an order, of each kind of workers; None if they had none.
    old_cpu: float | None
    new_cpu: float | None
    #: What ``pos-gateway canary status`` makes of it, and why; empty if there is nothing to compare.
    verdict: str


def table(steps: Sequence[Step], seconds: Mapping[Where, Sequence[float]]) -> Table:
    """A row for each step: the orders of merchants outside the canary, then of those in it."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.caption = (
        "old, new: orders of healthy merchants outside and inside the canary. p50, p99: seconds from "
        "placing one until it was accepted. CPU: milliseconds an order."
    )
    made.add_column("canary")
    for heading in ("old", "p50", "p99", "CPU", "new", "p50", "p99", "CPU"):
        made.add_column(heading, justify="right")
    made.add_column("verdict")
    for step in steps:
        old = _side(seconds.get((step.name, False), ()), step.old_cpu)
        new = _side(seconds.get((step.name, True), ()), step.new_cpu)
        made.add_row(step.name, *old, *new, step.verdict)
    return made


def _side(seconds: Sequence[float], cpu: float | None) -> list[str]:
    ranked = sorted(seconds)
    times = [f"{percentile(ranked, share):.2f}" if ranked else "-" for share in (0.5, 0.99)]
    return [str(len(ranked)), *times, "-" if cpu is None else f"{cpu:.1f}"]
