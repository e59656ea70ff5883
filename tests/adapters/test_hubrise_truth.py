"""The HubRise adapter against the strict simulator: what the shop has in truth, request by request.

What becomes of each kind of order end to end is in ``tests/faults/test_hubrise.py``.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CREDENTIAL_REFUSED, CallResult, Kind, Lifecycle, Outcome
from pos_gateway.transport.errors import NoValidReply
from testkit.vendors.facts import OrderFacts
from testkit.vendors.hubrise import simulator
from testkit.vendors.hubrise.api import signed
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.vendors import DIGEST, HUBRISE, body
from tests.faults.selling import ADDRESS, CHARGED, COKE
from tests.orders import an_order

KEY = "client-secret"
BURGER = {"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}
REFS = {
    "collection_ref": "C1",
    "delivery_ref": "D1",
    "payment_ref": "ONLINE",
    "tip_ref": "TIP",
    "taxes_as": "CHARGE",
}


def ordered(order_id: str = "order/1", **fields: Any) -> Order:
    return Order.parse(an_order(order_id, **{"items": [BURGER], "total": 1700, **fields}))


class Shop(OrderFacts):
    """A location, its EPOS, and the adapter's way there."""

    def __init__(self, *troubles: Trouble, pos: Any = (), **knobs: Any) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)
        self.hubrise = simulator(lambda: self.now)
        super().__init__(self.hubrise)
        for name, value in knobs.items():
            setattr(self.hubrise.knobs, name, value)
        self.hubrise.webhooks.url, self.hubrise.webhooks.key = "https://gateway.example.com", KEY
        self.way = Way(self.hubrise)
        self.way.troubles += troubles
        self.send = VendorSend(self.way, {"X-Access-Token": "token-1"})
        record = {**HUBRISE.record, "pos": {"location_id": "3r4s3-1", **dict(pos)}}
        auth = {**record["auth"], "webhook_signature_key": KEY}
        own = {"id": "fast-1", "adapter": "hubrise", "base_url": "https://pos.example.com/v1"}
        self.merchant = Merchant.parse({**record, **own, "auth": auth})
        self.adapter = HubRiseAdapter()
        assert self.adapter.check(self.merchant) == []

    def submit(self, order: Order) -> Outcome:
        return self.adapter.submit(order, self.merchant, self.send)

    def look_up(self, order: Order) -> Outcome | None:
        return self.adapter.look_up(order, self.merchant, self.send)

    def cancel(self, order: Order) -> Outcome:
        return self.adapter.cancel(order, self.merchant, self.send)

    def epos(self, status: str, **fields: Any) -> None:
        """The EPOS changes the only order."""
        self.hubrise.update(self.fact["id"], status=status, **fields)

    def heard(self) -> list[Callback]:
        """What HubRise says by itself, as the adapter hears it."""
        found: list[Callback] = []
        for url, headers, content, _ in self.hubrise.webhooks.take():
            lower = {name.lower(): value for name, value in headers.items()}
            request = CallbackRequest(url, lower, content, self.now.timestamp())
            callbacks = self.adapter.callbacks(request, self.merchant)
            assert callbacks is not None
            found += callbacks
        return found


def why(outcome: Outcome | None) -> str:
    assert outcome is not None
    assert outcome.reason is not None
    return f"{outcome.kind} {outcome.reason.code}: {outcome.reason.message}"


