"""An order with personal data masked."""

import json

from pos_gateway.domain.masking import MASK, masked
from pos_gateway.domain.order import Order
from tests.orders import an_order

WHO = "Quackenbush"


def test_personal_data_is_masked_at_every_depth() -> None:
    modifier = {"name": "no onions", "sku": "s2", "quantity": 2, "unit_price": 5, "for": WHO}
    item = {"sku": "s", "name": "Soup", "quantity": 1, "unit_price": 450, "notes": WHO}
    order = Order.parse(
        an_order(
            "o-1",
            items=[{**item, "seat": {"name": WHO}, "modifiers": [modifier]}],
            customer={"name": WHO, "phone": WHO, "sku": WHO},
            fulfillment={"name": WHO, "total": WHO},
            notes=WHO,
            channel={"order_id": WHO, "items": [{"sku": WHO}]},
            guests=[{"sku": WHO}, WHO],
            tip=50,
        )
    )
    shown = masked(order)
    assert WHO not in json.dumps(shown)
    assert shown["items"] == [
        {
            **{name: item[name] for name in ("sku", "name", "quantity", "unit_price")},
            "notes": MASK,
            "seat": MASK,
            "modifiers": [{**modifier, "for": MASK}],
        }
    ]
    hidden = ("customer", "fulfillment", "notes", "channel", "guests")
    assert [shown[name] for name in hidden] == [MASK] * len(hidden)
    whole = json.loads(order.to_json())
    plain = {"order_id", "merchant_id", "placed_at", "deliver_by", "currency", "total", "tip"}
    assert shown.keys() == plain | {"items"} | set(hidden)
    assert {name: shown[name] for name in plain} == {name: whole[name] for name in plain}


def test_what_is_on_the_menu_is_shown_and_what_a_person_typed_is_not() -> None:
    """A name with a sku is the menu's. Names of fields are the backend's, their values may be data."""
    typed = {"name": f"write: happy birthday, {WHO}", "quantity": 1, "unit_price": 0}
    item = {"sku": "s", "name": "Cake", "quantity": 1, "unit_price": 450}
    modifiers = [{**typed, "sku": None}, {**typed, "name": "Candles", "sku": "m-2"}]
    shown = masked(Order.parse(an_order("o-1", items=[{**item, "modifiers": modifiers}], vip=WHO)))
    assert WHO not in json.dumps(shown)
    assert shown["items"][0]["name"] == "Cake"
    assert [each["name"] for each in shown["items"][0]["modifiers"]] == [MASK, "Candles"]
    assert shown["vip"] == MASK
