"""What is true at a strict Square when the adapter says ``accepted``, ``rejected`` or ``cancelled``.

The order's steps are taken by a walker, with facts that outlive attempts. An expected failure is a fault of
today's adapter, numbered as in the list that the work follows.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pos_gateway.adapters.steps import steps_of
from pos_gateway.adapters.testing.walk import Walker
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome
from testkit.vendors.facts import OrderFacts
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.square import simulator
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.callers import SQUARE as CALLER
from tests.adapters.callers import URL
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import SQUARE, order_of

Json = dict[str, Any]
RECIPIENT = {"display_name": "Ada", "phone_number": "+12125550123"}
ADA = {"name": "Ada", "phone": "+12125550123"}
PICKUP: Json = {"fulfillment": "pickup", "customer": ADA}
BURGER: Json = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
FREE: Json = {"items": [{**BURGER, "unit_price": 0}], "total": 0}
ADDRESS: Json = {
    "line1": "1 Main St",
    "line2": "door 3",
    "city": "Boston",
    "region": "MA",
    "postal_code": "02215",
    "country": "US",
}
COURIER = {"name": "Bo's Bikes", "phone": "+12125550199", "reference": "C-7"}
DELIVERY: Json = {
    "order_type": "delivery",
    "delivery": {"address": ADDRESS, "instructions": "ring twice", "contactless": True},
}
LATER = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
NEW_YORK = ZoneInfo("America/New_York")
#: The items 1700, 20 off the first, 80 off the order, 300 and 100 more, one of them taxed; 10 % of 1700.
CHARGED: Json = {
    "items": [{**BURGER, "ref": "1"}],
    "discounts": [
        {"name": "Item off", "amount": 20, "items": ["1"]},
        {"name": "Order off", "amount": 80},
        {"name": "Platform's", "amount": 500, "funded_by": "platform"},
    ],
    "fees": [
        {"kind": "delivery", "name": "Courier", "amount": 300, "taxable": False},
        {"kind": "bag", "name": "Bag", "amount": 100, "taxable": True},
    ],
    "taxes": [
        {"name": "City tax", "amount": 170, "rate": "10"},
        {"name": "State tax", "amount": 99, "remitted_by": "platform"},
    ],
    "total": 2170,
}
NESTED: Json = {
    "items": [
        {
            **BURGER,
            "modifiers": [
                {
                    "name": "Coke",
                    "quantity": 2,
                    "unit_price": 10,
                    "notes": "cold, please",
                    "modifiers": [
                        {"name": "no ice"},
                        {
                            "name": "lime",
                            "quantity": 3,
                            "unit_price": 4,
                            "modifiers": [{"name": "peeled", "unit_price": 1}],
                        },
                    ],
                },
                {"name": "Ketchup"},
            ],
        }
    ],
    "total": 1800,
}


class Shop(OrderFacts):
    """A seller at Square, whose orders come from the adapter."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.square = simulator(lambda: self.now, currency="EUR")
        super().__init__(self.square)
        self.way = Way(self.square)
        token = self.square.access.grant()["access_token"]
        self.send = VendorSend(self.way, {"Authorization": f"Bearer {token}"})
        self.pos = {"location_id": "L1"}

    def walker(self, order: Order) -> Walker:
        merchant = SQUARE.merchant.model_copy(update={"pos": self.pos})
        assert SQUARE.adapter.check(merchant) == []
        return Walker(SQUARE.adapter, order, merchant, self.send)

    def submit(self, order: Order) -> Outcome:
        return self.walker(order).forward()


@pytest.fixture
def shop() -> Shop:
    return Shop()


def assert_kitchen_has(shop: Shop, order: Order) -> None:
    """One ticket, printed once, paid as agreed, with nothing due."""
    fact = shop.fact
    assert (fact["shown"], fact["prints"], fact["is_paid"]) == (True, 1, True)
    assert (fact["paid"], fact["payments"]) == (order.total, 1 if order.total else 0)
    found = fact["order"]
    assert found["state"] == "OPEN"
    assert found["net_amount_due_money"]["amount"] == 0
    assert found["total_tip_money"]["amount"] == (order.tip or 0)
    assert [each["state"] for each in found["fulfillments"]] == ["PROPOSED"]


def assert_nothing_stands(shop: Shop) -> None:
    """No order, or cancelled ones, of which nothing was paid or printed."""
    for fact in shop.facts:
        assert fact["cancelled"]
        assert (fact["shown"], fact["prints"], fact["paid"] - fact["refunded"]) == (False, 0, 0)


