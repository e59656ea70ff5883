"""The largest valid orders, two megabytes a second of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from loadtests.bench.orders import PlacedOrder, place
from loadtests.bench.slow_merchants import OTHERS_GROUP
from loadtests.bench.small_core.adversary import FIRST
from loadtests.bench.small_core.publishing import Publishing
from loadtests.bench.world import World
from pos_gateway.broker import wire
from pos_gateway.domain.order import ITEMS, MODIFIERS
from pos_gateway.settings import Settings

MERCHANTS = 20
#: Bytes of an order whose message is as long as a message may be, and orders a second.
BYTES = int(Settings.model_fields["max_order_bytes"].default) - len(wire.body_of(b""))
RATE = 2_000_000 / BYTES


def largest(order_id: str, merchant_id: str) -> PlacedOrder:
    """An order with as many items, modifiers and bytes as an order may have."""
    spare, rest = divmod(BYTES - len(_written(order_id, merchant_id, 0, 0)), ITEMS)
    return PlacedOrder(order_id, merchant_id, _written(order_id, merchant_id, spare, rest))


def _written(order_id: str, merchant_id: str, item_notes: int, notes: int) -> bytes:
    """The order, with this many characters of notes in each item, and for all."""
    item = {
        "sku": "s",
        "name": "i",
        "quantity": 1,
        "unit_price": 1,
        "modifiers": [{"name": "m"}] * (MODIFIERS // ITEMS),
        "notes": "n" * item_notes,
    }
    whole = {"items": [item] * ITEMS, "total": ITEMS, "notes": "n" * notes}
    return json.dumps({**place(order_id, merchant_id), **whole}, separators=(",", ":")).encode()


@contextmanager
def sent(place: World) -> Iterator[None]:
    """Publish them at their rate."""
    orders = (
        largest(f"order-{FIRST + number}", f"{OTHERS_GROUP}-{number % MERCHANTS}")
        for number in count()
    )
    with Publishing(place.broker_url, orders, RATE):
        yield
