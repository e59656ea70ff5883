"""What is true at a strict Clover when the adapter says ``accepted``, ``rejected`` or ``cancelled``.

Each expected failure is a fault of today's adapter, numbered as in the list that the work follows.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Send, Transport
from pos_gateway.transport.guard import Guard
from testkit.patience import PATIENCE
from testkit.vendors.clover import Clover
from testkit.vendors.server import VendorServer
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.vendors import CLOVER, order_of

Body = dict[str, Any]
ADAPTER = CloverAdapter()
#: Catalog: our sku to Clover's id.
CATALOG = {"burger": "BURGER", "cheese": "CHEESE"}
ALLERGY = "allergy: nuts"
TOKEN = {"Authorization": "Bearer api-token"}
NOT_PAID = "11: no payment is made: the till asks the guest to pay again"
NOT_PRINTED = "11: no print event is asked for: nothing is on paper"


class Shop:
    """A Clover merchant, and the gateway's adapter on the way there."""

    def __init__(self) -> None:
        self._ahead = timedelta()
        self.clover = Clover(lambda: datetime.now(UTC) + self._ahead)
        self.way = Way(self.clover)
        self.send = VendorSend(self.way, {**TOKEN, "User-Agent": "pos-gateway/1"})
        self.merchant: Merchant = CLOVER.merchant

    def passes(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)

    def submit(self, order: Order) -> Outcome:
        return ADAPTER.submit(order, self.merchant, self.send)

    def delivered(self, order: Order) -> Outcome:
        """The outcome in the end: what is in doubt is looked up, what is unknown is sent."""
        known: Outcome | None = None
        is_in_doubt = False
        while known is None:
            try:
                known = self.look_up(order) if is_in_doubt else self.submit(order)
                is_in_doubt = False
            except NoValidReply:
                is_in_doubt = True
        return known

    def look_up(self, order: Order) -> Outcome | None:
        return ADAPTER.look_up(order, self.merchant, self.send)

    def cancel(self, order: Order) -> Outcome:
        return ADAPTER.cancel(order, self.merchant, self.send)

    def lose(self, what: Any, method: str, path: str = ".*") -> None:
        self.way.troubles.append(Trouble(what, method, path))

    @property
    def standing(self) -> list[Body]:
        return [each for each in self.clover.facts() if not each["is_deleted"]]

    @property
    def fact(self) -> Body:
        [fact] = self.standing
        return fact


@pytest.fixture
def shop() -> Shop:
    return Shop()


def code_of(outcome: Outcome | None) -> str:
    assert outcome is not None
    assert outcome.reason is not None
    return outcome.reason.code


def burger(*toppings: Body, **fields: Any) -> Body:
    return {"sku": "burger", "name": "Burger", "quantity": 1, "unit_price": 850, **fields} | (
        {"modifiers": list(toppings)} if toppings else {}
    )


# Paid, printed, shown (row 11)


@pytest.mark.xfail(strict=True, reason=NOT_PAID)
@pytest.mark.parametrize("tip", [0, 200])
def test_an_accepted_order_is_paid_once_and_as_agreed(shop: Shop, tip: int) -> None:
    assert shop.submit(order_of(tip=tip)).kind is Kind.ACCEPTED
    assert (shop.fact["payments"], shop.fact["tips"]) == ([1700], tip)


@pytest.mark.xfail(strict=True, reason=NOT_PRINTED)
def test_an_accepted_order_is_on_paper_once(shop: Shop) -> None:
    assert shop.submit(order_of()).kind is Kind.ACCEPTED
    assert len(shop.fact["tickets"]) == 1


@pytest.mark.xfail(strict=True, reason=NOT_PRINTED)
def test_an_order_that_costs_nothing_is_on_paper_and_not_paid(shop: Shop) -> None:
    """Clover's payments have a positive amount."""
    order = order_of(items=[burger(unit_price=0)], total=0)
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert shop.fact["payments"] == []
    assert len(shop.fact["tickets"]) == 1


@pytest.mark.xfail(strict=True, reason=NOT_PAID)
@pytest.mark.parametrize("what", ["before", "after"])
@pytest.mark.parametrize("step", ["atomic_order/orders", "payments", "print_event"])
def test_whatever_reply_is_lost_an_accepted_order_is_paid_and_on_paper_once(
    shop: Shop, step: str, what: Any
) -> None:
    shop.lose(what, "POST", f".*/{step}")
    assert shop.delivered(order_of()).kind is Kind.ACCEPTED
    assert shop.fact["payments"] == [1700]
    assert len(shop.fact["tickets"]) == 1


