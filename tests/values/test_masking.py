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
