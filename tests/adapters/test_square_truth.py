"""What is true at a strict Square when the adapter says ``accepted``, ``rejected`` or ``cancelled``.

Each expected failure is a fault of today's adapter, numbered as in the list that the work follows.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome
from pos_gateway.transport.errors import NoValidReply
from testkit.vendors.square import simulator
from testkit.vendors.way import Trouble, VendorSend, Way, arrived
from tests.adapters.callers import SQUARE as CALLER
from tests.adapters.callers import URL
from tests.adapters.vendors import SQUARE, order_of

Json = dict[str, Any]
ADA = {"name": "Ada", "phone": "+12125550123"}
PICKUP: Json = {"fulfillment": "pickup", "customer": ADA}
BURGER: Json = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
NOT_PAID = "1: no payment is recorded, and most orders have no fulfillment: no POS shows them"
EMAIL = "6: the e-mail is dropped without a word, though a recipient has one at Square"
LATER = "18: the version is fixed at one without nested modifiers and IN_STORE"
PAID = "17: of a paid order neither the fulfillment is cancelled nor the payment refunded"
PHONE = "19: a pickup without a phone that Square takes is sent; the refusal names no field of ours"


class Shop:
    """A seller at Square, whose orders come from the adapter."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)
        self.square = simulator(lambda: self.now, currency="EUR")
        self.way = Way(self.square)
        token = self.square.access.grant()["access_token"]
        self.send = VendorSend(self.way, {"Authorization": f"Bearer {token}"})

    def submit(self, order: Order) -> Outcome:
        return SQUARE.adapter.submit(order, SQUARE.merchant, self.send)

    def look_up(self, order: Order) -> Outcome | None:
        return SQUARE.adapter.look_up(order, SQUARE.merchant, self.send)

    def cancel(self, order: Order) -> Outcome:
        return SQUARE.adapter.cancel(order, SQUARE.merchant, self.send)

    @property
    def facts(self) -> list[Json]:
        return list(self.square.facts()["orders"].values())

    @property
    def fact(self) -> Json:
        [fact] = self.facts
        return fact

    def pay(self) -> None:
        """As the adapter ought to."""
        order = self.fact["order"]
        body = {
            "source_id": "EXTERNAL",
            "idempotency_key": "paid",
            "order_id": order["id"],
            "amount_money": order["total_money"],
            "external_details": {"type": "EXTERNAL", "source": "Food delivery"},
        }
        headers = {**self.send.headers, "Content-Type": "application/json"}
        url = "https://pos.example.com/v2/payments"
        reply = self.square.answer(arrived("POST", url, headers, json.dumps(body).encode()))
        assert reply.status == 200, reply


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


def message(outcome: Outcome) -> str:
    return outcome.reason.message if outcome.reason else ""


# Accepted


@pytest.mark.xfail(strict=True, reason=NOT_PAID)
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(PICKUP, id="pickup"),
        pytest.param({}, id="no type, no customer"),
        pytest.param({"customer": ADA}, id="no type"),
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
    ],
)
def test_an_accepted_order_is_a_paid_ticket(shop: Shop, fields: Mapping[str, Any]) -> None:
    order = order_of(**fields)
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)


def test_the_kitchen_has_a_pickup_as_soon_as_its_payment_is_recorded(shop: Shop) -> None:
    """What the adapter is to do besides."""
    order = order_of(**PICKUP)
    shop.submit(order)
    assert not shop.fact["shown"]
    shop.pay()
    assert_kitchen_has(shop, order)


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
        (
            "taxes",
            "City tax",
            {"taxes": [{"name": "City tax", "amount": 0, "rate": "0", "inclusive": True}]},
        ),
        (
            "fees",
            "Bag",
            {
                "fees": [{"kind": "bag", "name": "Bag", "amount": 10, "taxable": False}],
                "total": 1710,
            },
        ),
        (
            "discounts",
            "Ten off",
            {
                "discounts": [{"name": "Ten off", "amount": 10, "funded_by": "merchant"}],
                "total": 1690,
            },
        ),
        (
            "delivery",
            "1 Main St",
            {"delivery": {"address": {"line1": "1 Main St", "city": "Paris", "country": "FR"}}},
        ),
        (
            "items[0].modifiers[0].modifiers",
            "no ice",
            {
                "items": [
                    {**BURGER, "modifiers": [{"name": "Coke", "modifiers": [{"name": "no ice"}]}]}
                ]
            },
        ),
        (
            "items[0].modifiers[0].notes",
            "well done",
            {"items": [{**BURGER, "modifiers": [{"name": "Steak", "notes": "well done"}]}]},
        ),
        pytest.param(
            "customer.email",
            "ada@example.com",
            {"customer": {**ADA, "email": "ada@example.com"}},
            marks=pytest.mark.xfail(strict=True, reason=EMAIL),
        ),
    ],
)
def test_no_field_is_dropped_without_a_word(
    shop: Shop, field: str, text: str, fields: Json
) -> None:
    """6."""
    outcome = shop.submit(order_of(**{**PICKUP, **fields}))
    if outcome.kind is Kind.REJECTED and field in message(outcome):
        assert_nothing_stands(shop)
    else:
        assert text in json.dumps(shop.fact["order"])


