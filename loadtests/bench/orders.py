"""Orders to fill a queue with: of a usual size, the same ones for every candidate."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from random import Random
from typing import Any

#: Seconds that a benchmark's order may take: it is never what ends one.
PLENTY = 3600.0

_ITEMS = [
    {
        "sku": f"SKU-{number:05}",
        "name": name,
        "quantity": 1 + number % 2,
        "unit_price": 995,
        "modifiers": [{"name": "no onions", "quantity": 1, "unit_price": 0}],
        "notes": "well done, please",
    }
    for number, name in enumerate(["Cheeseburger", "Large fries", "Lemonade", "Apple pie"])
]


@dataclass(frozen=True, slots=True)
class PlacedOrder:
    """An order as the backend has it."""

    order_id: str
    merchant_id: str
    json: bytes


def place(order_id: str, merchant_id: str, *, deliver_within: float = PLENTY) -> dict[str, Any]:
    """An order of about a kilobyte that is placed now."""
    now = datetime.now(UTC)
    return {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(seconds=deliver_within)).isoformat(),
        "currency": "USD",
        "items": _ITEMS,
        "total": 5970,
        "tip": 500,
        "fulfillment": "delivery",
        "customer": {"name": "Ada Lovelace", "phone": "+1 555 0100"},
        "notes": "Leave it at the door.",
    }


def place_many(
    merchant_ids: Iterable[str], *, first: int = 0, deliver_within: float = PLENTY
) -> Iterator[PlacedOrder]:
    """One order for each id, numbered from ``first``."""
    for number, merchant_id in enumerate(merchant_ids, first):
        order = place(f"order-{number}", merchant_id, deliver_within=deliver_within)
        yield PlacedOrder(order["order_id"], merchant_id, json.dumps(order).encode())


def shuffled(merchant_ids: Iterable[str]) -> list[str]:
    """The merchants of orders in a random sequence: a pattern would meet the worker's batches in a
    pattern too. By a fixed seed, so that every candidate gets the same.
    """
    ids = list(merchant_ids)
    Random(4).shuffle(ids)
    return ids


def spread(orders: int, merchant_ids: Sequence[str]) -> list[str]:
    """The merchant of each order: as many of each, shuffled."""
    return shuffled(islice(cycle(merchant_ids), orders))
