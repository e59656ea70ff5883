"""Fields beside the schema's: checked in one form where an adapter reads them, refused by name otherwise."""

import json
from typing import Any

import pytest

from pos_gateway.adapters import lines
from pos_gateway.adapters.further_fields import EVERYTHING, Reads, deepened, further_fields
from pos_gateway.adapters.rejection import Refused
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from tests.adapters.scripted import Scripted
from tests.adapters.vendors import TOAST, body, guid, order_of, sku_of

ADDRESS = {"line1": "1 Main St", "city": "Boston", "region": "MA", "postal_code": "02215"}
DELIVERED = {"order_type": "delivery", "delivery": {"address": ADDRESS}}
NUTS = {"name": "nuts", "unit_price": 10}


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
        ({"order_type": "drone"}, "invalid_order: order_type input should be 'pickup'"),
        ({"orderType": "delivery"}, "unsupported_field: this POS's API has no place for orderType"),
        ({"scheduled_for": "soon"}, "invalid_order: scheduled_for should be a time as RFC 3339"),
        (
            {"scheduled_for": "2020-01-01T00:00:00Z"},
            "invalid_order: scheduled_for is before placed_at",
        ),
        ({"delivery": "1 Main St"}, "invalid_order: delivery should be an object"),
        ({"delivery": {"address": {"city": "x"}}}, "invalid_order: delivery.address.line1 is requ"),
        (
            {"delivery": {"address": ADDRESS, "courier": {"name": "Bo"}}},
            "unsupported_field: delivery.courier is not a field",
        ),
        ({**DELIVERED, "order_type": "pickup"}, "unsupported_field: delivery: the order's order_t"),
        ({"fulfillment": "pickup", "dine_in": {"table": "7"}}, "unsupported_field: dine_in: the"),
        (
            {"order_type": "delivery"},
            "unsupported_field: order_type is delivery: give the merchant",
        ),
        ({"fulfillment": "Delivery "}, "unsupported_field: fulfillment is delivery: give the merc"),
        ({"order_type": "dine_in"}, "unsupported_field: order_type is dine_in: give the merchant"),
        ({"dine_in": {"guests": 0}}, "invalid_order: dine_in.guests input should be greater"),
        (
            {"taxes": [{"amount": 70, "remitted_by": "platform"}]},
            "invalid_order: taxes[0].remitted",
        ),
        (
            {"taxes": [{"amount": 1.5}]},
            "invalid_order: taxes[0].amount input should be a valid int",
        ),
        ({"fees": [{"amount": 1}] * 11}, "invalid_order: fees tuple should have at most 10"),
        ({"fees": [{"amount": 100}], "total": 1800}, "unsupported_field: fees: Toast takes those"),
        ({"fees": [{"amount": 100}]}, "price_mismatch: the items come to 1700, with fees, taxes"),
        (
            {"discounts": [{"amount": 100, "items": ["1"]}]},
            "unsupported_field: discounts[0].items is not a field",
        ),
        ({"discounts": [{"amount": 50}] * 2, "total": 1600}, "unsupported_field: discounts has 2"),
        ({"delivery": dict.fromkeys(map(str, range(31)), 1)}, "invalid_order: delivery has 31 fi"),
    ],
)
def test_a_field_of_another_form_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    assert refusal_of(order_of(**fields)).startswith(said)


def test_a_delivery_needs_its_address() -> None:
    option = {"delivery_dining_option": guid("delivery")}
    for fields in ({"order_type": "delivery"}, {"fulfillment": "delivery"}):
        assert "no delivery.address" in refusal_of(order_of(**fields), **option)
    abroad = {"address": {**ADDRESS, "region": "Massachusetts"}}
    assert "delivery.address.region" in refusal_of(order_of(delivery=abroad), **option)


@pytest.mark.parametrize(
    ("modifier", "said"),
    [
        ({"name": "x", "notes": 7}, "invalid_order: items[0].modifiers[0].notes input should"),
        ({"name": "x", "modifiers": "ice"}, "invalid_order: items[0].modifiers[0].modifiers shoul"),
        (
            {"name": "x", "modifiers": [{"name": "y", "well_done": 1}]},
            "unsupported_field: items[0].modifiers[0].modifiers[0].well_done is not a field",
        ),
        (
            {"name": "1", "modifiers": [{"name": "2", "modifiers": [{"name": "3"}]}]},
            "invalid_order: the modifier '1' is not in the merchant's catalog",
        ),
        (
            {
                "name": "1",
                "modifiers": [{"name": "2", "modifiers": [NUTS | {"modifiers": [NUTS]}]}],
            },
            "invalid_order: items[0].modifiers[0].modifiers has 3 levels; 2 are allowed",
        ),
        (
            {"name": "x", "sku": sku_of("x"), "modifiers": [NUTS]},
            "invalid_order: the modifier 'nuts' is not in the merchant's catalog",
        ),
    ],
)
def test_a_modifier_of_another_form_is_refused_by_name(modifier: dict[str, Any], said: str) -> None:
    assert refusal_of(modified(modifier)).startswith(said)


def test_modifiers_of_modifiers_are_as_few_as_modifiers() -> None:
    many = [{"name": "x", "sku": sku_of("x"), "modifiers": [{"name": "y"}] * 240}] * 30
    assert refusal_of(modified(*many)).startswith(
        "invalid_order: items: 5000 modifiers are allowed"
    )


def test_words_without_number_are_refused_before_they_are_written() -> None:
    """Each of six thousand modifiers would have two hundred notes."""
    notes = [{"name": "x" * 900}] * 200
    modifier = {"name": "x", "sku": sku_of("x"), "quantity": 6000, "modifiers": notes}
    assert "at most 1048576 are sent" in refusal_of(modified(modifier))


def test_the_price_has_the_modifiers_of_modifiers() -> None:
    below = [{"name": "deep", "sku": sku_of("d"), "unit_price": 5, "quantity": 3}]
    modifier = {"name": "x", "sku": sku_of("x"), "unit_price": 100, "quantity": 2}
    order = modified({**modifier, "modifiers": below}, total=2 * 2 * (100 + 15))
    assert lines.refusal(deepened(order, EVERYTHING), EVERYTHING) is None
    send = Scripted()
    with pytest.raises(IndexError):  # the prices are requested
        TOAST.adapter.submit(order, TOAST.merchant, send)
    [selection] = body(send.requests[0])["checks"][0]["selections"]
    first, second = selection["modifiers"]
    assert first == second
    assert [each["item"]["guid"] for each in first["modifiers"]] == [guid("d")] * 3


def test_what_is_empty_is_absent_and_an_adapter_reads_what_it_says() -> None:
    empty = {"delivery": {}, "taxes": [], "order_type": "", "scheduled_for": None, "dine_in": 0}
    assert further_fields(order_of(**empty), EVERYTHING) == further_fields(order_of(), EVERYTHING)
    own = {"table": "7", "guests": None}
    assert further_fields(order_of(dine_in=own), EVERYTHING).dine_in is not None
    order = order_of(order_type="drone", taxes=[{"amount": 1}])
    assert further_fields(order, Reads(frozenset({"taxes"}))).besides == 1
    with pytest.raises(Refused):
        further_fields(order, EVERYTHING)


def test_inclusive_taxes_are_in_the_prices() -> None:
    charges = {"taxes": [{"amount": 70}, {"amount": 99, "inclusive": True}]}
    charges |= {"fees": [{"amount": 300}], "discounts": [{"amount": 100}]}
    assert further_fields(order_of(**charges), EVERYTHING).besides == 270
