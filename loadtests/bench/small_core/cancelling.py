"""Cancel requests for orders that have not come: each is an end and an event, and needs no slot."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from loadtests.bench import filling
from loadtests.bench.orders import PLENTY
from loadtests.bench.slow_merchants import OTHERS_GROUP
from loadtests.bench.small_core.adversary import FIRST
from loadtests.bench.small_core.counting import ended
from loadtests.bench.world import World
from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message
from pos_gateway.ledger.states import FINAL, Action

REQUESTS, MERCHANTS = 10_000, 100


@contextmanager
def requested(place: World) -> Iterator[None]:
    """Publish all of them at once."""
    filling.put(place.broker_url, [_request(FIRST + number) for number in range(REQUESTS)])
    yield


def decided(place: World) -> int:
    """Requests that have ended."""
    return ended(place, Action.CANCEL, *FINAL)


def _request(number: int) -> Message:
    request = {
        "order_id": f"order-{number}",
        "merchant_id": f"{OTHERS_GROUP}-{number % MERCHANTS}",
        "deliver_by": (datetime.now(UTC) + timedelta(seconds=PLENTY)).isoformat(),
    }
    text, key = json.dumps(request).encode(), topology.orders_queue.name
    return wire.cancel_message(request["order_id"], text, routing_key=key)
