"""The Toast adapter against the strict simulator: what the kitchen has in truth when we say `accepted`.

What Toast takes in silence is in ``test_toast_location.py``.
"""

from typing import Any

import pytest

from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.admission.limits import QuotaTerms
from pos_gateway.admission.rate import Rate
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from testkit.vendors.toast.access import Rates
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.vendors import ADDRESS
from tests.orders import an_order
from tests.testkit.toast_place import (
    BURGER,
    CATCH,
    COURIER_FEE,
    DELIVERY,
    DINE_IN,
    DRESSINGS,
    MAINS,
    MAYO,
    PAID,
    PICKUP,
    PLACE,
    RANCH,
    SALAD,
    SAUCES,
    SIDES,
    SOUP,
    VOUCHER,
    Body,
    Clock,
    Place,
)

TOAST = ToastAdapter()
KEY = "toast-secret"
RECORD: Body = {
    "id": "fast-1",
    "adapter": "toast",
    "base_url": "https://pos.example.com",
    "auth": {"type": "none", "webhook_signature_key": KEY},
    "pos": {
        "restaurant": PLACE,
        "dining_option": PICKUP,
        "naming_authority": "GATEWAY",
        "payment": PAID,
        "customer_email": "guests@example.com",
    },
}
MERCHANT = Merchant.parse(RECORD)
#: With everything that a merchant may have in ``pos``.
WHOLE = Merchant.parse(
    {
        **RECORD,
        "pos": {
            **RECORD["pos"],
            "delivery_dining_option": DELIVERY,
            "dine_in_dining_option": DINE_IN,
            "customer_phone": "5550100100",
            "service_charge": COURIER_FEE,
            "discount": VOUCHER,
        },
    }
)
ADA = {"name": "Ada Lovelace", "phone": "+1 (555) 010-0199", "email": "ada@example.com"}


def line(kind: str = BURGER, price: int = 850, **fields: Any) -> Body:
    return {"sku": f"{MAINS}/{kind}", "name": "x", "quantity": 1, "unit_price": price, **fields}


def mayo(quantity: int = 1) -> Body:
    return {"sku": f"{SAUCES}/{MAYO}", "name": "Mayo", "quantity": quantity, "unit_price": 50}


def ordered(*items: Body, total: int = 850, **fields: Any) -> Order:
    given = {"items": list(items) or [line()], "total": total, "currency": "USD", "customer": ADA}
    return Order.parse(an_order("order/1", **{**given, **fields}))


class At:
    """The adapter's way to a place, and what it says."""

    def __init__(self, place: Place, *troubles: Trouble, merchant: Merchant = MERCHANT) -> None:
        self.place, self.merchant, self.way = place, merchant, Way(place.toast)
        self.way.troubles += troubles
        self.send = VendorSend(self.way, {"Authorization": f"Bearer {place.token}"})

    def submit(self, order: Order) -> Outcome:
        """The outcome, looked up if a reply is lost, as the gateway does."""
        try:
            return TOAST.submit(order, self.merchant, self.send)
        except NotSent:
            return TOAST.submit(order, self.merchant, self.send)
        except NoValidReply:
            found = TOAST.look_up(order, self.merchant, self.send)
            return found or TOAST.submit(order, self.merchant, self.send)

    def cancel(self, order: Order) -> Outcome:
        return TOAST.cancel(order, self.merchant, self.send)


def words_of(outcome: Outcome) -> str:
    assert outcome.reason is not None
    return f"{outcome.reason.code}: {outcome.reason.message}"


def is_cooked(place: Place, behavior: str = "TAKE_OUT") -> bool:
    """The kitchen has one ticket, staff has nothing to collect."""
    fact = place.fact
    assert (fact["behavior"], fact["printed"], fact["due"]) == (behavior, 1, 0)
    return not fact["voided"]


def test_a_pickup_is_in_the_kitchen_and_paid() -> None:
    place = Place()
    order = ordered(line(modifiers=[mayo(2), {"name": "no onion"}]), total=950, tip=150)
    assert At(place).submit(order).kind is Kind.ACCEPTED
    assert is_cooked(place)
    assert place.fact["tip"] == 150
    whole = ["Ada Lovelace", "1 x Burger", "1 x Mayo", "1 x Mayo", "no onion"]
    assert place.fact["ticket"] == whole


