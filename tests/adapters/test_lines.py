"""Amounts that are exact or refused, and texts in one line."""

import pytest

from pos_gateway.adapters import lines
from pos_gateway.adapters.rejection import Refused
from pos_gateway.domain.order import Order
from tests.orders import an_order


def order_of(total: int, *items: dict[str, object], **fields: object) -> Order:
    whole = [{"sku": "s", "name": "n", "quantity": 1, "unit_price": 0, **item} for item in items]
    return Order.parse(an_order(items=whole, total=total, **fields))


@pytest.mark.parametrize(
    ("total", "items"),
    [
        (1700, [{"quantity": 2, "unit_price": 850}]),
        (
            1900,
            [{"quantity": 2, "unit_price": 850, "modifiers": [{"name": "m", "unit_price": 100}]}],
        ),
        (0, [{}]),
    ],
)
def test_an_order_that_adds_up_is_not_refused(total: int, items: list[dict[str, object]]) -> None:
    assert lines.refusal(order_of(total, *items)) is None


@pytest.mark.parametrize(
    ("total", "items"),
    [
        (1701, [{"quantity": 2, "unit_price": 850}]),
        (2000, [{"quantity": 2, "unit_price": 850}]),
        # It adds up, but no POS has an item with a negative price.
        (400, [{"unit_price": 500}, {"modifiers": [{"name": "m", "unit_price": -100}]}]),
    ],
)
def test_an_order_that_a_pos_would_price_differently_is_refused(
    total: int, items: list[dict[str, object]]
) -> None:
    refused = lines.refusal(order_of(total, *items, tip=300))
    assert refused is not None
    assert refused.reason is not None
    assert refused.reason.code == "price_mismatch"


def test_a_text_is_one_printable_line_of_bounded_length() -> None:
    assert lines.shortened(" a\r\n\x00b\u202ec ", 9) == "a b c"
    assert lines.shortened("🍔" * 9, 3) == "🍔🍔🍔"
    assert lines.shortened(None, 3) == ""


def test_the_first_item_has_the_orders_notes() -> None:
    order = order_of(0, {"notes": "hot"}, {"notes": "cold"}, notes="ring")
    assert [lines.notes(order, item, 10, "items") for item in order.items] == ["hot / ring", "cold"]
    with pytest.raises(Refused, match=r"items\[0\].notes and notes has 10 characters"):
        lines.notes(order, order.items[0], 9, "items[0]")
