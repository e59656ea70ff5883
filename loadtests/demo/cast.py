"""Who plays in the demo: merchants of three classes, and how the orders fall on them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any


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

#: Seconds that an order may take; those of the hanging merchants run into it.
DELIVER_WITHIN = 12.0
#: Seconds for one exchange with a POS.
REQUEST_TIMEOUT = 4.0


def part_of(merchant_id: str) -> Part:
    prefix = merchant_id.partition("-")[0]
    return next(part for part in PARTS if part.prefix == prefix)


def orders(seed: int) -> Iterator[dict[str, Any]]:
    """Orders without end, each placed at the moment it is taken."""
    chance = random.Random(seed)
    weights = [part.weight for part in PARTS]
    number = 0
    while True:
        number += 1
        part = chance.choices(PARTS, weights)[0]
        price, quantity = chance.randrange(400, 1600, 50), chance.randint(1, 3)
        now = datetime.now(UTC)
        yield {
            "order_id": f"demo-{number}",
            "merchant_id": chance.choice(part.ids),
            "placed_at": now.isoformat(),
            "deliver_by": (now + timedelta(seconds=DELIVER_WITHIN)).isoformat(),
            "currency": "EUR",
            "items": [
                {"sku": "menu", "name": "Menu", "quantity": quantity, "unit_price": price},
            ],
            "total": price * quantity,
        }
