"""Orders at a steady rate, and how long each took, by the step of the move in which it was placed."""

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from random import Random

from loadtests.bench.orders import place
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
        for name, (where, at) in self._placed.items():
            ends = [each for each in self._backend.told[name] if each["type"] in TERMINAL]
            if ends and name[0].startswith(merchants):
                found[where].append(_moment(ends[0]["occurred_at"]) - at)
        return found

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


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