def assert_stopped_and_refunded(shop: Shop) -> None:
    """The kitchen has nothing to make, and no money is kept."""
    fact = shop.fact
    states = {each["state"] for each in fact["order"]["fulfillments"]}
    assert states <= {"CANCELED", "FAILED"}
    assert fact["refunded"] == fact["paid"] + fact["tips"]


def message(outcome: Outcome) -> str:
    return outcome.reason.message if outcome.reason else ""


# Accepted


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(PICKUP, id="pickup"),
        pytest.param({}, id="no type, no customer"),
        pytest.param({"customer": ADA}, id="no type"),
        pytest.param({"customer": {"phone": "ask Ada"}}, id="no name, no number"),
        pytest.param({**PICKUP, "display_id": "A 17"}, id="display id"),
        pytest.param({**PICKUP, "fulfillment": "delivery"}, id="delivery"),
        pytest.param({**PICKUP, "fulfillment": "dine_in"}, id="dine-in"),
        pytest.param({**PICKUP, "tip": 200}, id="tip"),
        pytest.param({**PICKUP, "items": [{**BURGER, "unit_price": 0}], "total": 0}, id="total 0"),
        pytest.param(
            {
                **PICKUP,
                "items": [
                    {
                        **BURGER,
                        "modifiers": [{"name": f"m{n}", "unit_price": n} for n in range(60)],
                    }
                ],
                "total": 1700 + 2 * sum(range(60)),
            },
            id="60 modifiers",
        ),
        pytest.param({**PICKUP, "notes": "n" * 590 + "allergy: nuts"}, id="long note"),
        pytest.param({**DELIVERY, "customer": ADA}, id="delivery to an address"),
        pytest.param({"order_type": "dine_in", "dine_in": {"table": "7"}}, id="at a table"),
        pytest.param({"order_type": "curbside", "customer": ADA}, id="curbside"),
        pytest.param({"scheduled_for": LATER.isoformat(), "prep_minutes": 20}, id="for later"),
        pytest.param({**CHARGED, "tip": 200}, id="discounts, fees, taxes and a tip"),
        pytest.param(NESTED, id="nested modifiers"),
    ],
)
def test_an_accepted_order_is_a_paid_ticket(shop: Shop, fields: Mapping[str, Any]) -> None:
    """1."""
    shop.pos |= {"customer_phone": "+33123456789"}
    order = order_of(**fields)
    walker = shop.walker(order)
    outcome = walker.forward()
    assert (outcome.kind, outcome.external_id) == (Kind.ACCEPTED, shop.fact["order"]["id"])
    assert_kitchen_has(shop, order)
    assert walker.look_up() == (outcome if order.total else None)  # 0 does not show that it is paid
    assert shop.square.refused == []


@pytest.mark.parametrize(
    ("fields", "pos", "type_", "details"),
    [
        (PICKUP, {}, "PICKUP", {"schedule_type": "ASAP", "recipient": RECIPIENT}),
        ({"customer": ADA}, {}, "PICKUP", {"schedule_type": "ASAP", "recipient": RECIPIENT}),
        (
            {"customer": ADA, "fulfillment": "delivery", "notes": "no nuts"},
            {"prep_minutes": "20"},
            "PICKUP",
            {
                "schedule_type": "ASAP",
                "prep_time_duration": "PT20M",
                "recipient": RECIPIENT,
                "note": "delivery no nuts",
            },
        ),
        (
            {"customer": ADA, "fulfillment": "Delivery", "notes": "no nuts"},
            {"delivery_as": "DELIVERY", "prep_minutes": "20"},
            "DELIVERY",
            {
                "schedule_type": "ASAP",
                "prep_time_duration": "PT20M",
                "managed_delivery": True,
                "recipient": RECIPIENT,
                "note": "no nuts",
            },
        ),
        (
            {"customer": ADA, "fulfillment": "dine-in"},
            {"delivery_as": "DELIVERY", "prep_minutes": "20", "dine_in_as": "IN_STORE"},
            "IN_STORE",
            {"recipient": RECIPIENT},
        ),
        (
            {"customer": ADA, "fulfillment": "table 7"},
            {"dine_in_as": "IN_STORE"},
            "PICKUP",
            {"schedule_type": "ASAP", "recipient": RECIPIENT, "note": "table 7"},
        ),
        (
            {"customer": ADA, "fulfillment": "Dine-in 7"},
            {"dine_in_as": "IN_STORE"},
            "IN_STORE",
            {"recipient": RECIPIENT, "note": "Dine-in 7"},
        ),
        (
            {"customer": ADA, "fulfillment": "pickup 18:30"},
            {},
            "PICKUP",
            {"schedule_type": "ASAP", "recipient": RECIPIENT, "note": "pickup 18:30"},
        ),
        (
            {"customer": {"phone": "ask Ada"}},
            {"customer_phone": "+33123456789"},
            "PICKUP",
            {
                "schedule_type": "ASAP",
                "recipient": {"display_name": "order/1", "phone_number": "+33123456789"},
                "note": "ask Ada",
            },
        ),
    ],
)
def test_the_only_fulfillment_is_a_pickup_or_what_the_merchants_settings_say(
    shop: Shop, fields: Json, pos: dict[str, str], type_: str, details: Json
) -> None:
    shop.pos |= pos
    shop.square.knobs.is_partner = True
    assert shop.submit(order_of(**fields)).kind is Kind.ACCEPTED
    [found] = shop.fact["order"]["fulfillments"]
    assert found["type"] == type_
    assert found[f"{type_.lower()}_details"] == details
    assert shop.fact["shown"]


