"""An order's fields that a vendor's API has no place for are refused by name, never dropped."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.adapters import lines
from pos_gateway.adapters.lines import request
from pos_gateway.adapters.protocol import Limits
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import VENDORS, Vendor, body, order_of, sku_of

ADDRESS = {"line1": "1 Main St", "city": "Boston", "postal_code": "02215", "country": "US"}
LATER = (datetime.now(UTC) + timedelta(days=2)).isoformat().replace("+00:00", "Z")


@pytest.fixture(params=[name for name in VENDORS if name != "rest"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


def item(**fields: Any) -> dict[str, Any]:
    burger = {"sku": sku_of("burger"), "name": "Burger", "quantity": 2, "unit_price": 850}
    return {"items": [{**burger, **fields}]}


def modifier(**fields: Any) -> dict[str, Any]:
    return item(modifiers=[{"name": "Coke", **fields}])


def is_read(vendor: Vendor, path: str) -> bool:
    """Whether the field has a place at the POS: see ``test_optional_fields.py``."""
    part, _, name = path.rpartition(".")
    of_part = {"": vendor.reads.order, "items[0].modifiers[0]": vendor.reads.modifier}
    return name in of_part.get(part, ())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"Taxes": [{"name": "VAT", "amount": 70}]}, "Taxes (a list)"),
        ({"tax": 70}, "tax (a number)"),
        ({"Delivery-Fee": 300}, "Delivery-Fee (a number)"),
        ({"prep_minutes": 20}, "prep_minutes (a number)"),
        ({"delivery-address": {"line1": "1 Main St"}}, "delivery-address (an object)"),
        ({"delivery": {"zone": 3}}, "no place for delivery"),
        ({"payment": {"card": "1234"}}, "no place for payment"),
        ({"pickup_at": "2026-11-28T20:00:00Z"}, "pickup_at (a text)"),
        ({"ready_at": "2026-11-28T20:00:00Z"}, "ready_at (a text)"),
        ({"special_request": "no nuts"}, "special_request (a text)"),
        ({"kitchen_note": "no nuts"}, "kitchen_note (a text)"),
        ({"SpecialNotes": "no nuts"}, "SpecialNotes (a text)"),
        ({"cooking-instruction": "no nuts"}, "cooking-instruction (a text)"),
        ({"allergen": "nuts"}, "allergen (a text)"),
        ({f"{'x' * 200}_kitchen_note": "no nuts"}, f"{'x' * 60} (a text)"),
        ({"dietary_restrictions": ["vegan"]}, "dietary_restrictions (a list)"),
        ({"scheduled_date": "2026-11-28"}, "scheduled_date (a text)"),
        ({"customer": {"name": "Ada", "address": "1 Main St"}}, "customer.address (a text)"),
        ({"customer": {"name": "Ada", "notes": "no nuts"}}, "customer.notes (a text)"),
        ({"customer": {"name": "Ada", "pickup_note": "blue"}}, "customer.pickup_note (a text)"),
        ({"fulfillment": {"type": "delivery", "address": "x"}}, "fulfillment (an object)"),
        (item(allergens=["nuts"]), "items[0].allergens (a list)"),
        (item(well_done=True), "items[0].well_done (true or false)"),
        (item(spice=0), "items[0].spice (a number)"),
        (modifier(modifiers=[{"name": "no ice"}]), "items[0].modifiers[0].modifiers (a list)"),
        (modifier(notes="no ice"), "items[0].modifiers[0].notes (a text)"),
    ],
)
def test_a_field_that_would_be_dropped_is_refused_by_name(
    vendor: Vendor, fields: dict[str, Any], named: str
) -> None:
    if is_read(vendor, named.partition(" ")[0]):
        return
    send = Scripted()
    outcome = vendor.create(order_of(**fields), send)
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    assert outcome.reason.code == "unsupported_field"
    assert named in outcome.reason.message
    assert send.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"channel": "web", "backend": {"shard": 7}, "feedback_url": "https://x", "tax_id": "DE1"},
        {"internal_note": "vip", "privateComments": ["x"], "notification": "sms", "note_id": 7},
        {f"internal_{'x' * 60}_note": "vip", f"private_{'x' * 200}_comment": "vip"},
        {"requested_at": "2026-11-28T19:00:00Z", "created_at": "2026-11-28T19:00:00Z"},
        {"taxes": [], "fees": None, "tax": 0, "delivery": {}, "fulfillment": {}},
        {"customer": {"name": "Ada", "id": 7, "email": "ada@example.com"}},
        {"fulfillment": "dine-in"},
        item(id=1, metadata={"row": 7}, allergens=[], note=None),
        modifier(modifiers=[], line_id="7"),
    ],
)
def test_a_field_that_says_nothing_to_a_kitchen_rejects_no_order(
    vendor: Vendor, fields: dict[str, Any]
) -> None:
    order = order_of(**fields)
    send = Scripted(*vendor.before(order), vendor.creates(order))
    assert vendor.create(order, send).kind is Kind.ACCEPTED


def test_rest_passes_all_of_an_order_on() -> None:
    fields = modifier(notes="no ice", modifiers=[{"name": "x", "deep": [1, None]}]) | {
        "taxes": [{"name": "VAT", "amount": 70, "rate": "4.3", "city": [None]}],
        "total": 1770,
        "delivery": {"address": {**ADDRESS, "lat": 42, "lon": 1.5}, "zone": {"a": None}},
        "scheduled_for": LATER,
        "customer": {"address": {"line1": "1 Main St"}},
        "fulfillment": {"type": "delivery"},
    }
    order = order_of(**fields)
    vendor, send = VENDORS["rest"], Scripted(reply(201, VENDORS["rest"].accepted("order/1")))
    assert vendor.create(order, send).kind is Kind.ACCEPTED
    came, [sent] = json.loads(order.source), send.requests
    assert {name: body(sent)[name] for name in came if name != "items"} == {
        name: value for name, value in came.items() if name != "items"
    }
    [first] = came["items"]
    assert first.items() <= {**body(sent)["items"][0], "modifiers": first["modifiers"]}.items()
    [[below]] = [each["modifiers"] for each in body(sent)["items"][0]["modifiers"]]
    assert below == {"quantity": 1, "unit_price": 0, "name": "x", "deep": [1, None]}


def test_a_reason_names_five_fields_and_no_unprintable_name() -> None:
    order = Order.parse(
        json.loads(order_of().source) | item(**{f"x{number}\x00": 1 for number in range(9)})
    )
    refused = lines.refusal(order)
    assert refused is not None
    assert refused.reason is not None
    assert refused.reason.message.count("items[0].x") == 5
    assert refused.reason.message.isprintable()
    assert refused.reason.message.endswith("and more")


def test_a_text_that_would_be_cut_is_refused_with_its_path() -> None:
    assert lines.text(" a\r\n\x00b\u202ec ", 5, "notes") == "a b c"
    with pytest.raises(Refused, match=r"notes has 6 characters; the POS takes 5"):
        lines.text("a b cd", 5, "notes")

    def write() -> bytes:
        return lines.text("x" * 9, 8, "items[3].name").encode()

    outcome = request(order_of(), Limits(), write)
    assert isinstance(outcome, Outcome)
    assert outcome.reason is not None
    assert outcome.reason.code == Rejection.TEXT_TOO_LONG


@pytest.mark.parametrize("theirs", [1699, 1701, 17, None, "1700", True])
def test_a_poss_total_that_is_not_ours_is_named_with_both_numbers(theirs: object) -> None:
    reason = lines.mispriced(order_of(), theirs, "EUR")
    assert reason is not None
    assert reason.code == "price_mismatch"
    assert "1700 EUR" in reason.message
    if type(theirs) is int:
        assert f"{theirs} EUR" in reason.message


def test_a_poss_total_that_is_ours_is_no_mismatch() -> None:
    assert lines.mispriced(order_of(), 1700, "eur") is None
    assert lines.mispriced(order_of(), 1700) is None
    assert lines.mispriced(order_of(), 1700, "USD") is not None
