"""The simulated Clover: rules that its documents state, and facts that are true."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import requests

from testkit.patience import PATIENCE
from testkit.vendors.clover import Clover, Shop
from testkit.vendors.clover.pricing import Totals, totals
from testkit.vendors.http import VendorReply
from testkit.vendors.server import VendorServer
from testkit.vendors.way import arrived

Body = dict[str, Any]
HEADERS = {"User-Agent": "test/1", "Content-Type": "application/json"}
AD_HOC: Body = {"name": "Burger", "price": 850}
BURGER: Body = {"item": {"id": "BURGER"}}
PAYMENT: Body = {"tender": {"id": "EXTERNAL"}, "amount": 850}


class Merchant:
    """A Clover merchant, its clock, and an app with its token."""

    def __init__(self, **shop: Any) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)
        self.clover = Clover(lambda: self.now, Shop(**shop))
        self.token = "api-token"

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def call(
        self, method: str, path: str, body: object = None, *, merchant: str = "M1", **query: Any
    ) -> VendorReply:
        url = f"/v3/merchants/{merchant}{path}?{urlencode(query, doseq=True)}"
        return self.raw(method, url, body)

    def raw(self, method: str, url: str, body: object = None, **headers: str) -> VendorReply:
        content = b"" if body is None else json.dumps(body).encode()
        sent = {**HEADERS, "Authorization": f"Bearer {self.token}", **headers}
        return self.clover.answer(arrived(method, url, sent, content))

    def cart(self, *lines: Body, kind: str = "orders", **cart: Any) -> VendorReply:
        return self.call(
            "POST", f"/atomic_order/{kind}", {"orderCart": {"lineItems": list(lines), **cart}}
        )

    def order(self, *lines: Body, **cart: Any) -> Body:
        return read(self.cart(*(lines or (AD_HOC,)), **cart))

    def pay(self, order: Body, **fields: Any) -> VendorReply:
        return self.call("POST", f"/orders/{order['id']}/payments", {**PAYMENT, **fields})

    def print(self, order: Body) -> Body:
        return read(self.call("POST", "/print_event", {"orderRef": {"id": order["id"]}}))

    @property
    def fact(self) -> Body:
        [fact] = self.clover.facts()
        return fact


def read(reply: VendorReply) -> Body:
    """The body of a reply that is a success."""
    assert reply.status == 200, reply.body
    assert isinstance(reply.body, dict)
    return reply.body


def message(reply: VendorReply) -> tuple[int, str, str]:
    assert isinstance(reply.body, dict)
    return reply.status, reply.body["message"], reply.body.get("details", "")


def ids(reply: VendorReply) -> list[str]:
    return [each["id"] for each in read(reply)["elements"]]


# Prices


def salad(price: int, rates: list[Body], discounts: list[Body]) -> Body:
    toppings = [{"amount": 100}, {"amount": 100}]
    return {
        "price": price,
        "modifications": toppings,
        "discounts": discounts,
        "taxRates": rates,
    }


def salads(first: list[Body], second: list[Body], **how: Any) -> Totals:
    """The order of "Calculate order totals"."""
    caesar = salad(1200, first, discounts=[{"amount": -100}])
    greek = salad(1000, second, discounts=[{"percentage": 25}])
    return totals([caesar, greek], [{"percentage": 15}], 50_000, **how)


A, B = {"id": "A", "rate": 1_000_000}, {"id": "B", "rate": 500_000}


def test_an_order_comes_to_what_clovers_own_example_comes_to() -> None:
    found = salads([A], [B])
    assert (found.subtotal, found.service_charge, found.tax) == (1870, 94, 149)
    assert found.total == 2113


def test_one_rate_is_rounded_once_or_for_each_line_as_the_document_has_both() -> None:
    assert salads([A], [A]).tax == 187
    assert salads([A, B], [A, B], each_line=True).tax == 281


def test_an_orders_discount_in_cents_lowers_the_taxes() -> None:
    lines = [salad(1200, [A], discounts=[]), salad(800, [B], discounts=[])]
    found = totals(lines, [{"amount": -600}])
    assert (found.subtotal, [each["amount"] for each in found.taxes]) == (1800, [105, 38])


def test_vat_is_within_the_prices() -> None:
    found = salads([A], [A], is_vat=True)
    assert (found.total, found.tax) == (1870 + 94, 170)


@pytest.mark.parametrize("knob", [False, True])
def test_a_checkout_shows_the_total_that_the_order_gets_and_makes_nothing(knob: bool) -> None:
    merchant = Merchant()
    merchant.clover.knobs.taxes_each_line = knob
    merchant.clover.shop.add_tax(9)
    lines = [BURGER, {**BURGER, "price": 35}, AD_HOC]
    shown = read(merchant.cart(*lines, kind="checkouts"))
    assert merchant.clover.facts() == []
    made = merchant.order(*lines)
    assert shown["total"] == made["total"] == merchant.fact["total"]
    assert shown["subtotal"] + shown["totalTaxAmount"] == shown["total"]


def test_an_order_without_taxes_by_request_has_none() -> None:
    merchant = Merchant()
    merchant.clover.shop.add_tax(9)
    assert merchant.order(AD_HOC, taxRemoved="true")["total"] == 850


@pytest.mark.parametrize(
    ("line", "total"),
    [
        (BURGER, 850),
        ({**BURGER, "price": 900}, 900),
        ({**BURGER, "modifications": [{"modifier": {"id": "CHEESE"}}]}, 900),
        # "If you do not pass a modId, other modifier fields are ignored."
        ({**BURGER, "modifications": [{"name": "Gold", "amount": 9000}]}, 850),
        # Both a name and an amount override the inventory's.
        ({**BURGER, "modifications": [{"modifier": {"id": "CHEESE"}, "amount": 70}]}, 900),
        (
            {**BURGER, "modifications": [{"id": "CHEESE", "name": "2 x cheese", "amount": 100}]},
            950,
        ),
        # A unit quantity counts for items by unit alone.
        ({**AD_HOC, "unitQty": 2000}, 850),
        ({"item": {"id": "NUTS"}, "unitQty": 250}, 500),
        ({**AD_HOC, "discounts": [{"name": "Tuesday", "amount": -200}]}, 650),
        ({**AD_HOC, "discounts": [{"name": "All of it", "amount": -9000}]}, 0),
    ],
)
def test_a_line_comes_to(line: Body, total: int) -> None:
    merchant = Merchant()
    merchant.order(line)
    assert merchant.fact["total"] == total


def test_the_inventorys_prices_are_charged_where_the_knob_says_so() -> None:
    merchant = Merchant()
    merchant.clover.knobs.own_prices = True
    assert merchant.order({**BURGER, "price": 1})["total"] == 850


# Refusals


@pytest.mark.parametrize(
    ("cart", "expected"),
    [
        ({}, "cart_is_empty_or_missing"),
        ({"lineItems": []}, "cart_is_empty_or_missing"),
        ({"lineItems": [{}]}, "bad_request"),
        ({"lineItems": [{"name": "Air"}]}, "bad_request"),
        ({"lineItems": [{"item": {"id": "NONE"}}]}, "item_does_not_exist NONE"),
        (
            {"lineItems": [{**BURGER, "modifications": [{"modifier": {"id": "NONE"}}]}]},
            "invalid_modifier NONE",
        ),
        ({"serviceCharge": {"id": "NONE"}}, "service_charge_does_not_exist NONE"),
        ({"discounts": [{"name": "Up", "amount": 1}]}, "invalid_discount_attribute"),
        ({"discounts": [{"name": "Free"}]}, "invalid_discount_attribute"),
        ({"discounts": [{"amount": -1}]}, "invalid_discount_attribute"),
        ({"orderType": {"id": "NONE"}}, "bad_request"),
        ({"currency": "USD"}, "bad_request"),
        ({"lineItems": [{**AD_HOC, "price": -1}]}, "bad_request"),
        ({"lineItems": [{**AD_HOC, "price": 8.5}]}, "bad_request"),
        ({"lineItems": [{**AD_HOC, "quantity": 2}]}, "bad_request"),
        ({"lineItems": [AD_HOC] * 2501}, "bad_request"),
        ({"notes": "no nuts"}, "bad_request"),
    ],
)
def test_a_cart_is_refused(cart: Body, expected: str) -> None:
    merchant = Merchant()
    sent = {"orderCart": {"lineItems": [AD_HOC], **cart} if cart else {}}
    for kind in ("orders", "checkouts"):
        status, said, details = message(merchant.call("POST", f"/atomic_order/{kind}", sent))
        wanted, _, record = expected.partition(" ")
        assert (status, said) == (400, wanted)
        assert details == record or not record
    assert merchant.clover.facts() == []


@pytest.mark.parametrize(
    ("most", "cart"),
    [
        (2047, lambda words: {"note": words}),
        (127, lambda words: {"title": words}),
        (12, lambda words: {"externalReferenceId": words}),
        (127, lambda words: {"lineItems": [{**AD_HOC, "name": words}]}),
        (255, lambda words: {"lineItems": [{**AD_HOC, "note": words}]}),
        (64, lambda words: {"discounts": [{"name": words, "amount": -1}]}),
        (
            255,
            lambda words: {
                "lineItems": [
                    {**BURGER, "modifications": [{"id": "CHEESE", "name": words, "amount": 1}]}
                ]
            },
        ),
    ],
)
def test_a_text_that_is_too_long_is_refused_or_cut_by_a_knob(most: int, cart: Any) -> None:
    merchant = Merchant()
    whole = {"lineItems": [AD_HOC]}
    assert merchant.cart(**{**whole, **cart("x" * most)}).status == 200
    assert merchant.cart(**{**whole, **cart("x" * most + "!")}).status == 400
    merchant.clover.knobs.cuts_texts = True
    merchant.cart(**{**whole, **cart("x" * most + "!")})
    first, second = merchant.clover.restaurant.orders.values()
    assert "!" not in json.dumps(second)
    assert "x" * most in json.dumps(second)
    assert first["total"] == second["total"]


def test_what_is_sold_out_or_hidden_is_taken_unless_a_knob_says_otherwise() -> None:
    merchant = Merchant()
    merchant.clover.acts["set_available"]("BURGER", False)
    merchant.clover.acts["hide_order_type"]("PICKUP")
    assert merchant.cart(BURGER).status == 200
    assert merchant.cart(AD_HOC, orderType={"id": "PICKUP"}).status == 200
    merchant.clover.knobs.refuses_unavailable = merchant.clover.knobs.refuses_hidden = True
    assert message(merchant.cart(BURGER))[1] == "item_does_not_exist"
    assert merchant.cart(AD_HOC, orderType={"id": "PICKUP"}).status == 400


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("POST", "/v3/merchants/M1/orders/O1/print_event", 405),
        ("GET", "/v3/merchants/M1/atomic_order/orders", 405),
        ("GET", "/v3/merchants/M2/orders", 401),
        ("GET", "/v3/merchants/M1/orders/NONE", 404),
        ("DELETE", "/v3/merchants/M1/orders/NONE", 404),
        ("GET", "/v3/merchants/M1/print_event/NONE", 400),
        ("GET", "/v3/merchants/M1/orders?filter=employee=E1", 400),
        ("GET", "/v3/merchants/M1/orders?filter=createdTime>=now", 400),
        ("GET", "/v3/merchants/M1/orders?expand=lineItems,payments,refunds,discounts", 400),
    ],
)
def test_a_request_is_refused(method: str, url: str, status: int) -> None:
    assert Merchant().raw(method, url).status == status


def test_a_body_is_json_by_header_and_a_user_agent_has_a_version() -> None:
    merchant, path = Merchant(), "/v3/merchants/M1/atomic_order/orders"
    cart = {"orderCart": {"lineItems": [AD_HOC]}}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert merchant.raw("POST", path, cart, **form).status == 415
    assert merchant.raw("POST", path, cart, **{"User-Agent": "test"}).status == 400
    assert merchant.raw("POST", path, [cart]).status == 400
    assert merchant.clover.facts() == []


# Orders


def test_all_that_acceptance_promises_is_reached_by_four_calls() -> None:
    merchant = Merchant()
    merchant.clover.knobs.hides_stateless = merchant.clover.knobs.taxes_each_line = True
    merchant.clover.shop.add_tax(9)
    words = {"title": "A7", "note": "[order/1] allergy: nuts", "state": "open"}
    total = read(merchant.cart(BURGER, kind="checkouts", **words))["total"]
    order = merchant.order(BURGER, **words)
    merchant.pay(order, amount=total, tipAmount=100, externalPaymentId="x" * 32)
    merchant.print(order)
    fact = merchant.fact
    assert (fact["is_shown"], fact["payments"], fact["tips"]) == (True, [total], 100)
    [ticket] = fact["tickets"]
    assert (ticket["title"], ticket["note"]) == ("A7", words["note"])


def test_an_order_is_shown_paid_and_locked_and_not_deleted_any_more() -> None:
    merchant = Merchant()
    order = merchant.order(AD_HOC, note="no nuts", title="A7")
    assert (order["state"], merchant.fact["is_shown"]) == ("open", True)
    payment = read(merchant.pay(order, tipAmount=100, externalPaymentId="ours"))
    assert (merchant.fact["payments"], merchant.fact["tips"]) == ([850], 100)
    path = f"/orders/{order['id']}"
    found = read(merchant.call("GET", path, expand="payments,lineItems"))
    assert (found["state"], found["paymentState"]) == ("locked", "PAID")
    assert [each["externalPaymentId"] for each in found["payments"]["elements"]] == ["ours"]
    assert merchant.call("DELETE", path).status == 400
    assert (payment["amount"], merchant.fact["is_deleted"]) == (850, False)
    merchant.clover.acts["refund"](order["id"])
    merchant.clover.acts["delete"](order["id"])
    assert (merchant.fact["refunded"], merchant.fact["is_deleted"]) == (850, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": 0},
        {"amount": -1},
        {"tender": {"id": "CARD"}},
        {"tender": {"id": "NONE"}},
        {"tender": None},
        {"externalPaymentId": "x" * 33},
    ],
)
def test_a_payment_is_refused(fields: Body) -> None:
    merchant = Merchant()
    assert merchant.pay(merchant.order(), **fields).status == 400
    assert merchant.fact["payments"] == []


def test_an_order_can_be_paid_in_part_and_twice() -> None:
    merchant = Merchant()
    order = merchant.order()
    merchant.pay(order, amount=849)
    path = f"/orders/{order['id']}"
    assert read(merchant.call("GET", path))["paymentState"] == "PARTIALLY_PAID"
    for _ in range(2):
        merchant.pay(order, externalPaymentId="same")
    assert merchant.fact["payments"] == [849, 850, 850]


def test_a_deletion_ends_an_order_that_is_not_paid() -> None:
    merchant = Merchant()
    order = merchant.order()
    path = f"/orders/{order['id']}"
    assert merchant.call("DELETE", path) == VendorReply(200)
    assert merchant.call("DELETE", path).status == merchant.call("GET", path).status == 404
    assert merchant.fact["is_deleted"]
    assert not merchant.fact["is_shown"]
    assert merchant.pay(order).status == 404


def test_a_hidden_order_is_found_by_its_id_alone() -> None:
    merchant = Merchant()
    merchant.clover.knobs.hides_stateless = True
    order = merchant.order()
    assert not merchant.fact["is_shown"]
    assert ids(merchant.call("GET", "/orders")) == []
    assert read(merchant.call("GET", f"/orders/{order['id']}"))["state"] is None
    assert read(merchant.cart(AD_HOC, state="open"))["state"] == "open"
    assert len(ids(merchant.call("GET", "/orders"))) == 1


def test_orders_are_found_by_filters_and_pages() -> None:
    merchant = Merchant()
    made = []
    for number in range(3):
        made.append(merchant.order(AD_HOC, note=f"note {number}", externalReferenceId=f"r{number}"))
        merchant.passes(60)
    first, second, third = (each["id"] for each in made)

    def found(*filters: str, **query: Any) -> list[str]:
        return ids(merchant.call("GET", "/orders", filter=filters, **query))

    assert found() == [third, second, first]
    assert found("note=note 1") == found("externalReferenceId=r1") == [second]
    after = f"createdTime>={made[1]['createdTime']}"
    assert found(after, "title!=x") == [third, second]
    assert found(after, "note!=note 1") == [third]
    assert found(limit=1, offset=1) == [second]
    assert found("state=OPEN", "total>849", "total<851") == [third, second, first]
    header = merchant.call("GET", "/orders").headers["X-Clover-Allowed-Filter-Fields"]
    assert "externalReferenceId" in header.split(",")
    merchant.clover.knobs.ignored_filters = ["note"]
    assert found("note=note 1") == [third, second, first]
    merchant.clover.knobs.oldest_first = True
    assert found() == [first, second, third]
    merchant.passes(90 * 86_400)
    assert found("state=open") == []
    assert found("modifiedTime>=0") == [first, second, third]


def test_lists_have_an_order_late_by_a_knob() -> None:
    merchant = Merchant()
    merchant.clover.knobs.lists_after = 5
    order = merchant.order()
    assert ids(merchant.call("GET", "/orders")) == []
    assert read(merchant.call("GET", f"/orders/{order['id']}"))["id"] == order["id"]
    merchant.passes(5)
    assert ids(merchant.call("GET", "/orders")) == [order["id"]]


def test_lists_within_an_order_end_after_a_hundred_and_its_lines_have_pages() -> None:
    merchant = Merchant()
    order = merchant.order(*[{**BURGER, "modifications": [{"id": "CHEESE"}]}] * 150)
    path = f"/orders/{order['id']}"
    found = read(merchant.call("GET", path, expand="lineItems"))["lineItems"]["elements"]
    assert (len(found), "modifications" in found[0]) == (100, False)
    lines = read(merchant.call("GET", f"{path}/line_items", limit=1000))["elements"]
    assert len(lines) == 150
    assert "lineItems" not in read(merchant.call("GET", path))
    whole = read(merchant.call("GET", path, expand=["lineItems", "lineItems.modifications"]))
    assert "modifications" in whole["lineItems"]["elements"][0]


@pytest.mark.parametrize("spelling", [{"open": "OPEN", "EUR": "eur"}, {"locked": "Paid"}])
def test_states_and_currencies_are_spelt_by_a_knob(spelling: dict[str, str]) -> None:
    merchant = Merchant()
    merchant.clover.knobs.spelling = spelling
    order = merchant.order()
    merchant.pay(order)
    [listed] = read(merchant.call("GET", "/orders"))["elements"]
    expected = ["open", "EUR", "locked"]
    seen = [order["state"], order["currency"], listed["state"]]
    assert seen == [spelling.get(each, each) for each in expected]


def test_staff_edit_notes_and_a_knob_loses_them() -> None:
    merchant = Merchant()
    order = merchant.order(AD_HOC, note="ours")
    merchant.clover.acts["edit"](order["id"], note="table 5")
    assert merchant.fact["note"] == "table 5"
    merchant.clover.knobs.loses_note = True
    assert "note" not in merchant.order(AD_HOC, note="ours")
    merchant.clover.knobs.takes_reference = False
    assert "externalReferenceId" not in merchant.order(AD_HOC, externalReferenceId="r")


# Tickets


def test_each_print_event_prints_the_whole_order_once_more() -> None:
    merchant = Merchant()
    line = {**BURGER, "note": "rare", "modifications": [{"id": "NOONIONS"}]}
    order = merchant.order(line, note="x" * 600 + " allergy: nuts", title="A7")
    assert merchant.fact["tickets"] == []
    event = merchant.print(order)
    assert event["state"] == "CREATED"
    [ticket] = merchant.fact["tickets"]
    assert ticket["note"].endswith("allergy: nuts")
    burger = {"name": "Burger", "note": "rare", "modifiers": ["No onions"]}
    assert ticket["lines"] == [burger]
    [printed] = read(merchant.call("GET", f"/orders/{order['id']}/line_items"))["elements"]
    assert printed["printed"]
    gone = merchant.call("GET", f"/print_event/{event['id']}")
    assert message(gone)[:2] == (400, "The print event is missing")
    merchant.print(order)
    assert len(merchant.fact["tickets"]) == 2


def test_a_print_event_waits_for_its_device_and_may_fail() -> None:
    merchant = Merchant()
    knobs = merchant.clover.knobs
    knobs.is_online, knobs.prints_after = False, 10
    path = f"/print_event/{merchant.print(merchant.order())['id']}"
    states = []
    for seconds, is_online, fails in ((60, False, False), (0, True, False), (10, True, True)):
        knobs.is_online, knobs.printer_fails = is_online, fails
        knobs.prints_after = 60 + 10
        merchant.passes(seconds)
        states.append(read(merchant.call("GET", path))["state"])
    assert states == ["CREATED", "PRINTING", "FAILED"]
    assert merchant.fact["tickets"] == []


def test_an_event_without_its_order_is_refused() -> None:
    merchant = Merchant()
    assert message(merchant.call("POST", "/print_event", {}))[1] == "order_uuid_is_null"
    unknown = {"orderRef": {"id": "NONE"}}
    assert merchant.call("POST", "/print_event", unknown).status == 404


# Access


def test_a_token_ends_and_a_refresh_token_is_used_once() -> None:
    merchant = Merchant()
    access = merchant.clover.access
    known = {"client_id": access.app_id, "client_secret": access.secret, "code": "code-1"}
    first = read(merchant.raw("POST", "/oauth/v2/token", known))
    assert merchant.raw("POST", "/oauth/v2/token", known).status == 401
    merchant.token = first["access_token"]
    assert merchant.call("GET", "/orders").status == 200
    merchant.passes(first["access_token_expiration"] - merchant.now.timestamp())
    assert merchant.call("GET", "/orders").status == 401
    refresh = {"client_id": access.app_id, "refresh_token": first["refresh_token"]}
    second = read(merchant.raw("POST", "/oauth/v2/refresh", refresh))
    assert merchant.raw("POST", "/oauth/v2/refresh", refresh).status == 401
    merchant.token = second["access_token"]
    assert merchant.call("GET", "/orders").status == 200
    merchant.passes(second["refresh_token_expiration"] - merchant.now.timestamp())
    late = {**refresh, "refresh_token": second["refresh_token"]}
    assert merchant.raw("POST", "/oauth/v2/refresh", late).status == 401


def test_a_revoked_app_and_a_missing_permission_are_both_a_401() -> None:
    merchant = Merchant()
    merchant.clover.access.missing = {"PAYMENTS_W"}
    order = merchant.order()
    assert message(merchant.pay(order)) == (401, "401 Unauthorized", "")
    merchant.clover.acts["revoke"]()
    assert merchant.call("GET", f"/orders/{order['id']}").status == 401


def test_a_token_has_16_requests_a_second_and_an_app_50() -> None:
    merchant = Merchant()
    tokens = [merchant.clover.access.pair()["access_token"] for _ in range(4)]
    replies = []
    for number in range(52):
        merchant.token = tokens[number // 17]
        replies.append(merchant.call("GET", "/tenders"))
    refused = {n: reply.headers for n, reply in enumerate(replies) if reply.status == 429}
    own = {"X-RateLimit-tokenLimit": "16"}
    assert refused == {16: own, 33: own, 50: own}
    merchant.token = tokens[3]
    merchant.call("GET", "/tenders")
    app = merchant.call("GET", "/tenders").headers
    assert app == {"X-RateLimit-crossTokenLimit": "50"}
    merchant.passes(1)
    assert merchant.call("GET", "/tenders").status == 200


def test_a_token_has_5_requests_at_once_and_waits_longer_each_time() -> None:
    merchant = Merchant()
    merchant.clover.knobs.takes = 2
    assert [merchant.call("GET", "/tenders").status for _ in range(5)] == [200] * 5
    waits = []
    for _ in range(3):
        refused = merchant.call("GET", "/tenders")
        assert refused.headers["X-RateLimit-tokenConcurrentLimit"] == "5"
        waits.append(refused.headers["retry-after"])
    assert waits == ["1", "2", "4"]
    merchant.passes(4)
    assert merchant.call("GET", "/tenders").status == 200


# The merchant's records


def test_the_merchants_records_are_listed() -> None:
    merchant = Merchant(currency="USD")
    assert read(merchant.call("GET", ""))["properties"]["defaultCurrency"] == "USD"
    assert "EXTERNAL" in ids(merchant.call("GET", "/tenders"))
    assert ids(merchant.call("GET", "/order_types")) == ["PICKUP", "DELIVERY"]
    assert "monday" in read(merchant.call("GET", "/opening_hours"))["elements"][0]
    whole = read(merchant.call("GET", "/items", expand="modifierGroups,itemStock"))
    [extras] = whole["elements"][0]["modifierGroups"]["elements"]
    assert [each["id"] for each in extras["modifiers"]["elements"]] == ["CHEESE", "NOONIONS"]
    assert "modifierGroups" not in read(merchant.call("GET", "/items"))["elements"][0]


# Webhooks, and the way


def test_a_webhook_names_the_order_and_is_sent_for_each_change() -> None:
    merchant = Merchant()
    webhooks = merchant.clover.webhooks
    webhooks.url, webhooks.key = "https://orders.example.com/", "auth-code"
    order = merchant.order()
    merchant.pay(order)
    merchant.print(order)
    merchant.clover.facts()
    merchant.clover.acts["delete"](order["id"])
    sent = webhooks.take()
    assert [dict(each.headers)["X-Clover-Auth"] for each in sent] == ["auth-code"] * 4
    [bodies] = [[json.loads(each.body)["merchants"]["M1"][0] for each in sent]]
    assert [each["type"] for each in bodies] == ["CREATE", "UPDATE", "UPDATE", "DELETE"]
    assert {each["objectId"] for each in bodies} == {f"O:{order['id']}"}


def test_it_is_served_on_a_socket_with_knobs_acts_and_facts() -> None:
    with VendorServer("clover", currency="USD") as server:
        server.knobs(loses_note=True, spelling={"USD": "usd"})
        server.act("add_tax", percent=10)
        url = f"{server.url}/v3/merchants/M1/atomic_order/orders"
        cart = {"orderCart": {"lineItems": [AD_HOC], "note": "ours"}}
        sent = {**HEADERS, "Authorization": "Bearer api-token"}
        reply = requests.post(url, json=cart, headers=sent, timeout=PATIENCE)
        assert (reply.status_code, reply.json()["currency"]) == (200, "usd")
        [fact] = server.facts()
        assert (fact["total"], fact["note"], fact["is_shown"]) == (935, None, True)
