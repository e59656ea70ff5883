"""Masks personal data in a shown order: all that a person may have written.

Names of fields are the backend's, and names of what has a sku are the menu's: they are shown.
"""

from typing import Any

from pos_gateway.domain.order import Order

MASK = "********"

#: Fields without personal data, by position.
_SHOWN: dict[str, Any] = {
    "order_id": True,
    "merchant_id": True,
    "placed_at": True,
    "deliver_by": True,
    "currency": True,
    "total": True,
    "tip": True,
    "items": {
        "sku": True,
        "name": True,
        "quantity": True,
        "unit_price": True,
        "modifiers": {"sku": True, "name": True, "quantity": True, "unit_price": True},
    },
}


def masked(order: Order) -> dict[str, Any]:
    """The order with the customer, notes, unknown fields and free text masked."""
    shown: dict[str, Any] = _masked(order.model_dump(mode="json", exclude_none=True), _SHOWN)
    for item in shown["items"]:
        for modifier in item.get("modifiers", ()):
            if "sku" not in modifier:  # "write: happy birthday, Ada"
                modifier["name"] = MASK
    return shown


def _masked(value: Any, shown: Any) -> Any:
    match value:
        case dict() if isinstance(shown, dict):
            return {name: _masked(each, shown.get(name)) for name, each in value.items()}
        case list() if isinstance(shown, dict):
            return [_masked(each, shown) for each in value]
        case _:
            return value if shown is True else MASK
