"""Every order's outcome: the demo's own books, kept from submissions and events alone."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from loadtests.demo.cast import PARTS, Part, part_of

#: Events that end an order; an order in doubt is kept for an operator, and listed as such.
ENDS = frozenset(
    f"order.{kind}"
    for kind in ("accepted", "rejected", "cancelled", "expired", "failed", "in_doubt")
)


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

    def percentile(self, percent: float) -> float | None:
        """Seconds to acceptance that so many percent kept to."""
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))] if ranked else None


class Books:
    """All classes' books."""

    def __init__(self) -> None:
        self.scores = {part.name: Score() for part in PARTS}
        self.twice: list[str] = []
        self.unknown: list[str] = []
        self._open: dict[str, float] = {}
        self._closed: set[str] = set()

    def submitted(self, order: dict[str, Any], at: float) -> None:
        """The broker has confirmed this order, which was submitted at this time."""
        self._open.setdefault(order["order_id"], at)
        self._score(order["merchant_id"]).submitted += 1

    def about_to_submit(self, order: dict[str, Any], at: float) -> None:
        """Its event may come before the confirm does."""
        self._open[order["order_id"]] = at

    def told(self, event: dict[str, Any], at: float) -> None:
        """An event came."""
        order_id, kind = event["order_id"], event["type"]
        if kind not in ENDS:
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
        found = []
        for name, score in self.scores.items():
            if score.open:
                found.append(f"{score.open} orders of {name} merchants have no outcome")
        if self.twice:
            found.append(f"{len(self.twice)} orders ended twice, the first is {self.twice[0]}")
        if self.unknown:
            found.append(f"{len(self.unknown)} events are about orders that were not placed")
        if doubled:
            found.append(f"{doubled} orders were made twice at their merchants")
        for part in PARTS:
            accepted, made = self.scores[part.name].delivered, created.get(part.name, 0)
            if accepted > made:
                found.append(f"{part.name} merchants have {made} orders of {accepted} accepted")
        return found

    def _score(self, merchant_id: str) -> Score:
        part: Part = part_of(merchant_id)
        return self.scores[part.name]
