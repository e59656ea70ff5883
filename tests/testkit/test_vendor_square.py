"""The simulated Square: what Square's documents promise and refuse."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from testkit.vendors.square import simulator
from testkit.vendors.square.catalog import Listed
from testkit.vendors.square.simulator import Square
from testkit.vendors.way import arrived

Json = dict[str, Any]
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
RECIPIENT = {"display_name": "Ada", "phone_number": "+12125550123"}
PICKUP = {
    "type": "PICKUP",
    "pickup_details": {"schedule_type": "ASAP", "recipient": RECIPIENT, "note": "allergy: nuts"},
}
LATER = {"Square-Version": "2026-09-16"}


def money(amount: int, currency: str = "USD") -> Json:
    return {"amount": amount, "currency": currency}


def line(amount: int = 1000, **fields: Any) -> Json:
    return {"name": "Burger", "quantity": "1", "base_price_money": money(amount), **fields}


def an_order(*lines: Json, **fields: Any) -> Json:
    return {
        "location_id": "L1",
        "line_items": list(lines) or [line()],
        "fulfillments": [PICKUP],
        **fields,
    }


class Application:
    """An application that the seller has authorized, and the time."""

    def __init__(self, **options: Any) -> None:
        self.now = NOW
        self.square: Square = simulator(lambda: self.now, **options)
        self.tokens = self.square.access.grant()
        self._key = 0

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        sent = {
            "Authorization": f"Bearer {self.tokens['access_token']}",
            "Content-Type": "application/json",
            **(headers or {}),
        }
        content = b"" if body is None else json.dumps(body).encode()
        url = f"https://square.example.com{path}"
        reply = self.square.answer(arrived(method, url, sent, content))
        return reply.status, reply.body

    def key(self) -> str:
        self._key += 1
        return f"key-{self._key}"

    def create(self, order: Json, *, key: str | None = None, **headers: str) -> tuple[int, Any]:
        body = {"idempotency_key": key or self.key(), "order": order}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.call("POST", "/v2/orders", body, named)

    def made(self, *lines: Json, **fields: Any) -> Json:
        status, reply = self.create(an_order(*lines, **fields))
        assert status == 200, reply
        return dict(reply["order"])

    def pay(self, order: Json, *, key: str | None = None, **fields: Any) -> tuple[int, Any]:
        body = {
            "source_id": "EXTERNAL",
            "idempotency_key": key or self.key(),
            "order_id": order["id"],
            "amount_money": order["total_money"],
            "external_details": {"type": "EXTERNAL", "source": "Food delivery"},
            **fields,
        }
        return self.call("POST", "/v2/payments", {k: v for k, v in body.items() if v is not None})

    def update(self, order: Json, *, key: str | None = None, **fields: Any) -> tuple[int, Any]:
        change = {"location_id": "L1", "version": order["version"], **fields}
        body = {"idempotency_key": key or self.key(), "order": change}
        return self.call("PUT", f"/v2/orders/{order['id']}", body)

    def fact(self, order: Json) -> Json:
        return dict(self.square.facts()["orders"][order["id"]])


@pytest.fixture
def app() -> Application:
    return Application()


def code(reply: tuple[int, Any]) -> tuple[int, str, str | None]:
    """Status, code and field of a refusal."""
    status, body = reply
    [error] = body["errors"]
    assert error["category"]
    assert error["detail"]
    return status, error["code"], error.get("field")


# What is shown, printed and paid


def test_an_order_is_a_ticket_once_it_is_paid_and_is_printed_once(app: Application) -> None:
    order = app.made()
    unpaid = app.fact(order)
    assert (unpaid["shown"], unpaid["prints"], unpaid["paid"]) == (False, 0, 0)
    assert app.pay(order, key="one")[0] == 200
    assert app.pay(order, key="one")[0] == 200
    assert code(app.pay(order)) == (400, "BAD_REQUEST", "order_id")
    paid = app.fact(order)
    assert (paid["shown"], paid["prints"], paid["paid"], paid["payments"]) == (True, 1, 1000, 1)
    found = paid["order"]
    assert (found["state"], found["net_amount_due_money"]["amount"]) == ("OPEN", 0)
    assert [each["state"] for each in found["fulfillments"]] == ["PROPOSED"]


def test_a_paid_order_without_a_fulfillment_is_completed_and_no_ticket(app: Application) -> None:
    order = app.made(fulfillments=[])
    app.pay(order)
    fact = app.fact(order)
    assert (fact["order"]["state"], fact["shown"], fact["prints"]) == ("COMPLETED", False, 0)


@pytest.mark.parametrize("is_partner", [False, True])
def test_a_delivery_is_a_ticket_for_partners_alone(app: Application, is_partner: bool) -> None:
    app.square.knobs.is_partner = is_partner
    details = {"managed_delivery": True, "deliver_at": "2026-11-29T13:00:00Z"}
    order = app.made(fulfillments=[{"type": "DELIVERY", "delivery_details": details}])
    app.pay(order)
    assert app.fact(order)["shown"] is is_partner


def test_an_order_of_nothing_is_paid_by_pay_order(app: Application) -> None:
    order = app.made(line(0))
    assert code(app.pay(order))[1] == "VALUE_TOO_LOW"
    body = {"idempotency_key": "k", "payment_ids": []}
    status, reply = app.call("POST", f"/v2/orders/{order['id']}/pay", body)
    assert (status, reply["order"]["state"]) == (200, "OPEN")
    assert app.fact(order)["shown"]
    costs = app.made()
    refused = app.call("POST", f"/v2/orders/{costs['id']}/pay", {**body, "idempotency_key": "l"})
    assert code(refused)[1] == "PAYMENT_AMOUNT_MISMATCH"


# Payments


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"amount_money": money(999)}, (400, "PAYMENT_AMOUNT_MISMATCH", "amount_money")),
        ({"amount_money": money(1000, "EUR")}, (400, "CURRENCY_MISMATCH", "amount_money")),
        ({"idempotency_key": "k" * 46}, (400, "VALUE_TOO_LONG", "idempotency_key")),
        ({"idempotency_key": None}, (400, "MISSING_REQUIRED_PARAMETER", "idempotency_key")),
        ({"external_details": None}, (400, "MISSING_REQUIRED_PARAMETER", "external_details")),
        (
            {"external_details": {"type": "CARD"}},
            (400, "MISSING_REQUIRED_PARAMETER", "external_details.source"),
        ),
        (
            {"external_details": {"type": "BARTER", "source": "s"}},
            (400, "INVALID_ENUM_VALUE", "external_details.type"),
        ),
        ({"reference_id": "r" * 41}, (400, "VALUE_TOO_LONG", "reference_id")),
        ({"order_id": "order-99"}, (404, "NOT_FOUND", "order_id")),
        ({"location_id": "L2"}, (400, "LOCATION_MISMATCH", "location_id")),
        ({"amount": 1000}, (400, "UNKNOWN_BODY_PARAMETER", "amount")),
    ],
)
def test_a_payment_that_the_document_does_not_allow_is_refused(
    app: Application, change: Json, refusal: tuple[int, str, str]
) -> None:
    order = app.made()
    assert code(app.pay(order, **change)) == refusal
    assert app.fact(order)["paid"] == 0


def test_a_tip_is_beside_the_orders_amount_and_in_its_total(app: Application) -> None:
    order = app.made()
    status, reply = app.pay(order, tip_money=money(200))
    assert status == 200
    assert reply["payment"]["total_money"]["amount"] == 1200
    paid = app.fact(order)["order"]
    amounts = [paid[f"{name}_money"]["amount"] for name in ("total", "total_tip", "net_amount_due")]
    assert amounts == [1200, 200, 0]


def test_a_refund_is_recorded_up_to_the_payment(app: Application) -> None:
    order = app.made()
    payment = app.pay(order)[1]["payment"]
    body = {"idempotency_key": "r", "payment_id": payment["id"], "amount_money": money(1000)}
    assert code(app.call("POST", f"/v2/payments/{payment['id']}/cancel"))[1] == "BAD_REQUEST"
    refused = app.call("POST", "/v2/refunds", {**body, "amount_money": money(1001)})
    assert code(refused)[1] == "REFUND_AMOUNT_INVALID"
    for _ in range(2):
        assert app.call("POST", "/v2/refunds", body)[0] == 200
    again = app.call("POST", "/v2/refunds", {**body, "idempotency_key": "s"})
    assert code(again)[1] == "REFUND_AMOUNT_INVALID"
    assert app.fact(order)["refunded"] == 1000
    assert app.call("GET", f"/v2/payments/{payment['id']}")[1]["payment"]["refund_ids"]


# Prices


@pytest.mark.parametrize(
    ("lines", "fields", "total", "tax"),
    [
        ([line(333, quantity="3")], {}, 999, 0),
        # Half to even: 12.5 is 12, 37.5 is 38.
        ([line(250)], {"taxes": [{"percentage": "5"}]}, 262, 12),
        ([line(750)], {"taxes": [{"percentage": "5"}]}, 788, 38),
        # A tax of the order is rounded once.
        ([line(250), line(250)], {"taxes": [{"percentage": "5"}]}, 525, 25),
        # Orders of integrators, with Square's tax.
        ([line(1880), line(695)], {"taxes": [{"percentage": "8.875"}]}, 2804, 229),
        (
            [line(1500), line(800), line(695), line(695)],
            {"taxes": [{"percentage": "8.875"}]},
            4017,
            327,
        ),
        ([line(600)], {"taxes": [{"percentage": "11.75"}]}, 670, 70),
        ([line(3020)], {"taxes": [{"percentage": "11.75"}]}, 3375, 355),
        ([line(600)], {"taxes": [{"percentage": "9.75"}]}, 658, 58),
        ([line(1100)], {"taxes": [{"percentage": "10", "type": "INCLUSIVE"}]}, 1100, 100),
        (
            [line(1000)],
            {
                "discounts": [{"amount_money": money(100)}, {"percentage": "10"}],
                "taxes": [{"percentage": "10"}],
            },
            880,
            80,
        ),
        ([line(1000)], {"discounts": [{"amount_money": money(5000)}]}, 0, 0),
        # A taxable charge before taxes, and one after them.
        (
            [line(1000)],
            {
                "service_charges": [
                    {
                        "name": "s",
                        "percentage": "10",
                        "calculation_phase": "SUBTOTAL_PHASE",
                        "taxable": True,
                    },
                    {"name": "t", "percentage": "10", "calculation_phase": "TOTAL_PHASE"},
                ],
                "taxes": [{"percentage": "10"}],
            },
            1331,
            110,
        ),
        (
            [
                line(
                    500,
                    quantity="2",
                    modifiers=[{"name": "m", "quantity": "3", "base_price_money": money(10)}],
                )
            ],
            {},
            1060,
            0,
        ),
    ],
)
def test_an_orders_prices_are_squares(
    app: Application, lines: list[Json], fields: Json, total: int, tax: int
) -> None:
    order = an_order(*lines, **fields)
    status, calculated = app.call("POST", "/v2/orders/calculate", {"order": order})
    assert status == 200
    assert app.square.facts()["orders"] == {}
    made = app.made(*lines, **fields)
    for each in (calculated["order"], made):
        assert each["total_money"]["amount"] == each["net_amount_due_money"]["amount"] == total
        assert each["total_tax_money"]["amount"] == tax


def test_taxes_and_discounts_of_a_line_reach_the_lines_that_name_them(app: Application) -> None:
    named = line(1000, applied_taxes=[{"tax_uid": "t"}], applied_discounts=[{"discount_uid": "d"}])
    taxes = [{"uid": "t", "percentage": "10", "scope": "LINE_ITEM"}]
    discounts = [{"uid": "d", "percentage": "50", "scope": "LINE_ITEM"}]
    order = app.made(named, line(1000), taxes=taxes, discounts=discounts)
    assert [each["total_money"]["amount"] for each in order["line_items"]] == [550, 1000]
    off = [{"uid": "d", "amount_money": money(100), "scope": "LINE_ITEM"}]
    less = line(1000, applied_discounts=[{"discount_uid": "d"}])
    each_less = app.made(less, less, discounts=off)
    assert each_less["total_discount_money"]["amount"] == 200
    of_order = app.made(line(1000), line(500), discounts=[{"amount_money": money(100)}])
    shares = [each["total_discount_money"]["amount"] for each in of_order["line_items"]]
    assert shares == [67, 33]
    taxed = line(250, applied_taxes=[{"tax_uid": "t"}])
    five = [{"uid": "t", "percentage": "5", "scope": "LINE_ITEM"}]
    assert app.made(taxed, taxed, taxes=five)["total_tax_money"]["amount"] == 24  # each rounded
    unknown = line(applied_taxes=[{"tax_uid": "u"}])
    refused = app.create(an_order(unknown, taxes=taxes))
    assert code(refused) == (400, "INVALID_VALUE", "order.line_items[0].applied_taxes")


def test_the_shops_own_tax_is_added_where_it_is_asked_for_or_unasked(app: Application) -> None:
    app.square.knobs.shop_tax = "10"
    assert app.made()["total_money"]["amount"] == 1000
    asked = app.made(pricing_options={"auto_apply_taxes": True})
    assert asked["total_money"]["amount"] == 1100
    assert asked["taxes"][0]["auto_applied"]
    app.square.knobs.adds_tax_unasked = True
    assert app.made()["total_money"]["amount"] == 1100


def test_a_catalog_item_has_squares_name_and_the_orders_price_if_there_is_one(
    app: Application,
) -> None:
    app.square.catalog.variations["V1"] = Listed("Burger, large", 1200)
    app.square.catalog.modifiers["M1"] = Listed("Cheese", 100)
    ours = line(900, catalog_object_id="V1")
    theirs = {
        "quantity": "1",
        "catalog_object_id": "V1",
        "modifiers": [{"catalog_object_id": "M1"}],
    }
    first, second = app.made(ours, theirs)["line_items"]
    assert (first["name"], first["total_money"]["amount"]) == ("Burger, large", 900)
    assert (second["name"], second["total_money"]["amount"]) == ("Burger, large", 1300)
    unknown = app.create(an_order({"quantity": "1", "catalog_object_id": "V2"}))
    assert code(unknown) == (404, "NOT_FOUND", "order.line_items[0].catalog_object_id")


# What an order may be


@pytest.mark.parametrize(
    ("order", "refusal"),
    [
        (an_order(total=5), ("UNKNOWN_BODY_PARAMETER", "order.total")),
        (an_order(reference_id="r" * 41), ("VALUE_TOO_LONG", "order.reference_id")),
        (an_order(ticket_name="t" * 31), ("VALUE_TOO_LONG", "order.ticket_name")),
        (an_order(location_id=""), ("MISSING_REQUIRED_PARAMETER", "order.location_id")),
        (an_order(location_id=7), ("INCORRECT_TYPE", "order.location_id")),
        (an_order(id="mine"), ("BAD_REQUEST", "order.id")),
        (an_order(state="ACCEPTED"), ("INVALID_ENUM_VALUE", "order.state")),
        (an_order(metadata={"k" * 61: "v"}), ("VALUE_TOO_LONG", f"order.metadata.{'k' * 61}")),
        (an_order(metadata={"k": "v" * 256}), ("VALUE_TOO_LONG", "order.metadata.k")),
        (
            an_order(metadata={str(n): "v" for n in range(11)}),
            ("ARRAY_LENGTH_TOO_LONG", "order.metadata"),
        ),
        (an_order(fulfillments=[PICKUP] * 2), ("ARRAY_LENGTH_TOO_LONG", "order.fulfillments")),
        (an_order(line(note="n" * 2001)), ("VALUE_TOO_LONG", "order.line_items[0].note")),
        (an_order(line(name="n" * 513)), ("VALUE_TOO_LONG", "order.line_items[0].name")),
        (an_order(line(quantity="one")), ("INVALID_VALUE", "order.line_items[0].quantity")),
        (an_order(line(quantity="1.5")), ("INVALID_VALUE", "order.line_items[0].quantity")),
        (an_order(line(quantity=1)), ("INCORRECT_TYPE", "order.line_items[0].quantity")),
        (
            an_order(line(-1)),
            ("VALUE_TOO_LOW", "order.line_items[0].base_price_money.amount"),
        ),
        (
            an_order({"quantity": "1", "name": "Burger"}),
            ("MISSING_REQUIRED_PARAMETER", "order.line_items[0].base_price_money"),
        ),
        (
            an_order(line(base_price_money=money(1, "EUR"))),
            ("INVALID_VALUE", "order.line_items[0].base_price_money.currency"),
        ),
        (
            an_order(line(modifiers=[{"name": "m" * 256, "base_price_money": money(1)}])),
            ("VALUE_TOO_LONG", "order.line_items[0].modifiers[0].name"),
        ),
        (an_order(taxes=[{"percentage": "5%"}]), ("INVALID_VALUE", "order.taxes[0].percentage")),
        (an_order(discounts=[{"name": "d"}]), ("INVALID_VALUE", "order.discounts[0]")),
    ],
)
def test_an_order_that_the_document_does_not_allow_is_refused(
    app: Application, order: Json, refusal: tuple[str, str]
) -> None:
    assert code(app.create(order)) == (400, *refusal)
    assert app.square.facts()["orders"] == {}


@pytest.mark.parametrize(
    ("fulfillment", "code_", "field"),
    [
        ({"type": "PICKUP"}, "MISSING_REQUIRED_PARAMETER", "pickup_details"),
        (
            {"type": "PICKUP", "pickup_details": {"recipient": RECIPIENT}},
            "MISSING_REQUIRED_PARAMETER",
            "pickup_details.pickup_at",
        ),
        (
            {
                "type": "PICKUP",
                "pickup_details": {"schedule_type": "ASAP", "recipient": {"display_name": "Ada"}},
            },
            "MISSING_REQUIRED_PARAMETER",
            "pickup_details.recipient.phone_number",
        ),
        (
            {
                "type": "PICKUP",
                "pickup_details": {
                    "schedule_type": "ASAP",
                    "recipient": {**RECIPIENT, "phone_number": "ask Ada"},
                },
            },
            "INVALID_PHONE_NUMBER",
            "pickup_details.recipient.phone_number",
        ),
        (
            {
                "type": "PICKUP",
                "pickup_details": {
                    "schedule_type": "ASAP",
                    "recipient": {**RECIPIENT, "phone_number": "+1212555"},
                },
            },
            "INVALID_PHONE_NUMBER",
            "pickup_details.recipient.phone_number",
        ),
        (
            {"type": "PICKUP", "pickup_details": {"schedule_type": "ASAP", "note": "n" * 501}},
            "VALUE_TOO_LONG",
            "pickup_details.note",
        ),
        (
            {"type": "PICKUP", "pickup_details": {"pickup_at": "at noon", "recipient": RECIPIENT}},
            "INVALID_VALUE",
            "pickup_details.pickup_at",
        ),
        (
            {"type": "DELIVERY", "delivery_details": {"schedule_type": "ASAP"}},
            "MISSING_REQUIRED_PARAMETER",
            "delivery_details.prep_time_duration",
        ),
        (
            {
                "type": "DELIVERY",
                "delivery_details": {
                    "deliver_at": "2026-11-29T13:00:00Z",
                    "recipient": RECIPIENT,
                },
            },
            "MISSING_REQUIRED_PARAMETER",
            "delivery_details.recipient.address",
        ),
    ],
)
def test_a_fulfillment_has_what_its_type_needs(
    app: Application, fulfillment: Json, code_: str, field: str
) -> None:
    refused = app.create(an_order(fulfillments=[fulfillment]))
    assert code(refused) == (400, code_, f"order.fulfillments[0].{field}")


def test_dine_in_and_nested_modifiers_need_the_later_version(app: Application) -> None:
    cheese = {"uid": "c", "name": "cheese", "base_price_money": money(100)}
    less = {"name": "less", "parent_modifier_uid": "c", "base_price_money": money(0)}
    nested = an_order(line(modifiers=[cheese, less]))
    dine_in = an_order(fulfillments=[{"type": "IN_STORE", "in_store_details": {"note": "T5"}}])
    for order in (nested, dine_in):
        assert app.create(order)[0] == 400
        assert app.create(order, **LATER)[0] == 200
    stray = an_order(line(modifiers=[cheese, {**less, "parent_modifier_uid": "x"}]))
    assert code(app.create(stray, **LATER)) == (
        400,
        "INVALID_VALUE",
        "order.line_items[0].modifiers",
    )
    assert code(app.create(nested, Square_Version="soon"))[1] == "INVALID_SQUARE_VERSION_FORMAT"


def test_a_location_is_shown_and_takes_orders_only_if_it_is_active(app: Application) -> None:
    assert app.call("GET", "/v2/locations/L1")[1]["location"]["status"] == "ACTIVE"
    app.square.knobs.is_active = False
    [location] = app.call("GET", "/v2/locations")[1]["locations"]
    assert (location["status"], location["currency"]) == ("INACTIVE", "USD")
    assert code(app.create(an_order()))[1] == "INVALID_LOCATION"
    assert code(app.create(an_order(location_id="L2"))) == (404, "NOT_FOUND", "order.location_id")


# Versions, states, cancelling


def test_an_update_needs_the_orders_version_which_square_raises_as_well(app: Application) -> None:
    app.square.knobs.own_work = True
    order = app.made()
    assert order["version"] == 1
    assert code(app.update(order, ticket_name="Ada")) == (409, "VERSION_MISMATCH", "order.version")
    current = app.call("GET", f"/v2/orders/{order['id']}")[1]["order"]
    status, reply = app.update(current, ticket_name="Ada")
    assert (status, reply["order"]["ticket_name"]) == (200, "Ada")
    assert reply["order"]["version"] > current["version"]


def test_an_order_with_one_more_line_is_priced_again(app: Application) -> None:
    charge = {"name": "s", "percentage": "10", "calculation_phase": "TOTAL_PHASE"}
    order = app.made(service_charges=[charge], taxes=[{"percentage": "10"}])
    assert order["total_money"]["amount"] == 1210
    more = app.update(order, line_items=[line(1000)])[1]["order"]
    assert more["total_money"]["amount"] == more["net_amount_due_money"]["amount"] == 2420


def test_an_update_without_a_key_changes_nothing(app: Application) -> None:
    order = app.made()
    body = {"order": {"location_id": "L1", "version": 1, "ticket_name": "Ada"}}
    status, reply = app.call("PUT", f"/v2/orders/{order['id']}", body)
    assert (status, "ticket_name" in reply["order"]) == (200, False)


def test_an_unpaid_order_is_cancelled_with_its_fulfillments(app: Application) -> None:
    order = app.made()
    assert code(app.update(order, state="CANCELED")) == (400, "BAD_REQUEST", "order.state")
    ended = [{"uid": order["fulfillments"][0]["uid"], "state": "CANCELED"}]
    status, reply = app.update(order, state="CANCELED", fulfillments=ended)
    assert (status, reply["order"]["state"]) == (200, "CANCELED")
    assert app.fact(order)["cancelled"]
    assert code(app.update(reply["order"], ticket_name="Ada"))[1] == "BAD_REQUEST"
    assert code(app.pay(order))[1] == "BAD_REQUEST"


def test_of_a_paid_order_the_fulfillment_alone_is_cancelled(app: Application) -> None:
    order = app.made()
    app.pay(order, tip_money=money(200))
    paid = app.call("GET", f"/v2/orders/{order['id']}")[1]["order"]
    ended = [{"uid": paid["fulfillments"][0]["uid"], "state": "CANCELED"}]
    refused = app.update(paid, state="CANCELED", fulfillments=ended)
    assert code(refused) == (400, "BAD_REQUEST", "order.state")
    assert code(app.update(paid, line_items=[line(1)]))[1] == "BAD_REQUEST"
    status, reply = app.update(paid, fulfillments=ended)
    found = reply["order"]
    assert (status, found["state"], found["total_money"]["amount"]) == (200, "OPEN", 1200)
    assert found["net_amount_due_money"]["amount"] == 0
    assert app.fact(order)["cancelled"]
    again = [{**ended[0], "state": "PROPOSED"}]
    assert code(app.update(found, fulfillments=again))[1] == "BAD_REQUEST"


def test_a_fulfillment_that_the_application_completes_leaves_its_order_open(
    app: Application,
) -> None:
    order = app.made()
    app.pay(order)
    paid = app.call("GET", f"/v2/orders/{order['id']}")[1]["order"]
    assert code(app.update(paid, state="COMPLETED")) == (400, "BAD_REQUEST", "order.state")
    ended = [{"uid": paid["fulfillments"][0]["uid"], "state": "COMPLETED"}]
    status, reply = app.update(paid, fulfillments=ended)
    assert (status, reply["order"]["state"]) == (200, "OPEN")
    status, reply = app.update(reply["order"], state="COMPLETED")
    assert (status, reply["order"]["state"]) == (200, "COMPLETED")


# Keys


def test_a_key_makes_one_order_until_square_has_forgotten_the_key(app: Application) -> None:
    app.square.knobs.keys_kept = 60
    order = an_order()
    first = app.create(order, key="k")[1]["order"]
    assert app.create(order, key="k")[1]["order"] == first
    reused = app.create(an_order(ticket_name="Ada"), key="k")
    assert code(reused) == (400, "IDEMPOTENCY_KEY_REUSED", "idempotency_key")
    app.now += timedelta(seconds=60)
    assert app.create(order, key="k")[1]["order"]["id"] != first["id"]
    assert len(app.square.seller.orders) == 2


def test_a_refused_request_does_not_use_its_key_up(app: Application) -> None:
    assert app.create(an_order(line(quantity="no")), key="k")[0] == 400
    assert app.create(an_order(), key="k")[0] == 200


# Look-ups


def test_orders_are_found_by_time_in_pages(app: Application) -> None:
    made = []
    for _ in range(5):
        made.append(app.made()["id"])
        app.now += timedelta(minutes=1)
    span = {"start_at": "2026-11-29T12:01:00Z", "end_at": "2026-11-29T12:03:00Z"}
    search: Json = {
        "location_ids": ["L1"],
        "limit": 2,
        "query": {
            "filter": {"date_time_filter": {"created_at": span}},
            "sort": {"sort_field": "CREATED_AT", "sort_order": "ASC"},
        },
    }
    status, page = app.call("POST", "/v2/orders/search", search)
    assert (status, [each["id"] for each in page["orders"]]) == (200, made[1:3])
    rest = app.call("POST", "/v2/orders/search", {**search, "cursor": page["cursor"]})[1]
    assert ([each["id"] for each in rest["orders"]], "cursor" in rest) == ([made[3]], False)
    other = {**search, "limit": 3, "cursor": page["cursor"]}
    assert code(app.call("POST", "/v2/orders/search", other))[1] == "INVALID_CURSOR"
    search["query"]["sort"]["sort_field"] = "UPDATED_AT"
    assert code(app.call("POST", "/v2/orders/search", search))[1] == "BAD_REQUEST"
    nothing = {"location_ids": ["L1"], "query": {"filter": {"state_filter": {"states": ["DRAFT"]}}}}
    assert app.call("POST", "/v2/orders/search", nothing) == (200, {})
    found = app.call("POST", "/v2/orders/batch-retrieve", {"order_ids": [made[0], "order-99"]})
    assert [each["id"] for each in found[1]["orders"]] == made[:1]
    many = {"order_ids": ["o"] * 101}
    assert code(app.call("POST", "/v2/orders/batch-retrieve", many))[1] == "ARRAY_LENGTH_TOO_LONG"
    assert code(app.call("GET", "/v2/orders/order-99"))[:2] == (404, "NOT_FOUND")


def test_the_catalog_is_listed_in_pages_with_what_is_sold_out(app: Application) -> None:
    app.square.knobs.catalog_page = 1
    app.square.catalog.variations["V1"] = Listed("Burger", 900, is_sold_out=True)
    app.square.catalog.modifiers["M1"] = Listed("Cheese", 100)
    first = app.call("GET", "/v2/catalog/list?types=ITEM,MODIFIER_LIST")[1]
    path = f"/v2/catalog/list?types=ITEM,MODIFIER_LIST&cursor={first['cursor']}"
    second = app.call("GET", path)[1]
    [modifier] = second["objects"][0]["modifier_list_data"]["modifiers"]
    assert (modifier["id"], "cursor" in second) == ("M1", False)
    [variation] = first["objects"][0]["item_data"]["variations"]
    assert variation["item_variation_data"]["location_overrides"][0]["sold_out"]
    order = app.made({"quantity": "1", "catalog_object_id": "V1"}, line())
    assert (app.fact(order)["sold_out"], app.fact(order)["unrouted"]) == (["Burger"], 1)
    assert code(app.call("GET", "/v2/catalog/list?type=ITEM"))[1] == "UNKNOWN_QUERY_PARAMETER"


# Tokens, scopes, rates


def test_a_token_is_known_has_the_scopes_and_has_not_ended(app: Application) -> None:
    assert code(app.call("GET", "/v2/locations", headers={"Authorization": "Bearer x"})) == (
        401,
        "UNAUTHORIZED",
        None,
    )
    reader = app.square.access.grant(["ORDERS_READ"])
    headers = {"Authorization": f"Bearer {reader['access_token']}"}
    body = {"idempotency_key": "k", "order": an_order()}
    refused = app.call("POST", "/v2/orders", body, headers)
    assert code(refused) == (403, "INSUFFICIENT_SCOPES", None)
    app.now += timedelta(days=30)
    assert code(app.create(an_order())) == (401, "ACCESS_TOKEN_EXPIRED", None)
    app.square.access.revoke()
    assert code(app.create(an_order())) == (401, "ACCESS_TOKEN_REVOKED", None)
    assert app.square.facts()["orders"] == {}


@pytest.mark.parametrize("pkce", [False, True])
def test_a_refresh_token_is_kept_or_with_pkce_replaced(pkce: bool) -> None:
    app = Application(pkce=pkce)
    refresh = app.tokens["refresh_token"]
    body = {"client_id": "sq0idp-application", "grant_type": "refresh_token"}
    secret = {} if pkce else {"client_secret": "sq0csp-secret"}
    given = {**body, **secret, "refresh_token": refresh}
    status, first = app.call("POST", "/oauth2/token", given)
    assert (status, first["token_type"]) == (200, "bearer")
    assert (first["refresh_token"] == refresh) is not pkce
    assert app.call("POST", "/oauth2/token", given)[0] == (401 if pkce else 200)
    app.tokens = first
    assert app.create(an_order())[0] == 200
    app.square.access.revoke()
    latest = {**given, "refresh_token": first["refresh_token"]}
    assert code(app.call("POST", "/oauth2/token", latest)) == (401, "UNAUTHORIZED", None)


def test_a_revoked_authorization_ends_all_tokens_and_is_notified(app: Application) -> None:
    app.square.webhooks.url = "https://gateway.example.com/hook"
    body = {"client_id": "sq0idp-application", "merchant_id": "MERCHANT1"}
    assert code(app.call("POST", "/oauth2/revoke", body))[1] == "UNAUTHORIZED"
    client = {"Authorization": "Client sq0csp-secret"}
    assert app.call("POST", "/oauth2/revoke", body, client) == (200, {"success": True})
    assert code(app.create(an_order()))[1] == "ACCESS_TOKEN_REVOKED"
    [told] = app.square.webhooks.take()
    assert json.loads(told.body)["type"] == "oauth.authorization.revoked"


def test_requests_above_the_rate_are_refused(app: Application) -> None:
    app.square.knobs.per_second = 2
    assert [app.create(an_order())[0] for _ in range(3)] == [200, 200, 429]
    app.now += timedelta(seconds=1)
    assert app.create(an_order())[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "refusal"),
    [
        ("GET", "/v2/nothing", {}, (404, "NOT_FOUND")),
        ("DELETE", "/v2/orders/o", {}, (405, "METHOD_NOT_ALLOWED")),
        ("POST", "/v2/orders", {"Content-Type": "text/plain"}, (415, "UNSUPPORTED_MEDIA_TYPE")),
        ("POST", "/v2/orders", {}, (400, "EXPECTED_JSON_BODY")),
    ],
)
def test_what_is_no_request_of_squares_is_refused(
    app: Application, method: str, path: str, headers: Json, refusal: tuple[int, str]
) -> None:
    assert code(app.call(method, path, headers=headers))[:2] == refusal


# The shop, and what Square notifies


@pytest.mark.parametrize(
    ("act", "state", "order_state"),
    [
        ("accept", "RESERVED", "OPEN"),
        ("ready", "PREPARED", "OPEN"),
        ("complete", "COMPLETED", "COMPLETED"),
        ("reject", "FAILED", "OPEN"),
        ("expire", "FAILED", "OPEN"),
        ("cancel", "CANCELED", "OPEN"),
    ],
)
def test_each_step_of_the_shop_is_a_new_version_and_is_notified(
    app: Application, act: str, state: str, order_state: str
) -> None:
    order = app.made()
    app.pay(order)
    app.square.webhooks.url = "https://gateway.example.com/hook"
    version = app.fact(order)["order"]["version"]
    app.square.acts[act](order["id"])
    found = app.fact(order)["order"]
    assert found["version"] > version
    assert (found["fulfillments"][0]["state"], found["state"]) == (state, order_state)
    events = [json.loads(each.body) for each in app.square.webhooks.take()]
    assert [each["type"] for each in events] == ["order.fulfillment.updated", "order.updated"]
    update = events[0]["data"]["object"]["order_fulfillment_updated"]
    assert update["fulfillment_update"][0]["new_state"] == state
    assert {each["version"] for each in (update, found)} == {found["version"]}
