"""The demo's merchants, its orders, and every order's outcome, from submissions and events alone."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from loadtests.bench.orders import place
from loadtests.load.histogram import percentile
from testkit.faults.backend import IN_DOUBT, TERMINAL

#: Seconds that an order may take; those of the hanging merchants run into it.
DELIVER_WITHIN = 12.0
#: Seconds for one exchange with a POS.
REQUEST_TIMEOUT = 4.0


@dataclass(frozen=True, slots=True)
class Part:
    """One class of merchants."""

    name: str
    #: What the simulated merchants call this behaviour: the ids' prefix.
    prefix: str
    merchants: int
    #: Its share of the orders.
    weight: int
    says: str

    @property
    def ids(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.merchants)]


PARTS = (
    Part("healthy", "fast", 60, 75, "about 50 ms"),
    Part("slow", "slow", 6, 12, "about 2 s"),
    Part("hanging", "hang", 3, 13, "never"),
)

#: How the slow ones answer here: slow enough to see, quick enough for a demo.
PROFILES = {"slow-*": {"kind": "accept", "latency": {"lognormal": [2.0, 0.3]}}}


def part_of(merchant_id: str) -> Part:
    prefix = merchant_id.partition("-")[0]
    return next(part for part in PARTS if part.prefix == prefix)


def orders(seed: int) -> Iterator[dict[str, Any]]:
    """Orders without end, each placed at the moment it is taken."""
    chance, number = random.Random(seed), 0
    while True:
        number += 1
        [part] = chance.choices(PARTS, [part.weight for part in PARTS])
        merchant = chance.choice(part.ids)
        yield place(f"demo-{number}", merchant, deliver_within=DELIVER_WITHIN)


@dataclass
class Score:
    """One class's books."""

    submitted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    #: Seconds from submission to the event of its acceptance.
    seconds: list[float] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        return self.ended["order.accepted"]

    @property
    def open(self) -> int:
        return self.submitted - self.ended.total()

    def percentile(self, share: float) -> float | None:
        """Seconds to acceptance that this share of the orders did not exceed."""
        return percentile(sorted(self.seconds), share) if self.seconds else None


class Books:
    """All classes' books."""

    def __init__(self) -> None:
        self.scores = {part.name: Score() for part in PARTS}
        self.twice: list[str] = []
        self.unknown: list[str] = []
        self._open: dict[str, float] = {}
        self._closed: set[str] = set()

    def about_to_submit(self, order: dict[str, Any], at: float) -> None:
        """Its event may come before the confirm does."""
        self._open[order["order_id"]] = at

    def submitted(self, order: dict[str, Any]) -> None:
        """The broker has confirmed this order."""
        self._score(order["merchant_id"]).submitted += 1

    def add(self, event: dict[str, Any], at: float) -> None:
        """An event came."""
        order_id, kind = event["order_id"], event["type"]
        if kind not in TERMINAL and kind != IN_DOUBT:
            return
        if order_id in self._closed:
            self.twice.append(order_id)
        elif order_id not in self._open:
            self.unknown.append(order_id)
        else:
            score = self._score(event["merchant_id"])
            score.ended[kind] += 1
            if kind == "order.accepted":
                score.seconds.append(at - self._open[order_id])
            self._closed.add(order_id)

    @property
    def all_ended(self) -> bool:
        return all(score.open == 0 for score in self.scores.values())

    @property
    def submitted_in_all(self) -> int:
        return sum(score.submitted for score in self.scores.values())

    def problems(self, doubled: int, created: dict[str, int]) -> list[str]:
        """What does not add up, in words; empty when everything does.

        Args:
            doubled: orders that the merchants made more than once.
            created: orders that each class's merchants have, by their own records.
        """
        found = [
            f"{score.open} orders of {name} merchants have no outcome"
            for name, score in self.scores.items()
            if score.open
        ]
        if self.twice:
            found.append(f"{len(self.twice)} orders ended twice, the first is {self.twice[0]}")
        if self.unknown:
            found.append(f"{len(self.unknown)} events are about orders that were not placed")
        if doubled:
            found.append(f"{doubled} orders were made twice at their merchants")
        for name, score in self.scores.items():
            accepted, made = score.delivered, created.get(name, 0)
            if accepted > made:
                found.append(f"{name} merchants have {made} orders of {accepted} accepted")
        return found

    def _score(self, merchant_id: str) -> Score:
        return self.scores[part_of(merchant_id).name]
