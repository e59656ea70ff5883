"""Toast: what the conformance suite does not test."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters import toast
from pos_gateway.adapters.replies import json_object
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import DIGEST, TOAST, body, guid, order_of
from tests.gate import Gate

ORDER = order_of(tip=300, customer={"name": "Ada Lovelace", "phone": "555"}, notes="no nuts")
[PRICES] = TOAST.before(ORDER)
REFUSED = reply(400, {"status": 400, "code": 10025, "message": "Payment amount cannot be empty"})


def submitted(*replies: Reply, order: Order = ORDER) -> Outcome:
    return TOAST.adapter.submit(order, TOAST.merchant, Scripted(*replies))


def code_of(outcome: Outcome) -> str:
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    return outcome.reason.code


def test_an_order_is_priced_and_then_posted_under_its_external_id() -> None:
    send = Scripted(PRICES, reply(200, TOAST.accepted(ORDER.order_id)))
    assert TOAST.adapter.submit(ORDER, TOAST.merchant, send).kind is Kind.ACCEPTED
    prices, creation = send.requests
    assert prices.url == "https://pos.example.com/orders/v2/prices"
    assert creation.url == "https://pos.example.com/orders/v2/orders"
    assert creation.headers["Toast-Restaurant-External-ID"] == guid("restaurant")
    assert prices.body == creation.body
    sent = body(creation)
    assert sent["externalId"] == f"GATEWAY:order/1-{DIGEST}"
    assert sent["diningOption"]["guid"] == guid("dining option")
    [check] = sent["checks"]
    assert check["customer"] == {"firstName": "Ada", "lastName": "Lovelace", "phone": "555"}
    assert (check["payments"][0]["amount"], check["payments"][0]["tipAmount"]) == (17.0, 3.0)
    [selection] = check["selections"]
    assert selection["item"]["guid"] == guid("burger")
    assert selection["quantity"] == 2
    assert selection["modifiers"] == [
        {"selectionType": "SPECIAL_REQUEST", "displayName": "no nuts"}
    ]


def test_every_request_names_the_restaurant() -> None:
    """Toast refuses requests without it."""
    found = TOAST.accepted(ORDER.order_id)
    send = Scripted(reply(200, found), reply(200, {**found, "voided": True}))
    assert TOAST.adapter.cancel(ORDER, TOAST.merchant, send).kind is Kind.CANCELLED
    assert [request.method for request in send.requests] == ["GET", "POST"]
    for request in send.requests:
        assert request.headers["Toast-Restaurant-External-ID"] == guid("restaurant")


def test_the_groups_guid_precedes_the_items() -> None:
    modifier = {"sku": f"{guid('sauces')}/{guid('mayo')}", "name": "mayo", "quantity": 2}
    item = {"sku": f"{guid('mains')}/{guid('burger')}", "name": "b", "quantity": 1, "unit_price": 5}
    order = order_of(items=[{**item, "modifiers": [modifier]}], total=5)
    send = Scripted(*TOAST.before(order), reply(500))
    TOAST.adapter.submit(order, TOAST.merchant, send)
    [selection] = body(send.requests[1])["checks"][0]["selections"]
    assert selection["itemGroup"]["guid"] == guid("mains")
    [sent] = selection["modifiers"]
    assert (sent["optionGroup"]["guid"], sent["item"]["guid"]) == (guid("sauces"), guid("mayo"))


def test_the_catalog_maps_skus_to_guids() -> None:
    modifier = {"sku": "may", "name": "mayo", "unit_price": 5}
    item = {"sku": "bur", "name": "b", "quantity": 1, "unit_price": 5, "modifiers": [modifier]}
    order = order_of(items=[item], total=10)
    catalog = {"bur": f"{guid('mains')}/{guid('burger')}", "may": guid("mayo")}
    send = Scripted(*TOAST.before(order), reply(500))
    TOAST.adapter.submit(order, TOAST.merchant.with_catalog(catalog), send)
    [selection] = body(send.requests[1])["checks"][0]["selections"]
    assert selection["itemGroup"]["guid"] == guid("mains")
    assert selection["item"]["guid"] == guid("burger")
    assert [each["item"]["guid"] for each in selection["modifiers"]] == [guid("mayo")]


def test_an_invalid_guid_is_refused_in_the_catalog() -> None:
    catalog = {"a": guid("a"), "b": f"{guid('g')}/{guid('b')}", "c": "1234"}
    [problem] = TOAST.adapter.check(TOAST.merchant.with_catalog(catalog))
    assert (problem.field, problem.value) == ("pos_id", "1234")


def test_another_price_at_toast_is_a_rejection_without_a_create() -> None:
    other = reply(200, {"checks": [{"amount": 17.5, "totalAmount": 18.9}]})
    assert code_of(submitted(other)) == "price_mismatch"
    with_tax = reply(200, {"checks": [{"amount": 16.0, "totalAmount": 17.0}]})
    assert submitted(with_tax, reply(200, TOAST.accepted("order/1"))).kind is Kind.ACCEPTED
    no_amount = reply(200, {"checks": [{"amount": True, "totalAmount": None}]})
    assert code_of(submitted(no_amount)) == "price_mismatch"


@pytest.mark.parametrize("answer", [reply(500), reply(504), reply(200, b"<html>"), reply(429)])
def test_a_failed_price_request_leaves_no_order_in_doubt(answer: Reply) -> None:
    assert submitted(answer).kind is Kind.RETRY


@pytest.mark.parametrize("why", ["timeout", "cut", "cut_short"])
def test_an_unanswered_price_request_leaves_no_order_in_doubt(why: str) -> None:
    """A price request creates nothing: the order is provably not sent."""

    def send(_: Request) -> Reply:
        raise NoValidReply(why, "no reply")

    with pytest.raises(NotSent) as raised:
        TOAST.adapter.submit(ORDER, TOAST.merchant, send)
    assert raised.value.code == why


def test_an_order_without_prices_is_never_in_doubt(tmp_path: Path) -> None:
    creates: list[Request] = []

    def pos(request: Request) -> Any:
        if request.url.endswith("/prices"):
            return NoValidReply("timeout", "no reply")
        creates.append(request)
        return 404, {}

    gate = Gate(tmp_path, pos)
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "toast", **TOAST.record}
    MerchantStore(gate.database).put([Merchant.parse(record)])
    items = [{"sku": guid("b"), "name": "B", "quantity": 1, "unit_price": 1700}]
    order = gate.an_order(items=items, seconds=120)
    for _ in range(4):
        gate.take(order)
        gate.wait(45)
    assert ([kind for kind, _ in gate.recorded()], creates) == (["expired"], [])


def test_a_refused_price_request_is_a_rejection() -> None:
    assert code_of(submitted(REFUSED)) == "payment_required"
    assert submitted(reply(401)).kind is Kind.FAILED


def test_a_refused_order_is_looked_up() -> None:
    found = reply(200, TOAST.accepted(ORDER.order_id))
    assert submitted(PRICES, REFUSED, found).kind is Kind.ACCEPTED
    assert code_of(submitted(PRICES, REFUSED, *TOAST.unknown)) == "payment_required"
    assert code_of(submitted(PRICES, reply(422), *TOAST.unknown)) == "invalid_order"
    assert submitted(PRICES, REFUSED, reply(400)).kind is Kind.IN_DOUBT
    taken = reply(400, {"message": "The externalId is taken"})
    assert submitted(PRICES, taken, *TOAST.unknown).kind is Kind.IN_DOUBT


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        TOAST.accepted(ORDER.order_id),
        {**TOAST.accepted("another"), "voided": True},
    ],
    ids=["an ingress's", "not voided", "another order's"],
)
def test_a_200_that_shows_no_voided_order_leaves_it_in_doubt(answer: Any) -> None:
    send = Scripted(reply(200, TOAST.accepted(ORDER.order_id)), reply(200, answer))
    assert TOAST.adapter.cancel(ORDER, TOAST.merchant, send).kind is Kind.IN_DOUBT


def test_a_refusal_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing does not yield to other orders."""
    read: list[int] = []

    def reading(answer: Reply) -> dict[str, Any] | None:
        read.append(answer.status)
        return json_object(answer)

    monkeypatch.setattr(toast, "json_object", reading)
    assert code_of(submitted(PRICES, REFUSED, *TOAST.unknown)) == "payment_required"
    assert read == [200, 400]