def test_the_payment_is_the_orders_and_its_tip_the_staffs(shop: Shop) -> None:
    shop.pos |= {"payment_source": "Courier"}
    order = order_of(**PICKUP, tip=200)
    shop.submit(order)
    [payment] = shop.square.seller.payments.values()
    expected = {
        "source_type": "EXTERNAL",
        "external_details": {"type": "EXTERNAL", "source": "Courier", "source_id": "order/1"},
        "order_id": shop.fact["order"]["id"],
        "reference_id": "order/1",
        "location_id": "L1",
        "amount_money": {"amount": 1700, "currency": "EUR"},
        "tip_money": {"amount": 200, "currency": "EUR"},
    }
    assert {name: payment[name] for name in expected} == expected


def test_a_tip_without_a_payment_is_refused_by_name(shop: Shop) -> None:
    free = {"items": [{**BURGER, "unit_price": 0}], "total": 0, "tip": 200}
    outcome = shop.submit(order_of(**PICKUP, **free))
    assert outcome.kind is Kind.REJECTED
    assert message(outcome).startswith("tip: ")
    assert shop.send.requests == []


def test_a_display_id_is_the_tickets_name(shop: Shop) -> None:
    assert shop.submit(order_of(**PICKUP, display_id="A 17")).kind is Kind.ACCEPTED
    assert shop.fact["order"]["ticket_name"] == "A 17"


def test_a_note_is_whole_at_the_pos(shop: Shop) -> None:
    order = order_of(**PICKUP, notes="n" * 590 + "allergy: nuts")
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert shop.fact["order"]["line_items"][0]["note"] == order.notes


@pytest.mark.parametrize(
    ("knobs", "item", "total"),
    [
        pytest.param({"shop_tax": "9", "adds_tax_unasked": True}, BURGER, 1700, id="tax"),
        pytest.param(
            {"counts_modifiers": False},
            {**BURGER, "modifiers": [{"name": "cheese", "quantity": 2, "unit_price": 50}]},
            1900,
            id="modifiers' quantities",
        ),
    ],
)
def test_an_order_at_another_price_is_rejected_and_nothing_stands(
    shop: Shop, knobs: Json, item: Json, total: int
) -> None:
    """5."""
    for name, value in knobs.items():
        setattr(shop.square.knobs, name, value)
    outcome = shop.submit(order_of(**PICKUP, items=[item], total=total))
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    assert outcome.reason.code == "price_mismatch"
    theirs = shop.fact["order"]["total_money"]["amount"]
    assert str(theirs) in message(outcome)
    assert str(total) in message(outcome)
    assert_nothing_stands(shop)


