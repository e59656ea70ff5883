"""Masks personal data in a shown order: all that a person may have written.

Names of fields are the backend's, and names of what has a sku are the menu's: they are shown.
"""

from typing import Any

from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import RESOLVED, Kind, Lifecycle

MASK = "********"

#: Ends whose reason is in the POS's own words, which may repeat the customer's: states, outcomes of
#: attempts, and the last words of events' types.
_IN_POS_WORDS = frozenset({Kind.REJECTED.value, Kind.CANCELLED.value, *Lifecycle})
#: The code of a refused cancellation, in the POS's words.
_NOT_CANCELLED = "not_cancelled"

_MODIFIER: dict[str, Any] = {"sku": True, "name": True, "quantity": True, "unit_price": True}
#: Fields without personal data, by position. Names of charges are the backend's own words: a voucher's may
#: be the guest's.
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
        "ref": True,
        "modifiers": {
            **_MODIFIER,
            "modifiers": {**_MODIFIER, "modifiers": _MODIFIER},
        },
    },
    "order_type": True,
    "scheduled_for": True,
    "prep_minutes": True,
    "discounts": {"amount": True, "items": True, "funded_by": True},
    "fees": {"kind": True, "amount": True, "taxable": True},
    "taxes": {"amount": True, "rate": True, "inclusive": True, "remitted_by": True},
    "payment": {"status": True, "method": True},
    "utensils": True,
}


def masked(order: Order) -> dict[str, Any]:
    """The order with the customer, notes, unknown fields and free text masked."""
    shown: dict[str, Any] = _masked(order.model_dump(mode="json", exclude_none=True), _SHOWN)
    for item in shown["items"]:
        _mask_words(item)
    return shown


def _mask_words(part: dict[str, Any]) -> None:
    """Mask the names of modifiers that have no sku."""
    for modifier in part.get("modifiers", ()):
        if "sku" not in modifier:  # "write: happy birthday, Ada"
            modifier["name"] = MASK
        _mask_words(modifier)


def is_in_pos_words(kind: str, code: str) -> bool:
    """Whether a reason is in the POS's own words.

    Args:
        kind: the state, the attempt's outcome, or the event's type; of a cancel request that its POS
            was asked about ``rejected``.
    """
    return code == _NOT_CANCELLED or (
        kind.removeprefix("order.") in _IN_POS_WORDS and code != RESOLVED
    )


def masked_reason(kind: str, code: str) -> tuple[str, str]:
    """A reason's code and message for those who may not see personal data."""
    return MASK if is_in_pos_words(kind, code) else code, MASK


def _masked(value: Any, shown: Any) -> Any:
    match value:
        case dict() if isinstance(shown, dict):
            return {name: _masked(each, shown.get(name)) for name, each in value.items()}
        case list() if shown is not None:
            return [_masked(each, shown) for each in value]
        case _:
            return value if shown is True else MASK
