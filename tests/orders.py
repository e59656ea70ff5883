"""Orders and merchants for tests."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from pos_gateway.broker import wire
from pos_gateway.broker.wire import RawMessage


def an_order(
    order_id: str = "order-1", merchant_id: str = "fast-1", **fields: Any
) -> dict[str, Any]:
    """A valid order; its deadline is ``seconds`` away."""
    now = datetime.now(UTC)
    seconds = fields.pop("seconds", 300)
    return {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": (now - timedelta(seconds=1)).isoformat(),
        "deliver_by": (now + timedelta(seconds=seconds)).isoformat(),
        "currency": "EUR",
        "items": [{"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}],
        "total": 1700,
        **fields,
    }


def received(
    record: Any, headers: Mapping[str, Any] = MappingProxyType({}), key: str = "orders"
) -> RawMessage:
    """The message with this order, as a worker receives it."""
    return RawMessage.of(wire.body_of(json.dumps(record).encode()), headers, key)