@pytest.mark.parametrize(
    ("field", "text", "fields"),
    [
        ("taxes", "City tax", CHARGED),
        ("fees", "Bag", CHARGED),
        ("discounts", "Item off", CHARGED),
        ("delivery", "1 Main St, door 3, 02215 Boston MA, US ring twice contactless", DELIVERY),
        ("dine_in", "table 7 2 guests", {"dine_in": {"table": "7", "guests": 2}}),
        ("prep_minutes", "PT0M", {"prep_minutes": 0}),
        ("utensils", "no utensils / hot", {"utensils": False, "notes": "hot"}),
        ("customer.first_name", "Ada L.", {"customer": {"first_name": "Ada", "last_name": "L."}}),
        ("items[0].modifiers[0].modifiers", "no ice", NESTED),
        ("items[0].modifiers[0].notes", "Coke: cold, please", NESTED),
        ("customer.email", "ada@example.com", {"customer": {**ADA, "email": "ada@example.com"}}),
    ],
)
def test_no_field_is_dropped_without_a_word(
    shop: Shop, field: str, text: str, fields: Json
) -> None:
    """6."""
    shop.square.knobs.needs_recipient = False
    order = order_of(**fields)
    assert shop.submit(order).kind is Kind.ACCEPTED, field
    assert text in json.dumps(shop.fact["order"])
    assert_kitchen_has(shop, order)


AT_SQUARE = {
    "address_line_1": "1 Main St",
    "address_line_2": "door 3",
    "locality": "Boston",
    "administrative_district_level_1": "MA",
    "postal_code": "02215",
    "country": "US",
}


@pytest.mark.parametrize(
    ("fields", "pos", "type_", "details"),
    [
        (
            DELIVERY,
            {"delivery_as": "DELIVERY", "prep_minutes": "20"},
            "DELIVERY",
            {
                "schedule_type": "ASAP",
                "prep_time_duration": "PT20M",
                "dropoff_notes": "ring twice",
                "is_no_contact_delivery": True,
            },
        ),
        (
            {**DELIVERY, "delivery": {"courier": COURIER}, "scheduled_for": LATER.isoformat()},
            {"delivery_as": "DELIVERY", "prep_minutes": "20"},
            "DELIVERY",
            {
                "schedule_type": "SCHEDULED",
                "deliver_at": LATER.isoformat(),
                "prep_time_duration": "PT20M",
                "managed_delivery": True,
                "courier_provider_name": "Bo's Bikes",
                "courier_support_phone_number": "+12125550199",
                "external_delivery_id": "C-7",
            },
        ),
        (
            {**DELIVERY, "delivery": {"courier": COURIER}, "fulfillment": "by bike"},
            {},
            "PICKUP",
            {
                "schedule_type": "ASAP",
                "note": "delivery by bike courier Bo's Bikes +12125550199 C-7",
            },
        ),
        (
            {"scheduled_for": LATER.isoformat(), "prep_minutes": 15},
            {"prep_minutes": "20"},
            "PICKUP",
            {
                "schedule_type": "SCHEDULED",
                "pickup_at": LATER.isoformat(),
                "prep_time_duration": "PT15M",
            },
        ),
        (
            {"order_type": "curbside", "fulfillment": "curbside"},
            {},
            "PICKUP",
            {"schedule_type": "ASAP", "is_curbside_pickup": True},
        ),
        (
            {"dine_in": {"table": "7"}, "scheduled_for": LATER.isoformat()},
            {"dine_in_as": "IN_STORE"},
            "IN_STORE",
            {"note": f"for {LATER:%Y-%m-%d %H:%M} +0000 table 7"},
        ),
        (
            {"dine_in": {"table": "7"}, "scheduled_for": LATER.isoformat()},
            {"dine_in_as": "IN_STORE", "time_zone": "America/New_York"},
            "IN_STORE",
            {"note": f"for {LATER.astimezone(NEW_YORK):%Y-%m-%d %H:%M} table 7"},
        ),
        (
            {"order_type": "dine_in", "dine_in": {"table": "7"}},
            {},
            "PICKUP",
            {"schedule_type": "ASAP", "note": "dine_in table 7"},
        ),
    ],
)
def test_the_fulfillment_has_the_way_to_the_guest(
    shop: Shop, fields: Json, pos: dict[str, str], type_: str, details: Json
) -> None:
    shop.pos |= pos
    shop.square.knobs.is_partner = True
    assert shop.submit(order_of(customer=ADA, **fields)).kind is Kind.ACCEPTED
    [found] = shop.fact["order"]["fulfillments"]
    assert found["type"] == type_
    sent = dict(found[f"{type_.lower()}_details"])
    recipient = sent.pop("recipient")
    assert sent == details
    has_address = type_ == "DELIVERY" and "address" in fields["delivery"]
    assert recipient == {**RECIPIENT, **({"address": AT_SQUARE} if has_address else {})}
    assert shop.fact["shown"]


