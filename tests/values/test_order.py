"""What an order must be, and how a wrong one is told."""

import json
from datetime import datetime
from typing import Any

import pytest

from pos_gateway.errors import InvalidOrder
from pos_gateway.order import Order
from pos_gateway.record import identifier
from tests.orders import an_order

#: Ids that a server may follow to another path.
TRAPS = (".", "..", "../x", "a/..", "a/./b", "%2e%2E", "..%2fx", "..;x", "a\\..\\b")


def test_a_valid_order_survives_the_way_to_json_and_back() -> None:
    order = Order.parse(an_order(customer={"name": "N", "phone": "1"}, tip=100, notes="ring"))
    assert Order.parse_json(order.to_json()) == order


def test_fields_that_the_gateway_does_not_know_are_passed_on() -> None:
    order = Order.parse(an_order(channel="kiosk"))
    assert json.loads(order.to_json())["channel"] == "kiosk"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order_id": ""}, "order_id"),
        ({"order_id": "a b"}, "order_id"),
        ({"order_id": "line\nbreak"}, "order_id"),
        ({"order_id": 7}, "order_id"),
        *(({"order_id": each}, "order_id") for each in TRAPS),
        ({"merchant_id": ".."}, "merchant_id"),
        ({"merchant_id": None}, "merchant_id"),
        ({"currency": "euro"}, "currency"),
        ({"total": -1}, "total"),
        ({"total": 12.5}, "total"),
        ({"total": "1700"}, "total"),
        ({"total": True}, "total"),
        ({"tip": -5}, "tip"),
        ({"items": []}, "items"),
        ({"items": "burger"}, "items"),
        ({"placed_at": "yesterday"}, "placed_at"),
        ({"placed_at": "2026-01-01T12:00:00"}, "placed_at"),
        ({"placed_at": 1_700_000_000}, "placed_at"),
        ({"deliver_by": 4_000_000_000}, "deliver_by"),
        ({"deliver_by": "2020-01-01T00:00:00Z"}, "deliver_by"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(**change))
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize("quantity", [0, -1, 1.5, "2", None])
def test_a_wrong_quantity_is_named_with_its_place(quantity: object) -> None:
    item = {"sku": "s", "name": "n", "quantity": quantity, "unit_price": 1}
    with pytest.raises(InvalidOrder, match=r"^items\[0\]\.quantity: "):
        Order.parse(an_order(items=[item]))


@pytest.mark.parametrize("record", [None, 3, "order", [], [an_order()]])
def test_what_is_no_record_at_all_is_refused(record: object) -> None:
    with pytest.raises(InvalidOrder):
        Order.parse(record)


def test_every_missing_field_is_named_at_once() -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse({})
    named = {error.field for error in caught.value.errors}
    assert named >= {"order_id", "merchant_id", "placed_at", "deliver_by", "items", "total"}


def test_an_order_is_expired_from_its_last_moment_on() -> None:
    order = Order.parse(an_order())
    assert order.expired(order.deliver_by)
    assert not order.expired(order.placed_at)
    assert isinstance(order.deliver_by, datetime)


@pytest.mark.parametrize(
    "order_id", ["...", "a.b", ".a", "a..b", "#1", "a/b", "%", "%25", "1;2", "v1.2/7"]
)
def test_an_id_with_a_dot_is_one_where_it_leads_nowhere_else(order_id: str) -> None:
    assert Order.parse(an_order(order_id)).order_id == order_id


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_pos_calls_an_order_leads_nowhere_else_either(trap: str) -> None:
    assert identifier(trap) is None