@pytest.mark.xfail(
    strict=True, reason="11: no state is sent: where Clover sets none, staff do not see the order"
)
def test_an_accepted_order_is_shown_where_clover_sets_no_state(shop: Shop) -> None:
    shop.clover.knobs.hides_stateless = True
    assert shop.submit(order_of()).kind is Kind.ACCEPTED
    assert shop.fact["is_shown"]


@pytest.mark.xfail(strict=True, reason="11: the display id is sent nowhere")
def test_the_display_id_is_the_orders_title(shop: Shop) -> None:
    assert shop.submit(order_of(display_id="A7")).kind is Kind.ACCEPTED
    [order] = shop.clover.restaurant.orders.values()
    assert order.get("title") == "A7"


# Totals (rows 2, 5)


def test_an_order_that_clover_taxes_is_rejected_with_both_totals_and_does_not_stand(
    shop: Shop,
) -> None:
    shop.clover.shop.add_tax(9)
    outcome = shop.submit(order_of())
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert outcome.reason is not None
    assert "1853" in outcome.reason.message
    assert "1700" in outcome.reason.message
    assert shop.standing == []


@pytest.mark.xfail(
    strict=True, reason="2: the order is made, then deleted: a kitchen may have begun"
)
def test_an_order_that_clover_prices_otherwise_is_never_made(shop: Shop) -> None:
    """``/atomic_order/checkouts`` has the total beforehand."""
    shop.clover.shop.add_tax(9)
    assert code_of(shop.submit(order_of())) == "price_mismatch"
    assert shop.clover.facts() == []