def test_charges_are_squares_own_of_the_order_or_of_its_lines(shop: Shop) -> None:
    assert shop.submit(order_of(**PICKUP, **CHARGED)).kind is Kind.ACCEPTED
    found = shop.fact["order"]
    money = {name: found[f"total_{name}_money"]["amount"] for name in ("discount", "tax")}
    assert money == {"discount": 100, "tax": 170}
    assert found["total_service_charge_money"]["amount"] == 400
    assert [each["name"] for each in found["taxes"]] == ["City tax"]
    assert [(each["name"], each["scope"]) for each in found["discounts"]] == [
        ("Item off", "LINE_ITEM"),
        ("Order off", "ORDER"),
    ]


def test_nested_modifiers_name_their_parents_and_count_for_the_line(shop: Shop) -> None:
    assert shop.submit(order_of(**PICKUP, **NESTED)).kind is Kind.ACCEPTED
    [line] = shop.fact["order"]["line_items"]
    names = {each["uid"]: each["name"] for each in line["modifiers"]}
    assert [
        (names.get(each.get("parent_modifier_uid")), each["name"], each["quantity"])
        for each in line["modifiers"]
    ] == [
        (None, "Coke", "2"),
        ("Coke", "no ice", "2"),
        ("Coke", "lime", "6"),
        ("lime", "peeled", "6"),
        (None, "Ketchup", "1"),
    ]


def test_a_negative_price_at_any_level_is_in_the_items(shop: Shop) -> None:
    below = {"name": "Coke", "unit_price": 50, "modifiers": [{"name": "small", "unit_price": -20}]}
    items = [{**BURGER, "modifiers": [below]}]
    assert shop.submit(order_of(**PICKUP, items=items, total=1760)).kind is Kind.ACCEPTED
    [line] = shop.fact["order"]["line_items"]
    assert line["base_price_money"]["amount"] == 880


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"taxes": [{"name": "City tax", "amount": 70}], "total": 1770},
            "taxes[0] has no rate: Square computes taxes by their rates",
        ),
        ({"payment": {"status": "unpaid"}}, "payment.status is unpaid"),
        ({"dine_in": {"table": "7"}, "fulfillment": "pickup"}, "dine_in: the order's fulfillment"),
        (
            {**DELIVERY, "delivery": {"address": ADDRESS, "instructions": "x" * 490}},
            "fulfillment, customer.phone, delivery and dine_in has 5",
        ),
        (
            {
                "items": [{**BURGER, "ref": "1"}],
                "fees": [{"name": "Fee", "amount": 100}],
                "discounts": [{"name": "x", "amount": 1701, "items": ["1"]}],
                "total": 99,
            },
            "discounts[0].amount is 1 more than its items come to",
        ),
    ],
)
def test_a_part_that_square_has_no_place_for_is_refused_by_name(
    shop: Shop, fields: Json, said: str
) -> None:
    outcome = shop.submit(order_of(customer=ADA, **fields))
    assert outcome.kind is Kind.REJECTED
    assert message(outcome).startswith(said)
    assert shop.send.requests == []


def test_a_tax_that_square_rounds_otherwise_is_a_mismatch_and_nothing_stands(shop: Shop) -> None:
    taxes = [{"name": "City tax", "amount": 152, "rate": "8.875"}]
    outcome = shop.submit(order_of(**PICKUP, taxes=taxes, total=1852))
    assert outcome.kind is Kind.REJECTED
    assert "1851" in message(outcome)
    assert_nothing_stands(shop)


def test_the_payment_says_how_the_guest_has_paid(shop: Shop) -> None:
    payment = {"status": "paid", "method": "card", "source": "Shop", "reference": "P-1"}
    assert shop.submit(order_of(**PICKUP, payment=payment)).kind is Kind.ACCEPTED
    [found] = shop.square.seller.payments.values()
    details = {"type": "CARD", "source": "Shop", "source_id": "order/1"}
    assert (found["external_details"], found["reference_id"]) == (details, "P-1")


def test_the_version_is_one_with_nested_modifiers_and_dine_in(shop: Shop) -> None:
    """18."""
    shop.submit(order_of(**PICKUP))
    assert shop.send.requests[0].headers["Square-Version"] >= "2026-09-16"


def test_each_request_names_the_version(shop: Shop) -> None:
    """18."""
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    walker.cancel()
    assert {each.method for each in shop.send.requests} == {"POST", "GET", "PUT"}
    assert len({each.headers.get("Square-Version") for each in shop.send.requests} - {None}) == 1