def test_a_price_with_a_tax_that_the_backend_does_not_know_makes_no_order() -> None:
    """Row 4 of the comparison with the vendors: paid before tax, the check would stay open."""
    for knob in ({"tax": 8}, {"tax": 0.1}):
        place = Place(**knob)
        outcome = At(place).submit(ordered())
        assert outcome.kind is Kind.REJECTED
        assert words_of(outcome).startswith("price_mismatch")
        assert place.toast.facts()["orders"] == []
    place = Place(tax=8, has_tax=True)
    assert At(place).submit(ordered()).kind is Kind.ACCEPTED
    assert is_cooked(place)


def test_a_tax_that_the_restaurant_adds_between_the_steps_is_undone() -> None:
    place = Place()
    at = At(place)
    answer = place.toast.answer

    def taxing(request: Any) -> Any:
        place.toast.knobs.tax = 8 if request.path.endswith("/orders") else 0
        return answer(request)

    place.toast.answer = taxing  # type: ignore[method-assign]
    outcome = at.submit(ordered())
    assert outcome.kind is Kind.REJECTED
    assert words_of(outcome).startswith("price_mismatch")
    assert (place.fact["voided"], place.fact["paid"]) == (True, 0)


@pytest.mark.parametrize("what", ["before", "after", "twice"])
@pytest.mark.parametrize("path", ["prices", "orders"])
def test_an_order_is_there_once_whatever_reply_is_lost(what: Any, path: str) -> None:
    place = Place()
    at = At(place, Trouble(what, "POST", f"/orders/v2/{path}"))
    assert at.submit(ordered()).kind is Kind.ACCEPTED
    assert is_cooked(place)


@pytest.mark.parametrize("status", [400, 409])
def test_an_order_that_toast_has_is_not_refused(status: int) -> None:
    place = Place(duplicate_status=status)
    at = At(place)
    first, second = at.submit(ordered()), at.submit(ordered())
    assert (first.kind, second) == (Kind.ACCEPTED, first)
    assert is_cooked(place)


def test_nothing_of_the_text_is_missing() -> None:
    """Row 6."""
    place = Place()
    note = "x" * 580 + " allergic to nuts"
    many = [{"name": f"topping {number}"} for number in range(60)]
    order = ordered(line(modifiers=many, notes="well done"), notes=note)
    assert At(place).submit(order).kind is Kind.ACCEPTED
    ticket = " ".join(place.fact["ticket"])
    for text in (note, "well done", *(each["name"] for each in many)):
        assert text in ticket


def test_an_item_without_its_group_is_refused_by_name() -> None:
    """Row 13."""
    place = Place()
    outcome = At(place).submit(ordered(line(sku=BURGER)))
    assert (outcome.kind, BURGER in words_of(outcome)) == (Kind.REJECTED, True)


def test_a_required_option_that_is_missing_is_named_in_toasts_words() -> None:
    """Row 13."""
    place = Place()
    salad = {"sku": f"{SIDES}/{SALAD}", "name": "Salad", "unit_price": 200}
    outcome = At(place).submit(ordered(line(modifiers=[salad]), total=1050))
    assert (outcome.kind, DRESSINGS in words_of(outcome)) == (Kind.REJECTED, True)


def test_an_item_that_toast_lacks_is_named_in_toasts_words() -> None:
    """Row 14."""
    place = Place()
    outcome = At(place).submit(ordered(line(PAID)))
    assert outcome.kind is Kind.REJECTED
    assert words_of(outcome).startswith("item_unavailable")
    assert f"MenuItem {PAID} was not found" in words_of(outcome)


def heard(place: Place) -> list[Any]:
    """What the gateway hears of Toast's messages, in their order."""
    return [each.meaning for each in callbacks_of(place)]


def callbacks_of(place: Place) -> list[Callback]:
    """The callbacks in Toast's messages, in their order."""
    found: list[Callback] = []
    for url, headers, body, _ in place.toast.webhooks.take():
        lower = {name.lower(): value for name, value in headers.items()}
        request = CallbackRequest(url, lower, body, place.clock().timestamp())
        callbacks = TOAST.callbacks(request, MERCHANT)
        assert callbacks is not None
        assert {each.external_id for each in callbacks} <= {place.fact["guid"]}
        found += callbacks
    return found


def test_what_the_kitchen_does_is_heard() -> None:
    """Row 15."""
    place = Place()
    place.toast.webhooks.url, place.toast.webhooks.key = "https://gateway.example.com", KEY
    outcome = At(place).submit(ordered())
    for act in ("ready", "close", "void"):
        place.toast.acts[act](order=outcome.external_id)
    assert heard(place) == [
        Kind.ACCEPTED,
        Lifecycle.PREPARING,
        Lifecycle.READY,
        Lifecycle.COMPLETED,
        Kind.CANCELLED,
    ]


