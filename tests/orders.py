"""Orders and merchants for tests."""

from datetime import UTC, datetime, timedelta
from typing import Any


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