def test_an_item_that_clover_sells_at_another_price_is_no_surprise_to_the_guest(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    shop.clover.knobs.own_prices = True
    outcome = shop.submit(order_of(items=[burger(unit_price=800)], total=800))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert shop.standing == []


@pytest.mark.parametrize("what", ["before", "after"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("tax", [0, 9])
def test_whatever_reply_is_lost_there_is_at_most_one_order_and_at_our_total(
    shop: Shop, method: str, what: str, tax: int
) -> None:
    if tax:
        shop.clover.shop.add_tax(tax)
    shop.lose(what, method)
    known = shop.delivered(order_of())
    assert known.kind is (Kind.REJECTED if tax else Kind.ACCEPTED)
    assert [each["total"] for each in shop.standing] == [1700] * (not tax)


@pytest.mark.xfail(strict=True, reason="Clover has no key, and the second order is not looked for")
def test_an_order_that_arrives_twice_stands_once(shop: Shop) -> None:
    """A proxy may repeat a POST."""
    shop.lose("twice", "POST")
    assert shop.submit(order_of()).kind is Kind.ACCEPTED
    assert len(shop.standing) == 1


# Texts (rows 3, 6, 12)


@pytest.mark.parametrize("cuts", [False, True])
def test_a_long_note_is_whole_whatever_clover_does_with_longer_ones(shop: Shop, cuts: bool) -> None:
    shop.clover.knobs.cuts_texts = cuts
    order = order_of(notes="x" * 600 + ALLERGY)
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert shop.fact["note"].endswith(ALLERGY)


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("number", [10, 60])
def test_all_toppings_that_are_paid_for_are_in_the_kitchen_or_the_order_is_refused(
    shop: Shop, number: int, cuts: bool
) -> None:
    shop.clover.knobs.cuts_texts = cuts
    toppings = [{"name": f"topping {each}", "unit_price": 10} for each in range(number)]
    order = order_of(items=[burger(*toppings, notes="well done")], total=850 + 10 * number)
    outcome = shop.submit(order)
    if outcome.kind is Kind.REJECTED:
        assert (code_of(outcome), shop.clover.facts()) == ("text_too_long", [])
        return
    [made] = shop.clover.restaurant.orders.values()
    [line] = made["lineItems"]
    assert all(each["name"] in line["note"] for each in toppings)
    assert line["note"].endswith("well done")


@pytest.mark.parametrize("size", [127, 128, 255])
def test_an_items_name_is_whole_or_the_order_is_refused(shop: Shop, size: int) -> None:
    shop.clover.knobs.cuts_texts = True
    order = order_of(items=[burger(name="x" * (size - 1) + "!")], total=850)
    outcome = shop.submit(order)
    assert (outcome.kind is Kind.ACCEPTED) is (size == 127)
    names = [
        line["name"]
        for each in shop.clover.restaurant.orders.values()
        for line in each["lineItems"]
    ]
    assert all(each.endswith("!") for each in names)


def test_inventory_modifiers_reach_the_ticket_at_our_prices(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    cheese = {"sku": "cheese", "name": "cheese", "quantity": 2, "unit_price": 70}
    order = order_of(items=[burger(cheese)], total=990)
    assert shop.submit(order).kind is Kind.ACCEPTED
    [made] = shop.clover.restaurant.orders.values()
    [line] = made["lineItems"]
    assert [(each["name"], each["amount"]) for each in line["modifications"]] == [
        ("2 x cheese", 140)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"taxes": [{"name": "VAT", "amount": 70}]},
        {"fees": [{"name": "bag", "amount": 30}]},
        {"discounts": [{"name": "Tuesday", "amount": 200}]},
        {"delivery": {"address": "1 Main St"}},
    ],
)
def test_what_clover_has_no_place_for_is_refused_by_name(shop: Shop, fields: Body) -> None:
    outcome = shop.submit(order_of(**fields))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "unsupported_field")
    assert outcome.reason is not None
    assert next(iter(fields)) in outcome.reason.message
    assert shop.clover.facts() == []


# Look-ups (rows 10, 20, 21)


@pytest.mark.parametrize("tax", [0, 9, 25])
def test_an_order_whose_note_was_lost_is_never_unknown(shop: Shop, tax: int) -> None:
    shop.clover.knobs.loses_note = True
    if tax:
        shop.clover.shop.add_tax(tax)
    shop.lose("after", "POST")
    with pytest.raises(NoValidReply):
        shop.submit(order_of())
    known = shop.look_up(order_of())
    assert known is not None
    assert known.kind is Kind.IN_DOUBT
    assert len(shop.standing) == 1


@pytest.mark.xfail(
    strict=True, reason="10: staff's own note hides the order: it is unknown, and sent again"
)
def test_an_order_whose_note_staff_have_replaced_is_never_unknown(shop: Shop) -> None:
    shop.lose("after", "POST")
    with pytest.raises(NoValidReply):
        shop.submit(order_of())
    shop.clover.restaurant.edit(shop.fact["id"], note="[table 5] no hurry")
    assert shop.look_up(order_of()) is not None


@pytest.mark.parametrize(
    "spelling", [{"EUR": "eur"}, {"open": "OPEN"}, {"open": "Paid", "EUR": "Eur"}]
)
def test_an_order_is_known_in_whatever_spelling(shop: Shop, spelling: dict[str, str]) -> None:
    shop.clover.knobs.spelling = spelling
    shop.lose("after", "POST")
    with pytest.raises(NoValidReply):
        shop.submit(order_of())
    known = shop.look_up(order_of())
    assert known is not None
    assert known.kind is Kind.ACCEPTED


@pytest.mark.xfail(strict=True, reason="21: pages of all orders of the time are read, up to 910")
def test_an_order_is_found_among_many_by_one_request(shop: Shop) -> None:
    order = order_of()
    assert shop.submit(order).kind is Kind.ACCEPTED
    for number in range(150):
        shop.submit(order_of(f"other/{number}"))
        shop.passes(1)
    shop.send.requests.clear()
    known = shop.look_up(order)
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    assert len(shop.send.requests) == 1


def test_a_look_up_whose_filters_are_ignored_does_not_take_another_order_for_ours(
    shop: Shop,
) -> None:
    fields = ("note", "title", "externalReferenceId", "createdTime")
    shop.clover.knobs.ignored_filters = fields
    assert shop.submit(order_of("another")).kind is Kind.ACCEPTED
    known = shop.look_up(order_of())
    assert known is None


# Access and rates (row 8)


@pytest.mark.parametrize("act", ["ends", "revoked"])
def test_a_token_that_has_ended_makes_an_order_wait(shop: Shop, act: str) -> None:
    if act == "revoked":
        shop.clover.access.revoke()
    else:
        pair = shop.clover.access.pair()
        shop.send.headers["Authorization"] = f"Bearer {pair['access_token']}"
        assert shop.submit(order_of("before")).kind is Kind.ACCEPTED
        shop.clover.restaurant.delete(shop.fact["id"])
        shop.passes(pair["access_token_expiration"] - datetime.now(UTC).timestamp())
    outcome = shop.submit(order_of())
    assert (outcome.kind, code_of(outcome)) == (Kind.RETRY, "credential_refused")
    assert shop.standing == []


def test_a_rate_that_is_exceeded_makes_an_order_wait_as_long_as_clover_says(shop: Shop) -> None:
    shop.clover.knobs.takes = 5
    for number in range(5):
        shop.submit(order_of(f"order/{number}"))
    outcome = shop.submit(order_of())
    assert (outcome.kind, outcome.retry_after) == (Kind.RETRY, 1)
    assert len(shop.standing) == 5


# What the restaurant does


def test_an_item_that_is_sold_out_is_rejected_by_name(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    shop.clover.knobs.refuses_unavailable = True
    shop.clover.shop.set_available("BURGER", False)
    outcome = shop.submit(order_of(items=[burger()], total=850))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "item_unavailable")


def test_an_order_is_cancelled_until_it_is_paid(shop: Shop) -> None:
    order = order_of()
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert shop.cancel(order).kind is Kind.CANCELLED
    assert shop.standing == []


def test_a_paid_order_is_not_cancelled_and_stays(shop: Shop) -> None:
    order = order_of()
    assert shop.submit(order).kind is Kind.ACCEPTED
    known = shop.clover.restaurant.order(shop.fact["id"])
    shop.clover.restaurant.pay(known, {"id": "P", "amount": 1700})
    outcome = shop.cancel(order)
    assert outcome.kind is Kind.REJECTED
    assert shop.fact["payments"] == [1700]


def test_a_deletion_is_heard_by_webhook(shop: Shop) -> None:
    auth = {"type": "none", "webhook_signature_key": "auth-code"}
    record = {"id": "fast-1", "adapter": "clover", "pos": {"merchant_id": "M1"}, "auth": auth}
    merchant = Merchant.parse({"base_url": "https://pos.example.com", **record})
    webhooks = shop.clover.webhooks
    webhooks.url, webhooks.key = "https://orders.example.com/", "auth-code"
    accepted = shop.submit(order_of())
    shop.clover.restaurant.delete(shop.fact["id"])
    heard = []
    for each in webhooks.take():
        headers = {name.lower(): value for name, value in each.headers.items()}
        request = CallbackRequest(each.url, headers, each.body, datetime.now(UTC).timestamp())
        heard += ADAPTER.callbacks(request, merchant) or []
    assert [(each.meaning, each.external_id) for each in heard] == [
        (Kind.CANCELLED, accepted.external_id)
    ]


@pytest.mark.xfail(
    strict=True, reason="21: an order that the shop has deleted is looked for in vain: unknown"
)
def test_an_order_that_staff_have_deleted_is_cancelled_and_not_unknown(shop: Shop) -> None:
    order = order_of()
    accepted = shop.submit(order)
    shop.clover.restaurant.delete(shop.fact["id"])
    known = shop.look_up(order.in_ledger(None, None, accepted.external_id))
    assert known is not None
    assert known.kind is Kind.CANCELLED


# Over a socket


def test_the_gateways_own_requests_are_taken_by_a_strict_clover() -> None:
    """Rows 21 and 2: its User-Agent has a version; a tax that the merchant adds is found out."""
    transport = Transport(guard=Guard(allow_all=True))
    with VendorServer("clover") as server:
        record = {"id": "fast-1", "adapter": "clover", "base_url": server.url}
        merchant = Merchant.parse({**record, "pos": {"merchant_id": "M1", "order_type": "PICKUP"}})
        send = Send(
            lambda request: transport.send(
                request.adding(TOKEN), key="fast-1", connections=1, seconds=PATIENCE
            )
        )
        assert ADAPTER.submit(order_of(), merchant, send).kind is Kind.ACCEPTED
        server.act("add_tax", percent=9)
        assert ADAPTER.submit(order_of("second"), merchant, send).kind is Kind.REJECTED
        first, second = server.facts()
        assert (first["is_shown"], first["total"], second["is_deleted"]) == (True, 1700, True)