@pytest.mark.parametrize(
    ("act", "meaning"), [("fire", Lifecycle.PREPARING), ("reject", Kind.REJECTED)]
)
def test_an_order_that_needs_approval_is_pending_until_it_is_decided(
    act: str, meaning: object
) -> None:
    place = Place(auto_fires=False)
    place.toast.webhooks.url, place.toast.webhooks.key = "https://gateway.example.com", KEY
    at = At(place)
    assert at.submit(ordered()).kind is Kind.PENDING
    assert heard(place) == []
    place.toast.acts[act](order=place.fact["guid"])
    assert heard(place) == [meaning]
    found = TOAST.look_up(ordered(), MERCHANT, at.send)
    assert found is not None
    assert found.kind is (Kind.ACCEPTED if act == "fire" else Kind.REJECTED)


def test_an_order_that_is_approved_and_not_paid_is_left_to_an_operator() -> None:
    place = Place(auto_fires=False, takes_payments=False)
    place.toast.webhooks.url, place.toast.webhooks.key = "https://gateway.example.com", KEY
    at = At(place)
    assert at.submit(ordered()).kind is Kind.PENDING
    place.toast.acts["fire"](order=place.fact["guid"])
    [callback] = callbacks_of(place)
    assert callback.only_accepted
    found = TOAST.look_up(ordered(), MERCHANT, at.send)
    assert found is not None
    assert (found.kind, found.for_operator) == (Kind.IN_DOUBT, True)
    assert words_of(found).startswith("payment_required")


def test_an_order_whose_double_is_refused_is_not_rejected_though_it_is_not_found() -> None:
    place = Place(found_after=60)
    at = At(place)
    accepted = at.submit(ordered())
    assert at.submit(ordered()).kind is Kind.IN_DOUBT
    place.clock.pass_(seconds=60)
    assert at.submit(ordered()) == accepted
    assert is_cooked(place)


def test_an_order_is_cancelled_by_toasts_id_before_it_is_found_by_ours() -> None:
    place = Place(found_after=60)
    at = At(place)
    known_as = at.submit(ordered()).external_id
    assert at.cancel(ordered().in_ledger(None, None, known_as)).kind is Kind.CANCELLED
    assert place.fact["voided"]


@pytest.mark.parametrize("path", ["prices", "orders"])
@pytest.mark.parametrize("says_when", [True, False])
def test_a_request_too_many_makes_no_order(path: str, says_when: bool) -> None:
    place = Place(says_when=says_when)
    for _ in range(20 if path == "prices" else 19):
        place.ask("GET", "/config/v2/tables")
    outcome = TOAST.submit(ordered(), MERCHANT, At(place).send)
    assert (outcome.kind, outcome.retry_after) == (Kind.RETRY, 1 if says_when else None)
    assert place.toast.facts()["orders"] == []


def test_the_adapters_rate_is_within_toasts() -> None:
    """Row 16: 20 a second, and 10,000 in fifteen minutes; a burst, and evenly after that."""
    clock = Clock()
    rates, limits, started = Rates(clock), TOAST.limits, clock().timestamp()
    terms = QuotaTerms("m", limits.per_second, limits.sustained, None, limits.requests)
    rate, orders, now = Rate(terms, 1.0, -1000.0), 0, 0.0
    while now < 1000.0:
        now = max(now, rate.ready_at(terms.requests))
        clock.pass_(seconds=started + now - clock().timestamp())
        rate.sent(terms.requests, now)
        orders += 1
        assert all(rates.count("orders")[0] for _ in range(limits.requests))
    assert orders > 2500


def test_a_request_too_many_and_an_ended_token_are_waited_for() -> None:
    place = Place()
    for _ in range(20):
        place.ask("GET", "/config/v2/tables")
    refused = At(place).submit(ordered())
    assert (refused.kind, refused.retry_after) == (Kind.RETRY, 1)
    place.clock.pass_(seconds=1)
    place.toast.acts["end_tokens"]()
    assert At(place).submit(ordered()).kind is Kind.RETRY
    assert place.toast.facts()["orders"] == []


def test_a_cancelled_order_is_voided_with_its_payment() -> None:
    place = Place()
    at = At(place)
    assert at.cancel(ordered()).kind is Kind.REJECTED  # before it is there
    at.submit(ordered())
    for _ in range(2):
        assert at.cancel(ordered()).kind is Kind.CANCELLED
    assert (place.fact["voided"], place.fact["paid"]) == (True, 0)