def test_each_field_has_its_place() -> None:
    order = ordered(
        items=[
            {
                **BURGER,
                "ref": "1",
                "notes": "well done",
                "modifiers": [{**COKE, "quantity": 2, "sku": "coke"}],
            }
        ],
        **{
            **CHARGED,
            "discounts": [
                {"name": "Ten off", "amount": 100, "items": ["1"], "id": "TEN"},
                {"name": "Theirs", "amount": 50, "funded_by": "platform"},
            ],
            "total": CHARGED["total"] + 1000,
        },
        order_type="delivery",
        delivery={
            "address": {**ADDRESS, "lat": 42.35, "lon": -71},
            "instructions": "ring twice",
            "courier": {"name": "Bo", "phone": "1"},
        },
        customer={"name": "Ada King Lovelace", "phone": "+1 (212)", "email": "a@example.com"},
        scheduled_for="2026-11-20T13:00:00+01:00",
        placed_at="2026-11-20T11:00:00Z",
        deliver_by="2026-11-20T11:30:00Z",
        display_id="A-17",
        prep_minutes=20,
        utensils=True,
        payment={"method": "card", "source": "Marketplace", "reference": "pay-1"},
        notes="allergy: nuts",
    )
    shop = Shop(pos=REFS)
    assert shop.submit(order).kind is Kind.ACCEPTED
    option = {"option_list_name": "Options", "price": "0.00 EUR"}
    coke = {**option, "name": "Coke", "ref": "coke", "price": "2.50 EUR"}
    ice = {**option, "name": "Coke: no ice"}
    assert body(shop.send.requests[0]) == {
        "status": "new",
        "ref": "order/1",
        "private_ref": f"order/1-{DIGEST}",
        "service_type": "delivery",
        "service_type_ref": "D1",
        "expected_time": "2026-11-20T13:00:00+01:00",
        "collection_code": "A-17",
        "customer_notes": "takes 20 minutes / with utensils / allergy: nuts",
        "items": [
            {
                "product_name": "Burger",
                "sku_ref": "burger",
                "price": "8.50 EUR",
                "quantity": "2",
                "customer_notes": "well done / Coke: cold",
                "options": [coke, ice, coke, ice],
            }
        ],
        "discounts": [{"name": "Ten off: Burger", "ref": "TEN", "price_off": "1.00 EUR"}],
        "charges": [
            {"name": "Courier", "price": "3.00 EUR"},
            {"name": "City tax", "price": "1.60 EUR"},
            {"name": "Tip", "ref": "TIP", "price": "2.00 EUR"},
        ],
        "payments": [
            {
                "name": "Card",
                "ref": "ONLINE",
                "amount": "32.60 EUR",
                "info": {"source": "Marketplace", "reference": "pay-1"},
            }
        ],
        "customer": {
            "first_name": "Ada King",
            "last_name": "Lovelace",
            "email": "a@example.com",
            "phone": "+1 (212)",
            "delivery_notes": "ring twice / courier Bo 1",
            "address_1": "1 Main St",
            "postal_code": "02215",
            "city": "Boston",
            "state": "MA",
            "country": "US",
            "latitude": "42.35",
            "longitude": "-71",
        },
    }
    assert (shop.fact["paid"], shop.fact["total"]) == (3260, 3260)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (CHARGED, "unsupported_field: taxes[0]: HubRise adds no taxes to prices"),
        ({"currency": "JPY"}, "invalid_order: 1700 JPY cannot be written with two decimals"),
        ({"order_type": "pickup", "dine_in": {"table": "7"}}, "unsupported_field: dine_in"),
        ({"fulfillment": {"bay": 7}}, "unsupported_field: this POS's API has no place"),
        ({"coupon_codes": ["X"], "coupon": "X"}, "unsupported_field: this POS's API has no"),
        (
            {"items": [{**BURGER, "modifiers": [{"name": "x" * 900, "quantity": 9_000}]}]},
            "invalid_order: makes a request of",
        ),
    ],
)
def test_an_order_that_hubrise_cannot_take_is_refused_by_name(fields: Any, said: str) -> None:
    shop = Shop()
    assert why(shop.submit(ordered(**fields))).startswith(f"rejected {said}")
    assert shop.send.requests == []


def test_taxes_within_the_prices_and_a_platforms_are_information() -> None:
    inclusive = {"name": "VAT", "amount": 155, "rate": "10", "inclusive": True}
    remitted = {"name": "State", "amount": 99, "remitted_by": "platform"}
    shop = Shop()
    assert shop.submit(ordered(taxes=[inclusive, remitted])).kind is Kind.ACCEPTED
    assert shop.fact["total"] == 1700


@pytest.mark.parametrize(
    ("customer", "names"),
    [
        ({"name": "Ada"}, {"first_name": "Ada"}),
        ({"name": "x y", "first_name": "Ada", "last_name": "King"}, {"last_name": "King"}),
        ({"name": "Ada King", "first_name": "Ada"}, {"first_name": "Ada", "last_name": "King"}),
        ({"last_name": "King"}, {"first_name": "King"}),
    ],
)
def test_a_guest_has_the_names_that_are_given(customer: Any, names: Any) -> None:
    shop = Shop()
    shop.submit(ordered(customer=customer))
    assert shop.fact["order"]["customer"].items() >= names.items()


@pytest.mark.parametrize(
    ("pos", "status", "kind"),
    [
        ({}, "new", Kind.PENDING),
        ({}, "received", Kind.ACCEPTED),
        ({"accepted_as": "ACCEPTED"}, "received", Kind.PENDING),
        ({"accepted_as": "ACCEPTED"}, "accepted", Kind.ACCEPTED),
        ({"accepted_as": "RECEIVED"}, "received", Kind.ACCEPTED),
    ],
)
def test_the_shop_says_which_status_accepts(pos: Any, status: str, kind: Kind) -> None:
    shop = Shop(pos=pos, arrives="new")
    outcome = shop.submit(ordered())
    assert (outcome.kind, outcome.look_again) == (Kind.PENDING, 60)
    shop.epos(status)
    looked_up = shop.look_up(ordered())
    assert looked_up is not None
    assert looked_up.kind is kind
    assert [each.meaning for each in shop.heard()] == [kind] * (kind is Kind.ACCEPTED)