@pytest.mark.parametrize("phone", [None, "ask Ada", "(212) 555-0123"])
def test_a_pickup_has_its_recipients_phone_or_is_refused_by_name(
    shop: Shop, phone: str | None
) -> None:
    """19."""
    outcome = shop.submit(order_of(fulfillment="pickup", customer={"name": "Ada", "phone": phone}))
    if outcome.kind is Kind.REJECTED:
        assert "customer.phone" in message(outcome)
        assert_nothing_stands(shop)
    else:
        [found] = shop.fact["order"]["fulfillments"]
        assert found["pickup_details"]["recipient"]["phone_number"]


# Cancelled, by us or by the shop


@pytest.mark.parametrize("own_work", [False, True])
@pytest.mark.parametrize("fields", [{}, {"tip": 200}, FREE], ids=["total", "tip", "total 0"])
def test_a_cancelled_order_is_stopped_and_refunded(
    shop: Shop, fields: Json, own_work: bool
) -> None:
    """17: a paid order cannot be cancelled."""
    walker = shop.walker(order_of(**PICKUP, **fields))
    walker.forward()
    shop.square.knobs.own_work = own_work
    for _ in range(2):
        assert walker.cancel().kind is Kind.CANCELLED
        assert_stopped_and_refunded(shop)
    assert len(shop.square.seller.refunds) == bool(shop.fact["payments"])


def test_an_unpaid_order_is_cancelled(shop: Shop) -> None:
    order = order_of(**PICKUP)
    made = SQUARE.create(order, shop.send)
    assert made.kind is Kind.ACCEPTED
    for _ in range(2):
        undone = steps_of(SQUARE.adapter)[0].undo
        assert callable(undone)
        outcome = undone(order, SQUARE.merchant, made.facts or {}, shop.send)
        assert outcome.kind is Kind.CANCELLED
        assert shop.fact["order"]["state"] == "CANCELED"


def test_an_order_that_the_guest_has_is_not_cancelled(shop: Shop) -> None:
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    shop.square.acts["complete"](shop.fact["order"]["id"])
    outcome = walker.cancel()
    assert outcome.kind is Kind.REJECTED
    assert "refund it at Square" in message(outcome)
    assert shop.fact["refunded"] == 0


def test_an_order_that_the_shop_took_money_for_is_not_cancelled(shop: Shop) -> None:
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    [payment] = shop.square.seller.payments.values()
    payment["source_type"] = "CARD"
    assert walker.cancel().kind is Kind.REJECTED
    assert (shop.fact["cancelled"], shop.fact["refunded"]) == (False, 0)


def test_a_cancellation_says_that_its_refund_is_refused(shop: Shop) -> None:
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    [payment] = shop.square.seller.payments.values()
    refuse(shop, "/v2/refunds", 400, "PAYMENT_NOT_REFUNDABLE")
    outcome = walker.cancel()
    assert (outcome.kind, shop.fact["cancelled"]) == (Kind.CANCELLED, True)
    assert outcome.reason is not None
    assert outcome.reason.code == "not_refunded"
    assert payment["id"] in message(outcome)


@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_refund_that_fails_is_recorded_later(shop: Shop, status: int) -> None:
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    refuse(shop, "/v2/refunds", status, "X")
    assert walker.cancel().kind is Kind.IN_DOUBT
    shop.way.vendor = shop.square
    assert walker.cancel().kind is Kind.CANCELLED
    assert_stopped_and_refunded(shop)


@pytest.mark.parametrize("act", ["reject", "cancel"])
def test_an_order_that_the_shop_gives_up_is_heard_and_found(shop: Shop, act: str) -> None:
    """7."""
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    heard = [each for each in steps(shop, act) if each is Kind.CANCELLED]
    assert heard
    found = walker.look_up()
    assert found is not None
    assert found.kind is Kind.REJECTED  # with its payment
    assert walker.cancel().kind is Kind.CANCELLED
    assert_stopped_and_refunded(shop)
    found = walker.look_up()
    assert found is not None
    assert found.kind is Kind.CANCELLED


@pytest.mark.parametrize("act", ["reject", "cancel"])
def test_an_order_that_the_shop_gives_up_at_once_is_rejected_and_refunded(
    shop: Shop, act: str
) -> None:
    walker = shop.walker(order_of(**PICKUP))
    shop.way.troubles.append(Trouble("after", "POST", "/v2/payments"))
    assert walker.forward().kind is Kind.IN_DOUBT
    shop.square.acts[act](shop.fact["order"]["id"])
    assert walker.forward(asks=True).kind is Kind.REJECTED
    assert_stopped_and_refunded(shop)