def test_an_order_that_the_guest_has_is_neither_voided_nor_is_its_payment() -> None:
    place = Place()
    at = At(place)
    known_as = at.submit(ordered()).external_id
    place.toast.acts["close"](order=known_as)
    outcome = at.cancel(ordered().in_ledger(None, None, known_as))
    assert (outcome.kind, words_of(outcome)) == (
        Kind.REJECTED,
        "other: the guest has the order: refund it at Toast",
    )
    assert (place.fact["voided"], place.fact["paid"]) == (False, 850)


def test_an_order_combined_with_another_is_made_and_not_told_as_cancelled() -> None:
    """Toast deletes the order of a check that staff combine into another order."""
    place = Place()
    at = At(place)
    known_as = at.submit(ordered()).external_id
    place.toast.acts["combine"](order=known_as)
    outcome = at.cancel(ordered().in_ledger(None, None, known_as))
    assert (outcome.kind, words_of(outcome)) == (
        Kind.REJECTED,
        "other: the restaurant has combined the order with another, or removed it: ask there whether its food is made",
    )
    assert (place.fact["voided"], place.fact["printed_void"]) == (False, 0)
    found = TOAST.look_up(ordered(), MERCHANT, at.send)
    assert found is not None
    assert (found.kind, found.for_operator) == (Kind.IN_DOUBT, True)
    assert words_of(found) == words_of(outcome)
    place.toast.acts["void"](order=known_as)
    assert at.cancel(ordered()).kind is Kind.CANCELLED


def test_a_deleted_check_adds_nothing_to_an_order_and_owes_nothing() -> None:
    """Of two checks of an order that staff combine, Toast deletes one."""
    place = Place()
    at = At(place)
    at.submit(ordered())
    [check] = place.toast.orders[0].content["checks"]
    unpaid = {**check, "deleted": True, "paymentStatus": "OPEN", "payments": []}
    place.toast.orders[0].content["checks"].append(unpaid)
    found = TOAST.look_up(ordered(), MERCHANT, at.send)
    assert found is not None
    assert (found.kind, found.reason) == (Kind.ACCEPTED, None)


def test_an_order_for_nothing_is_taken() -> None:
    place = Place()
    assert At(place).submit(ordered(line(CATCH, 0), total=0)).kind is Kind.ACCEPTED
    assert is_cooked(place)


TAKEN: list[tuple[str, Body, str, list[str]]] = [
    (
        "a delivery (row 9)",
        {
            "order_type": "delivery",
            "delivery": {"address": ADDRESS, "instructions": "ring twice"},
        },
        "DELIVERY",
        ["1 Main St", "ring twice"],
    ),
    (
        "dine-in at a table (row 9)",
        {"order_type": "dine_in", "dine_in": {"table": "7", "guests": 2}},
        "DINE_IN",
        ["Table 7"],
    ),
    ("a way of the backend's own", {"fulfillment": "at gate 3"}, "TAKE_OUT", ["at gate 3"]),
    ("curbside", {"fulfillment": "curbside"}, "TAKE_OUT", ["Curbside pickup"]),
    ("dine-in by a hint", {"fulfillment": "Dine-in"}, "DINE_IN", []),
    ("no guest (row 9)", {"customer": None}, "TAKE_OUT", ["order/1"]),
    ("no phone number (row 9)", {"customer": {"name": "Ada"}}, "TAKE_OUT", ["Ada"]),
    ("no name (row 9)", {"customer": {"phone": "5550100199"}}, "TAKE_OUT", ["5550100199"]),
    (
        "a phone number that Toast does not take (row 9)",
        {"customer": {**ADA, "phone": "555"}},
        "TAKE_OUT",
        ["Ada Lovelace", "555"],
    ),
    (
        "an e-mail address with a plus, which the definition does not take",
        {"customer": {**ADA, "email": "ada+pizza@example.com"}},
        "TAKE_OUT",
        ["Ada Lovelace"],
    ),
    (
        "modifiers of modifiers (row 6)",
        {
            "items": [
                line(
                    modifiers=[
                        {
                            "sku": f"{SIDES}/{SALAD}",
                            "name": "Salad",
                            "unit_price": 200,
                            "modifiers": [
                                {
                                    "sku": f"{DRESSINGS}/{RANCH}",
                                    "name": "Ranch",
                                    "unit_price": 25,
                                    "modifiers": [{"name": "on the side"}],
                                }
                            ],
                        }
                    ]
                )
            ],
            "total": 1075,
        },
        "TAKE_OUT",
        ["Salad", "Ranch", "on the side"],
    ),
    (
        "notes of a modifier (row 6)",
        {"items": [line(modifiers=[{**mayo(), "notes": "a lot"}])], "total": 900},
        "TAKE_OUT",
        ["a lot"],
    ),
    (
        "a discount (row 6)",
        {
            "discounts": [{"name": "Voucher", "amount": 100, "id": "voucher"}],
            "total": 750,
        },
        "TAKE_OUT",
        [],
    ),
    ("what guest and courier say at the counter", {"display_id": "A-17"}, "TAKE_OUT", ["A-17"]),
]


