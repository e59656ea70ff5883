"""The merchants of an attack, in groups that can get into trouble."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

from loadtests.bench import orders


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Merchants that are alike. Their ids are the group's name, a dash and a number."""

    name: str
    merchants: int
    #: Share of all orders.
    share: float
    #: What their records say beyond their URLs.
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def merchant_ids(self) -> list[str]:
        """All of them."""
        return [f"{self.name}-{number}" for number in range(self.merchants)]


@dataclass(frozen=True, slots=True, eq=False)
class Population:
    """Groups whose shares make up the whole."""

    groups: tuple[Group, ...]
    #: Orders to fill a queue with, and those of a quick run.
    orders: int
    quick_orders: int

    def __post_init__(self) -> None:
        total = sum(group.share for group in self.groups)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"shares: must make up 1 (got {total!r})")

    @property
    def merchant_ids(self) -> list[str]:
        """All merchants."""
        return [merchant_id for group in self.groups for merchant_id in group.merchant_ids]

    @property
    def terms(self) -> dict[str, Mapping[str, Any]]:
        """What is agreed with each group."""
        return {group.name: group.terms for group in self.groups}

    def profiles(self, latency: float) -> dict[str, object]:
        """Everybody replies after ``latency`` seconds."""
        return {group.name: {"kind": "accept", "latency": latency} for group in self.groups}

    def whose(self, number: int) -> list[str]:
        """Whose each of so many orders is: by the groups' shares, evenly within each, shuffled."""
        return orders.shuffled(
            merchant_id
            for group in self.groups
            for merchant_id in _in_turn(group.merchant_ids, round(number * group.share))
        )


def group_of(merchant_id: str) -> str:
    """The name of a merchant's group."""
    return merchant_id.partition("-")[0]


def _in_turn(merchant_ids: Sequence[str], number: int) -> list[str]:
    return list(islice(cycle(merchant_ids), number))


#: One merchant has a tenth of all orders, and a limit that lets it take them.
ONE_BUSY = Population(
    (
        Group("busy", 1, 0.1, {"max_concurrency": 20}),
        Group("healthy", 200, 0.9),
    ),
    orders=16_000,
    quick_orders=5000,
)

#: A thousand merchants with as many orders each; 300 have the same provider, the others many.
THOUSAND = Population(
    (
        Group("some", 100, 0.1),
        Group("vendor", 300, 0.3, {"provider": "vendor"}),
        Group("many", 400, 0.4),
        Group("rest", 200, 0.2),
    ),
    orders=24_000,
    quick_orders=6000,
)