@pytest.mark.xfail(strict=True, reason=LATER)
def test_the_version_is_one_with_nested_modifiers_and_dine_in(shop: Shop) -> None:
    shop.submit(order_of(**PICKUP))
    assert shop.send.requests[0].headers["Square-Version"] >= "2026-09-16"


def test_each_request_names_the_version(shop: Shop) -> None:
    """18."""
    order = order_of(**PICKUP)
    shop.submit(order)
    shop.cancel(order)
    assert len({each.headers.get("Square-Version") for each in shop.send.requests} - {None}) == 1


@pytest.mark.xfail(strict=True, reason=PHONE)
@pytest.mark.parametrize("phone", [None, "ask Ada", "(212) 555-0123"])
def test_a_pickup_has_its_recipients_phone_or_is_refused_by_name(
    shop: Shop, phone: str | None
) -> None:
    outcome = shop.submit(order_of(fulfillment="pickup", customer={"name": "Ada", "phone": phone}))
    if outcome.kind is Kind.REJECTED:
        assert "customer.phone" in message(outcome)
        assert_nothing_stands(shop)
    else:
        [found] = shop.fact["order"]["fulfillments"]
        assert found["pickup_details"]["recipient"]["phone_number"]


# Cancelled, by us or by the shop


def test_a_cancelled_order_is_cancelled_at_square(shop: Shop) -> None:
    order = order_of(**PICKUP)
    shop.submit(order)
    shop.square.knobs.own_work = True
    assert shop.cancel(order).kind is Kind.CANCELLED
    assert_nothing_stands(shop)


@pytest.mark.xfail(strict=True, reason=PAID)
def test_a_paid_order_is_cancelled_by_its_fulfillment_and_refunded(shop: Shop) -> None:
    order = order_of(**PICKUP)
    shop.submit(order)
    shop.pay()
    assert shop.cancel(order).kind is Kind.CANCELLED
    fact = shop.fact
    assert (fact["cancelled"], fact["refunded"]) == (True, fact["paid"])


@pytest.mark.parametrize("act", ["reject", "cancel"])
def test_an_order_that_the_shop_gives_up_is_heard_and_found_cancelled(shop: Shop, act: str) -> None:
    """7."""
    order = order_of(**PICKUP)
    shop.submit(order)
    heard = [each for each in steps(shop, act) if each is Kind.CANCELLED]
    assert heard
    found = shop.look_up(order)
    assert found is not None
    assert found.kind is Kind.CANCELLED


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


# On the way


@pytest.mark.parametrize("what", ["before", "after", "slow", "twice"])
@pytest.mark.parametrize("seconds", [15, 7200])
def test_an_order_whose_reply_was_lost_is_made_once(shop: Shop, what: Any, seconds: float) -> None:
    """Under the same key within the time that Square keeps keys, by a look-up after that time."""
    shop.square.knobs.keys_kept = 3600
    shop.way.troubles.append(Trouble(what, "POST", seconds=30))
    order = order_of(**PICKUP)
    if what == "twice":
        assert shop.submit(order).kind is Kind.ACCEPTED
    else:
        with pytest.raises(NoValidReply):
            shop.submit(order)
    shop.now += timedelta(seconds=seconds)
    found = shop.look_up(order) if seconds > 3600 else shop.submit(order)
    if found is None:
        assert what == "before"
        found = shop.submit(order)
    assert found.kind is Kind.ACCEPTED
    assert len(shop.facts) == 1


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