def test_the_backends_word_is_on_the_tab_unless_another_field_says_the_same() -> None:
    for fields, merchant, tab in (
        ({"fulfillment": "dine-in"}, MERCHANT, "Ada Lovelace / dine-in"),
        ({"fulfillment": "dine-in"}, WHOLE, "Ada Lovelace"),
        ({"fulfillment": "Pick-up"}, MERCHANT, "Ada Lovelace"),
        ({"fulfillment": " "}, MERCHANT, "Ada Lovelace"),
        ({"fulfillment": "お持ち帰り"}, MERCHANT, "Ada Lovelace / お持ち帰り"),
        ({"fulfillment": "delivery", "order_type": "pickup"}, MERCHANT, "Ada Lovelace / delivery"),
        ({"fulfillment": "pickup 18:30"}, MERCHANT, "Ada Lovelace / pickup 18:30"),
        ({"fulfillment": "Dine-in 7"}, WHOLE, "Ada Lovelace / Dine-in 7"),
        ({"fulfillment": "curbside 4"}, MERCHANT, "Ada Lovelace / curbside 4"),
        (
            {"fulfillment": "delivery 3", "delivery": {"address": ADDRESS}},
            WHOLE,
            "Ada Lovelace / delivery 3",
        ),
    ):
        place = Place()
        assert At(place, merchant=merchant).submit(ordered(**fields)).kind is Kind.ACCEPTED
        assert place.toast.orders[0].content["checks"][0]["tabName"] == tab


@pytest.mark.parametrize(
    ("fields", "behavior", "words"),
    [pytest.param(*rest, id=name) for name, *rest in TAKEN],
)
def test_every_order_that_toast_can_take_is_cooked_as_it_was_ordered(
    fields: Body, behavior: str, words: list[str]
) -> None:
    place = Place()
    assert At(place, merchant=WHOLE).submit(ordered(**fields)).kind is Kind.ACCEPTED
    place.clock.pass_(hours=3)
    assert is_cooked(place, behavior)
    ticket = " ".join(place.fact["ticket"])
    for each in words:
        assert each in ticket


def test_an_order_for_later_is_cooked_for_its_time() -> None:
    place = Place(prep_minutes=20)
    times = {"placed_at": "2026-11-20T12:00:00Z", "deliver_by": "2026-11-20T12:10:00Z"}
    order = ordered(scheduled_for="2026-11-20T09:00:00-05:00", **times)
    assert At(place).submit(order).kind is Kind.ACCEPTED
    place.clock.pass_(minutes=99)
    assert (place.fact["approvalStatus"], place.fact["printed"]) == ("FUTURE", 0)
    place.clock.pass_(minutes=1)
    assert is_cooked(place)


def test_a_fee_and_a_tax_are_paid_as_agreed() -> None:
    place = Place(tax=10)
    order = ordered(
        total=1280,
        order_type="delivery",
        delivery={"address": ADDRESS},
        fees=[{"kind": "delivery", "name": "Courier", "amount": 345, "taxable": False}],
        taxes=[{"name": "Sales", "amount": 85, "inclusive": False}],
    )
    at = At(place, merchant=WHOLE)
    assert at.submit(order).kind is Kind.ACCEPTED
    assert is_cooked(place, "DELIVERY")


def test_an_order_for_a_restaurant_that_is_offline_waits_for_its_approval() -> None:
    place = Place(is_online=False)
    at = At(place)
    assert at.submit(ordered(line(SOUP, 899), total=899)).kind is Kind.PENDING
    place.toast.knobs.is_online = True
    place.clock.pass_(minutes=5)
    found = TOAST.look_up(ordered(line(SOUP, 899), total=899), MERCHANT, at.send)
    assert found is not None
    assert found.kind is Kind.ACCEPTED
    assert is_cooked(place)
