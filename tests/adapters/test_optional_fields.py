"""Optional fields of an order that an adapter reads, and what it refuses of them by name."""

import json
from typing import Any

import pytest

from pos_gateway.adapters import lines
from pos_gateway.adapters.order_type import order_type
from pos_gateway.adapters.rejection import Refused
from pos_gateway.adapters.toast_order import READS
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from tests.adapters.scripted import Scripted
from tests.adapters.vendors import ADDRESS, TOAST, body, guid, order_of, sku_of

DELIVERED = {"order_type": "delivery", "delivery": {"address": ADDRESS}}
BURGER = {"sku": sku_of("burger"), "name": "Burger", "quantity": 2, "unit_price": 850}


def modified(*modifiers: Any, total: int = 0, **fields: Any) -> Order:
    item = {"sku": sku_of("burger"), "name": "Burger", "quantity": 2, "unit_price": 850}
    return order_of(items=[{**item, "modifiers": list(modifiers)}], total=1700 + total, **fields)


def refusal_of(order: Order, **settings: str) -> str:
    """Code and words of our own refusal: nothing is sent."""
    pos = {**TOAST.merchant.pos, **settings}
    merchant = Merchant.parse({**json.loads(TOAST.merchant.model_dump_json()), "pos": pos})
    outcome = TOAST.adapter.submit(order, merchant, Scripted())
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    return f"{outcome.reason.code}: {outcome.reason.message}"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"orderType": "delivery"}, "this POS's API has no place for orderType"),
        ({"prep_minutes": 20}, "this POS's API has no place for prep_minutes (a number)"),
        (
            {"delivery": {"address": {**ADDRESS, "floor": 3}}},
            "this POS's API has no place for delivery.address.floor (a number)",
        ),
        ({**DELIVERED, "order_type": "pickup"}, "delivery: the order's order_type is pickup"),
        ({"fulfillment": "pickup", "dine_in": {"table": "7"}}, "dine_in: the order's fulfillment"),
        (DELIVERED, "order_type is delivery: give the merchant"),
        ({"fulfillment": "Delivery "}, "fulfillment is delivery: give the merchant"),
        ({"order_type": "dine_in"}, "order_type is dine_in: give the merchant"),
        ({"fees": [{"name": "Bag", "amount": 100}], "total": 1800}, "fees: Toast takes those"),
        (
            {
                "items": [{**BURGER, "ref": "1"}],
                "discounts": [{"name": "x", "amount": 100, "items": ["1"]}],
                "total": 1600,
            },
            "discounts[].items: Toast takes a discount",
        ),
        ({"discounts": [{"name": "x", "amount": 50}] * 2, "total": 1600}, "discounts has 2"),
        ({"fees": [{"name": "Bag", "amount": 1, "tax": 7}], "total": 1701}, "this POS's API has "),
    ],
)
def test_a_field_without_a_place_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    assert refusal_of(order_of(**fields)).startswith(f"unsupported_field: {said}")


def test_an_unpaid_order_is_refused_where_the_merchants_orders_are_paid() -> None:
    order = order_of(payment={"status": "unpaid"})
    assert "payment.status is unpaid" in refusal_of(order, payment=guid("payment"))


def test_a_delivery_needs_its_address() -> None:
    option = {"delivery_dining_option": guid("delivery")}
    carried = {"order_type": "delivery", "delivery": {"courier": {}}}
    for fields in (carried, {"fulfillment": "delivery"}):
        assert "no delivery.address" in refusal_of(order_of(**fields), **option)
    courier = {"address": ADDRESS, "courier": {"name": "Bo"}}
    assert "delivery.courier: Toast has no" in refusal_of(order_of(delivery=courier), **option)
    abroad = {"address": {**ADDRESS, "region": "Massachusetts"}}
    assert "delivery.address.region" in refusal_of(order_of(delivery=abroad), **option)


