"""Orders for the suite, with the fields of kitchen, courier and cashier."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pos_gateway.domain.order import Order

#: The merchant's id.
MERCHANT_ID = "conformance"
#: Personal data of the guests: in the order, and never in a reason.
GUEST = {"name": "Quirina Zabel", "phone": "+15550172839"}
#: Decimal fractions that binary floats do not hold, in minor units, and a large amount.
PRICES = (1, 29, 57, 1005, 1701, 8_190_239)
#: The end of a long text.
_END = "without sesame"


@dataclass(frozen=True, slots=True)
class Change:
    """An order with a field that most orders lack; the total is unaffected."""

    #: A refusal names one of these.
    names: tuple[str, ...]
    fields: Mapping[str, Any]


def order_of(number: int, placed_at: datetime, item: Mapping[str, Any], **fields: Any) -> Order:
    """An order of two of this item.

    Args:
        number: makes the order id.
        placed_at: two hours before its deadline.
        item: the sku, and all differences from a plain burger.
        fields: further fields, or changed fields.
    """
    burger = {"name": "Burger", "quantity": 2, "unit_price": 850, **item}
    record = {
        "order_id": f"conformance/{number}",
        "merchant_id": MERCHANT_ID,
        "placed_at": placed_at.isoformat(),
        "deliver_by": (placed_at + timedelta(hours=2)).isoformat(),
        "currency": "EUR",
        "items": [burger],
        "total": burger["quantity"] * burger["unit_price"],
        "customer": GUEST,
        **fields,
    }
    return Order.parse_json(json.dumps(record))


def changes(item: Mapping[str, Any], modifier: Mapping[str, Any]) -> Iterator[Change]:
    """One field each.

    Args:
        item: an item of an order.
        modifier: a modifier without a price, as the POS takes it.
    """
    for fields in ({"notes": "well done"}, {"ice": "no ice"}):
        yield Change(tuple(fields), {"items": [{**item, **fields}]})
    plain = {"name": modifier["name"]}
    for each in (plain, modifier, {**modifier, "quantity": 2}):
        yield Change(("modifier", each["name"]), {"items": [{**item, "modifiers": [each]}]})
    odd = {**modifier, "side": "left half"}
    yield Change(("side",), {"items": [{**item, "modifiers": [odd]}]})
    yield Change(("notes",), {"notes": "ring twice"})
    yield Change(("tip",), {"tip": 137})
    yield Change(("name",), {"customer": {**GUEST, "name": "Another Guest"}})
    yield Change(("allergies",), {"allergies": ["peanuts"]})
    yield Change(("fulfillment",), {"fulfillment": {"type": "curbside", "bay": "7"}})
    in_an_hour = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    yield Change(("scheduled_for",), {"scheduled_for": in_an_hour.isoformat()})
    address = {
        "line1": "1 Main St",
        "city": "Boston",
        "postal_code": "02110",
        "region": "MA",
        "country": "US",
    }
    delivery = {"order_type": "delivery", "delivery": {"address": address}}
    yield Change(("delivery", "order_type"), delivery)
    dine_in = {"order_type": "dine_in", "dine_in": {"table": "12"}}
    yield Change(("dine_in", "order_type"), dine_in)


def texts(length: int) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Texts of this length: the path, the text, and the fields of an item or of the order."""
    text = "x" * (length - len(_END) - 1) + f" {_END}"
    yield "items[0].notes", text, {"notes": text}
    yield "items[0].modifiers[0].name", text, {"modifiers": [{"name": text}]}