def test_each_step_of_the_kitchen_is_heard(shop: Shop) -> None:
    shop.submit(order_of(**PICKUP))
    heard = [each for act in ("accept", "ready", "complete") for each in steps(shop, act)]
    assert set(heard) == {Lifecycle.PREPARING, Lifecycle.READY, Lifecycle.COMPLETED}


def steps(shop: Shop, act: str) -> list[Kind | Lifecycle]:
    """What Square's notifications of a step mean, by their signatures and bodies."""
    webhooks = shop.square.webhooks
    webhooks.url, webhooks.key = URL.format(adapter="square"), CALLER.key
    shop.square.acts[act](shop.fact["order"]["id"])
    heard: list[Kind | Lifecycle] = []
    for each in webhooks.take():
        signed = {name.lower(): value for name, value in each.headers.items()}
        found = CALLER.read(CALLER.request(each.body, **signed))
        assert found is not None
        heard += [callback.meaning for callback in found]
    return heard


def refuse(shop: Shop, path: str, status: int, code: str) -> None:
    """Have Square refuse each request for the path."""
    answer = shop.square.answer

    def refusing(request: VendorRequest) -> VendorReply:
        if request.path != path:
            return answer(request)
        return VendorReply(status, {"errors": [{"code": code, "detail": "no"}]})

    shop.way.vendor = SimpleNamespace(answer=refusing)


# On the way: any reply is lost, of any request, before or after Square has done what was asked.

#: Requests of an order, and of its cancellation: methods and patterns of paths.
FORWARD = [("POST", "/v2/orders"), ("POST", "/v2/payments"), ("GET", "/v2/orders/[^/]+")]
FREE_FORWARD = [FORWARD[0], ("POST", "/v2/orders/[^/]+/pay"), FORWARD[2]]
BACK = [
    ("GET", "/v2/orders/[^/]+"),
    ("GET", "/v2/payments/[^/]+"),
    ("PUT", "/v2/orders/[^/]+"),
    ("POST", "/v2/refunds"),
]
WHAT = ["before", "after", "slow", "twice"]


def again(walker: Walker, shop: Shop, seconds: float) -> Outcome:
    """Attempts until the order is out of doubt; looked up once keys may be forgotten."""
    shop.square.knobs.keys_kept = 3600
    for _ in range(4):
        outcome = walker.forward(asks=seconds > 600)
        if outcome.kind is not Kind.IN_DOUBT:
            return outcome
        shop.now += timedelta(seconds=seconds)
    return outcome


@pytest.mark.parametrize("seconds", [15, 7200])
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("fields", [{}, {"tip": 200}], ids=["total", "tip"])
@pytest.mark.parametrize(("method", "path"), FORWARD)
def test_an_order_is_made_once_and_paid_once_whatever_reply_is_lost(
    shop: Shop, method: str, path: str, fields: Json, what: Any, seconds: float
) -> None:
    shop.way.troubles.append(Trouble(what, method, path, seconds=30))
    order = order_of(**PICKUP, **fields)
    assert again(shop.walker(order), shop, seconds).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("method", "path"), FREE_FORWARD)
def test_an_order_of_0_is_made_once_and_settled_once_whatever_reply_is_lost(
    shop: Shop, method: str, path: str, what: Any
) -> None:
    shop.way.troubles.append(Trouble(what, method, path, seconds=30))
    order = order_of(**PICKUP, **FREE)
    assert again(shop.walker(order), shop, 15).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)


def test_an_order_of_0_is_left_to_an_operator_once_its_key_is_forgotten(shop: Shop) -> None:
    """Square does not show whether it is settled: it is neither told nor cancelled."""
    shop.way.troubles.append(Trouble("after", "POST", FREE_FORWARD[1][1]))
    outcome = again(shop.walker(order_of(**PICKUP, **FREE)), shop, 7200)
    assert (outcome.kind, outcome.for_operator) == (Kind.IN_DOUBT, True)
    assert outcome.reason is not None
    assert outcome.reason.code == "blind"
    assert shop.fact["shown"]


@pytest.mark.parametrize("seconds", [15, 7200])
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("method", "path"), [FORWARD[0], BACK[0], BACK[2]])
def test_an_order_at_another_price_is_undone_whatever_reply_is_lost(
    shop: Shop, method: str, path: str, what: Any, seconds: float
) -> None:
    shop.square.knobs.shop_tax, shop.square.knobs.adds_tax_unasked = "9", True
    shop.way.troubles.append(Trouble(what, method, path, seconds=30))
    walker = shop.walker(order_of(**PICKUP))
    outcome = again(walker, shop, seconds)
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    assert outcome.reason.code == "price_mismatch"
    assert len(shop.facts) == 1
    assert_nothing_stands(shop)