def test_an_order_is_looked_up_by_its_external_id() -> None:
    send = Scripted(*TOAST.unknown)
    assert TOAST.adapter.look_up(ORDER, TOAST.merchant, send) is None
    for request, mark in zip(send.requests, (f"-{DIGEST}", ""), strict=True):
        assert request.url.endswith(f"/orders/v2/orders/GATEWAY%3Aorder%2F1{mark}")


@pytest.mark.parametrize(
    "change",
    [
        {"currency": "JPY"},
        {"tip": 10**15 + 1},
        {"items": [{"sku": "burger", "name": "b", "quantity": 2, "unit_price": 850}]},
    ],
)
def test_an_order_that_toast_cannot_represent_is_rejected_unsent(change: dict[str, object]) -> None:
    assert code_of(submitted(order=order_of(**change))) == "invalid_order"


def test_a_modifier_with_a_price_needs_a_guid() -> None:
    modifier = {"name": "cheese", "unit_price": 50}
    item = {"sku": guid("b"), "name": "b", "quantity": 1, "unit_price": 850}
    order = order_of(items=[{**item, "modifiers": [modifier]}], total=900)
    assert code_of(submitted(order=order)) == "invalid_order"


def test_a_look_up_may_read_toasts_largest_reply() -> None:
    """Some 2 KB of each item: an order whose acceptance was too long to be read is found."""
    send = Scripted(*TOAST.unknown)
    TOAST.adapter.look_up(ORDER, TOAST.merchant, send)
    assert {request.expects for request in send.requests} == {BODY_LIMIT}
