"""Who plays in the demo: merchants of three classes, and how the orders fall on them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

#: Seconds for one exchange with a POS.
REQUEST_TIMEOUT = 4.0


@dataclass(frozen=True, slots=True)
class DemoMerchants:
    """One class of merchants."""

    name: str
    #: What the simulated merchants call this behaviour: the ids' prefix.
    prefix: str
    merchants: int
    #: Its share of the orders.
    weight: int
    says: str
    colour: str

    @property
    def ids(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.merchants)]


PARTS = (
    DemoMerchants("healthy", "fast", 60, 75, "about 50 ms", "green"),
    DemoMerchants("slow", "slow", 6, 12, "about 2 s", "yellow"),
    DemoMerchants("hanging", "hang", 3, 13, "never", "red"),
)

#: How the slow ones answer here: slow enough to see, quick enough for a demo.
PROFILES = {"slow-*": {"kind": "accept", "latency": {"lognormal": [2.0, 0.3]}}}


_ITEMS = [
    {"sku": sku, "name": name, "quantity": 1, "unit_price": price}
    for sku, name, price in (("burger", "Burger", 850), ("fries", "Fries", 350))
]


def place(order_id: str, merchant_id: str, *, deliver_within: float) -> dict[str, Any]:
    """An order that is placed now."""
    now = datetime.now(UTC)
    return {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(seconds=deliver_within)).isoformat(),
        "currency": "EUR",
        "items": _ITEMS,
        "total": 1200,
        "fulfillment": "delivery",
        "customer": {"name": "Ada Lovelace", "phone": "+1 555 0100"},
    }


def orders(seed: int, *, deliver_within: float) -> Iterator[dict[str, Any]]:
    """Orders without end, each placed at the moment it is taken."""
    chance, number = random.Random(seed), 0
    while True:
        number += 1
        [part] = chance.choices(PARTS, [part.weight for part in PARTS])
        merchant = chance.choice(part.ids)
        yield place(f"demo-{number}", merchant, deliver_within=deliver_within)