def test_what_the_shop_does_is_heard_once_each_in_any_order() -> None:
    shop = Shop(arrives="new")
    known_as = shop.submit(ordered()).external_id
    assert shop.heard() == []  # a client hears of no change of its own
    shop.hubrise.webhooks.twice = shop.hubrise.webhooks.reverse = True
    for status in ("received", "in_preparation", "awaiting_shipment", "in_delivery", "completed"):
        shop.epos(status)
    shop.epos("cancelled", seller_notes="burnt")
    heard = shop.heard()
    assert [each.meaning for each in heard[::-2]] == [
        Kind.ACCEPTED,
        Lifecycle.PREPARING,
        Lifecycle.READY,
        Lifecycle.READY,
        Lifecycle.COMPLETED,
        Kind.CANCELLED,
    ]
    assert (len(heard), len({each.event_id for each in heard})) == (12, 6)
    assert {(each.external_id, each.account) for each in heard} == {
        (known_as, ("location_id", "3r4s3-1"))
    }
    assert heard[0].reason is not None
    assert heard[0].reason.message == "burnt"


@pytest.mark.parametrize("payment", [{}, {"status": "unpaid"}])
def test_an_accepted_order_whose_payments_are_not_its_total_is_left_to_a_look_up(
    payment: Any,
) -> None:
    shop = Shop(arrives="new")
    shop.submit(ordered(payment=payment))
    shop.epos("accepted", total="18.53 EUR")
    assert shop.heard() == []
    assert why(shop.look_up(ordered())).startswith("rejected price_mismatch")
    assert shop.fact["status"] == "cancelled"


@pytest.mark.parametrize("status", ["in_preparation", "awaiting_shipment"])
def test_an_order_at_another_price_that_the_shop_has_begun_with_is_an_operators(
    status: str,
) -> None:
    shop = Shop(arrives=status, adds=153)
    outcome = shop.submit(ordered())
    assert outcome.for_operator
    assert "it stands at the POS as x0001: the shop has begun" in why(outcome)
    assert shop.fact["status"] == status


@pytest.mark.parametrize(
    "change", [{"resource_type": "delivery"}, {"event_type": "create"}, {"new_state": []}]
)
def test_an_event_of_another_kind_says_nothing(change: Any) -> None:
    shop = Shop()
    shop.submit(ordered())
    shop.epos("completed")
    [event] = shop.hubrise.webhooks.take()
    shop.hubrise.webhooks.add(json.dumps({**json.loads(event.body), **change}).encode(), signed)
    assert shop.heard() == []


def test_the_sellers_words_are_the_reason_of_a_rejection() -> None:
    shop = Shop(arrives="new")
    shop.submit(ordered())
    shop.epos("rejected", seller_notes="no\nburgers")
    assert why(shop.look_up(ordered())) == "rejected other: no burgers"
    assert shop.cancel(ordered()).kind is Kind.CANCELLED


@pytest.mark.parametrize("status", ["new", "received", "accepted", "in_preparation", "cancelled"])
def test_an_order_is_cancelled_while_it_is_in_the_shop(status: str) -> None:
    shop = Shop(arrives=status)
    assert why(shop.cancel(ordered())).startswith("rejected unknown_order")
    order = ordered().in_ledger(None, None, shop.submit(ordered()).external_id)
    for _ in range(2):
        assert shop.cancel(order).kind is Kind.CANCELLED
    assert shop.fact["status"] == "cancelled"


@pytest.mark.parametrize("status", ["in_delivery", "completed", "delivery_failed"])
def test_an_order_that_has_left_the_shop_is_not_cancelled(status: str) -> None:
    shop = Shop(arrives=status)
    shop.submit(ordered())
    assert why(shop.cancel(ordered())) == f"rejected other: the order is {status} at HubRise"
    assert shop.fact["status"] == status


def test_an_accepted_order_that_the_shop_has_changed_since_stays() -> None:
    shop = Shop()
    order = ordered().in_ledger(None, None, shop.submit(ordered()).external_id)
    shop.epos("in_preparation", total="8.50 EUR")
    found = shop.look_up(order)
    assert found is not None
    assert found.kind is Kind.ACCEPTED


def test_an_order_is_found_by_hubrises_id_before_lists_have_it() -> None:
    shop = Shop(found_after=60)
    known_as = shop.submit(ordered()).external_id
    assert shop.look_up(ordered()) is None
    assert shop.cancel(ordered().in_ledger(None, None, known_as)).kind is Kind.CANCELLED