@pytest.mark.parametrize(
    ("modifier", "said"),
    [
        (
            {"name": "x", "sku": sku_of("x"), "modifiers": [{"name": "y", "well_done": 1}]},
            "unsupported_field: this POS's API has no place for"
            " items[0].modifiers[0].modifiers[0].well_done (a number)",
        ),
        (
            {"name": "1", "modifiers": [{"name": "2", "modifiers": [{"name": "3"}]}]},
            "invalid_order: the modifier '1' is not in the merchant's catalog",
        ),
        (
            {"name": "x", "sku": sku_of("x"), "modifiers": [{"name": "nuts", "unit_price": 10}]},
            "invalid_order: the modifier 'nuts' is not in the merchant's catalog",
        ),
    ],
)
def test_a_modifier_without_a_place_is_refused_by_name(modifier: dict[str, Any], said: str) -> None:
    assert refusal_of(modified(modifier)).startswith(said)


def test_words_without_number_are_refused_before_they_are_written() -> None:
    """Each of six thousand modifiers would have two hundred notes."""
    notes = [{"name": "x" * 900}] * 200
    modifier = {"name": "x", "sku": sku_of("x"), "quantity": 6000, "modifiers": notes}
    assert "at most 1048576 are sent" in refusal_of(modified(modifier))


def test_the_price_has_the_modifiers_of_modifiers() -> None:
    below = [{"name": "deep", "sku": sku_of("d"), "unit_price": 5, "quantity": 3}]
    modifier = {"name": "x", "sku": sku_of("x"), "unit_price": 100, "quantity": 2}
    order = modified({**modifier, "modifiers": below}, total=2 * 2 * (100 + 15))
    assert lines.refusal(order, READS) is None
    send = Scripted()
    with pytest.raises(IndexError):  # the prices are requested
        TOAST.adapter.submit(order, TOAST.merchant, send)
    [selection] = body(send.requests[0])["checks"][0]["selections"]
    first, second = selection["modifiers"]
    assert first == second
    assert [each["item"]["guid"] for each in first["modifiers"]] == [guid("d")] * 3


def test_what_is_empty_is_absent() -> None:
    empty = {"delivery": {}, "taxes": [], "display_id": "", "scheduled_for": None, "dine_in": {}}
    assert order_type(order_of(**empty)) == (None, "fulfillment")
    assert lines.refusal(order_of(**empty)) is None
    refused = lines.refusal(order_of(utensils=False, delivery={"contactless": False}))
    assert refused is not None
    assert refused.reason is not None
    assert "delivery (an object), utensils (true or false)" in refused.reason.message


@pytest.mark.parametrize(
    ("fields", "type_"),
    [
        ({}, None),
        ({"fulfillment": "takeaway"}, None),
        ({"fulfillment": "Dine-in 7"}, "dine_in"),
        ({"fulfillment": "curbside pickup"}, "curbside"),
        ({"fulfillment": "delivery", "order_type": "pickup"}, "pickup"),
        ({"dine_in": {"table": "7"}}, "dine_in"),
        ({"delivery": {"instructions": "ring"}}, "delivery"),
        ({"delivery": {"instructions": "ring"}, "fulfillment": "delivery"}, "delivery"),
    ],
)
def test_an_orders_type_is_its_own_field_then_its_fulfillment_then_the_way(
    fields: dict[str, Any], type_: str | None
) -> None:
    assert order_type(order_of(**fields))[0] == type_


def test_a_discount_is_spread_over_its_items_to_the_minor_unit() -> None:
    items = [
        {**BURGER, "ref": ref, "unit_price": price, "quantity": quantity}
        for ref, price, quantity in (("a", 100, 3), ("b", 50, 1), ("c", 7, 1))
    ]

    def order(*discounts: Any, total: int) -> Order:
        return order_of(items=items, discounts=list(discounts), total=total)

    of_two = {"name": "x", "amount": 310, "items": ["a", "b"]}
    whole = {"name": "y", "amount": 5}
    platforms = {"name": "z", "amount": 50, "items": ["a"], "funded_by": "platform"}
    found = lines.shares(order(of_two, whole, platforms, total=42))
    assert found == [[(0, 300), (1, 10)], [], []]
    again = {"name": "w", "amount": 41, "items": ["b"]}
    with pytest.raises(Refused, match=r"discounts\[1\].amount is 1 more than its items come to"):
        lines.shares(order(of_two, again, total=6))