@pytest.mark.parametrize("seconds", [15, 7200])
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("method", "path"), BACK)
def test_a_cancelled_order_is_refunded_once_whatever_reply_is_lost(
    shop: Shop, method: str, path: str, what: Any, seconds: float
) -> None:
    walker = shop.walker(order_of(**PICKUP))
    walker.forward()
    shop.way.troubles.append(Trouble(what, method, path, seconds=30))
    if walker.cancel().kind is Kind.IN_DOUBT:
        shop.now += timedelta(seconds=seconds)
    assert walker.cancel().kind is Kind.CANCELLED
    assert shop.way.troubles[0].times == 0
    assert_stopped_and_refunded(shop)
    assert len(shop.square.seller.refunds) == 1


def test_a_payment_that_arrives_while_its_order_is_undone_is_refunded(shop: Shop) -> None:
    """It was looked up before, and not there."""
    order = order_of(**PICKUP)
    create, pay = steps_of(SQUARE.adapter)
    made = create.run(order, SQUARE.merchant, {}, shop.send)
    facts = made.facts or {}
    answer = shop.square.answer

    def late(request: VendorRequest) -> VendorReply:
        if request.method == "PUT" and not shop.fact["is_paid"]:
            shop.way.vendor = shop.square
            pay.run(order, SQUARE.merchant, facts, shop.send)
        return answer(request)

    shop.way.vendor = SimpleNamespace(answer=late)
    assert callable(create.undo)
    assert create.undo(order, SQUARE.merchant, facts, shop.send).kind is Kind.CANCELLED
    assert shop.fact["payments"] == 1
    assert_stopped_and_refunded(shop)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "BAD_REQUEST", Kind.REJECTED),
        (403, "INSUFFICIENT_SCOPES", Kind.FAILED),
        (404, "NOT_FOUND", Kind.FAILED),
    ],
)
def test_an_order_whose_payment_is_refused_is_undone(
    shop: Shop, status: int, code: str, kind: Kind
) -> None:
    refuse(shop, "/v2/payments", status, code)
    outcome = shop.submit(order_of(**PICKUP))
    assert outcome.kind is kind
    assert code in message(outcome)
    assert_nothing_stands(shop)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Kind.RETRY), (429, Kind.RETRY), (500, Kind.IN_DOUBT), (409, Kind.IN_DOUBT)],
)
def test_an_order_whose_payment_is_not_recorded_yet_is_paid_later(
    shop: Shop, status: int, kind: Kind
) -> None:
    refuse(shop, "/v2/payments", status, "CONFLICT")
    order = order_of(**PICKUP)
    walker = shop.walker(order)
    assert walker.forward().kind is kind
    shop.way.vendor = shop.square
    assert walker.forward().kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)


def test_an_order_in_doubt_that_the_release_before_made_without_a_fulfillment_is_undone(
    shop: Shop,
) -> None:
    """It would be paid, and no POS would show it. The key is used: the order is looked up."""
    order, captured = order_of(**PICKUP), Scripted(reply(500))
    SQUARE.create(order, captured)
    [request] = captured.requests
    content = json.loads(request.body or b"")
    del content["order"]["fulfillments"]
    shop.send(replace(request, body=json.dumps(content).encode()))
    outcome = shop.submit(order)
    assert outcome.kind is Kind.REJECTED
    assert "no fulfillment" in message(outcome)
    assert len(shop.facts) == 1
    assert_nothing_stands(shop)


@pytest.mark.parametrize("end", ["expire", "revoke"])
def test_an_order_waits_while_the_token_has_ended(shop: Shop, end: str) -> None:
    """8."""
    getattr(shop.square.access, end)()
    order = order_of(**PICKUP)
    assert shop.submit(order).kind is Kind.RETRY
    assert shop.facts == []
    shop.send.headers["Authorization"] = f"Bearer {shop.square.access.grant()['access_token']}"
    assert shop.submit(order).kind is Kind.ACCEPTED


def test_an_order_above_the_rate_is_sent_later(shop: Shop) -> None:
    shop.square.knobs.per_second = 0
    assert shop.submit(order_of(**PICKUP)).kind is Kind.RETRY
    assert shop.facts == []