def test_a_double_that_is_refused_and_not_found_is_in_doubt() -> None:
    shop = Shop(found_after=60)
    shop.submit(ordered())
    said = why(shop.submit(ordered()))
    assert said.startswith("in_doubt")
    assert "private_ref: has already been taken" in said
    shop.now += timedelta(seconds=60)
    assert shop.submit(ordered()).kind is Kind.ACCEPTED
    assert shop.fact["printed"] == 1


def test_an_order_that_stands_twice_is_left_to_an_operator() -> None:
    shop = Shop(Trouble("twice", "POST"), takes_doubles=True)
    shop.submit(ordered())
    found = shop.look_up(ordered())
    assert "HubRise has it twice: x0001, x0002" in why(found)
    assert found is not None
    assert found.for_operator
    shop.hubrise.update("x0001", status="cancelled")
    found = shop.look_up(ordered())
    assert found is not None
    assert (found.kind, found.external_id) == (Kind.ACCEPTED, "x0002")


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (5, "items[0].product_name has 6 characters; the POS keeps 5"),
        (8, "items[0].options[0].name has 9 characters; the POS keeps 8"),
        (20, "customer_notes has 33 characters; the POS keeps 20"),
    ],
)
def test_an_order_whose_texts_are_cut_stands_nowhere(cuts: int, said: str) -> None:
    shop = Shop(cuts=cuts)
    item = {**BURGER, "modifiers": [{"name": "no onions"}]}
    notes = {"notes": "ring twice, and mind: no nuts, .."} if cuts == 20 else {}
    order = ordered(items=[item], **notes)
    assert why(shop.submit(order)) == f"rejected text_too_long: {said}"
    assert shop.fact["status"] == "cancelled"


@pytest.mark.parametrize("says_when", [True, False])
def test_beyond_the_rate_no_order_is_made(says_when: bool) -> None:
    shop = Shop(says_when=says_when)
    for number in range(500):
        shop.submit(ordered(str(number)))
    refused = shop.submit(ordered())
    assert (refused.kind, refused.retry_after) == (Kind.RETRY, 60 if says_when else None)
    assert len(shop.facts) == 500
    shop.now += timedelta(seconds=60)
    assert shop.submit(ordered()).kind is Kind.ACCEPTED


def test_ten_look_ups_a_minute_are_answered() -> None:
    shop = Shop(arrives="new")
    shop.submit(ordered())
    found = [shop.look_up(ordered()) for _ in range(11)]
    assert [each and each.kind for each in found] == [Kind.PENDING] * 10 + [Kind.IN_DOUBT]
    last = found[-1]
    assert last is not None
    assert last.contact is CallResult.OVERLOADED


def test_an_order_waits_for_another_token() -> None:
    shop = Shop()
    shop.hubrise.acts["revoke"]()
    outcome = shop.submit(ordered())
    assert why(outcome).startswith(f"retry {CREDENTIAL_REFUSED}")
    shop.hubrise.tokens.add("token-1")
    assert shop.submit(ordered()).kind is Kind.ACCEPTED
    assert shop.fact["printed"] == 1


def test_a_lost_reply_and_a_lost_cancellation_leave_one_order_or_none() -> None:
    shop = Shop(Trouble("after", "POST"), Trouble("after", "PATCH"), adds=153)
    with pytest.raises(NoValidReply):
        shop.submit(ordered())
    with pytest.raises(NoValidReply):
        shop.look_up(ordered())
    assert why(shop.look_up(ordered())).startswith("rejected price_mismatch")
    assert shop.fact["status"] == "cancelled"


def test_brands_at_one_location_may_have_orders_with_the_same_id() -> None:
    shop = Shop()
    mine, theirs = ordered(), ordered(merchant_id="fast-2", customer={"name": "Bob"})
    for order in (mine, theirs):
        assert shop.submit(order).kind is Kind.ACCEPTED
    assert shop.cancel(theirs).kind is Kind.CANCELLED
    assert [each["status"] for each in shop.facts] == ["accepted", "cancelled"]


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        ("in_preparation", Lifecycle.PREPARING),
        ("awaiting_collection", Lifecycle.READY),
        ("completed", Lifecycle.COMPLETED),
    ],
)
def test_an_accepted_order_that_is_paid_at_the_counter_is_followed(
    status: str, meaning: Lifecycle
) -> None:
    """Of an open order a look-up judges: the callback says that it is about an accepted one alone."""
    shop = Shop(arrives="accepted")
    assert shop.submit(ordered(payment={"status": "unpaid"})).kind is Kind.ACCEPTED
    shop.epos(status)
    [callback] = shop.heard()
    assert (callback.meaning, callback.only_accepted) == (meaning, True)
