"""Square: what the conformance suite does not test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from tests.adapters.scripted import Scripted, reply
from tests.adapters.square_till import Till
from tests.adapters.vendors import SQUARE, body, order_of

ORDER = order_of(customer={"name": "Ada"}, notes="no nuts")
ITEM = {"sku": "s", "name": "Burger", "quantity": 2, "unit_price": 850}
REUSED = reply(400, {"errors": [{"code": "IDEMPOTENCY_KEY_REUSED"}]})
BAD = reply(400, {"errors": [{"code": "BAD_REQUEST", "detail": "Order 7 already exists."}]})
FOUND = SQUARE.found(SQUARE.accepted(ORDER.order_id))


def submitted(*replies: Reply) -> Outcome:
    return SQUARE.create(ORDER, Scripted(*replies))


def test_an_order_goes_to_the_merchants_location_as_ad_hoc_items() -> None:
    send = Scripted(SQUARE.creates(ORDER))
    SQUARE.create(ORDER, send)
    [request] = send.requests
    assert (request.method, request.url) == ("POST", "https://pos.example.com/v2/orders")
    sent = body(request)
    assert len(sent["idempotency_key"]) <= 192
    assert sent["order"] == {
        "location_id": "L1",
        "metadata": {"order_id": "order/1", "merchant_id": "fast-1"},
        "reference_id": "order/1",
        "ticket_name": "Ada",
        "line_items": [
            {
                "name": "Burger",
                "quantity": "2",
                "base_price_money": {"amount": 850, "currency": "EUR"},
                "modifiers": [],
                "note": "no nuts",
            }
        ],
        "fulfillments": [
            {
                "type": "PICKUP",
                "state": "PROPOSED",
                "pickup_details": {
                    "schedule_type": "ASAP",
                    "recipient": {"display_name": "Ada"},
                    "note": "no nuts",
                },
            }
        ],
    }


def test_an_order_of_another_location_is_not_ours() -> None:
    """The merchant has moved: its order is at the location that it had."""
    elsewhere = SQUARE.accepted(ORDER.order_id)
    elsewhere["order"]["location_id"] = "L2"
    outcome = submitted(reply(200, elsewhere))
    assert (outcome.kind, outcome.external_id) == (Kind.IN_DOUBT, None)


def test_a_long_order_id_is_in_the_metadata_alone() -> None:
    order = order_of("x" * 128)
    send = Scripted(SQUARE.creates(order))
    assert SQUARE.create(order, send).kind is Kind.ACCEPTED
    assert "reference_id" not in body(send.requests[0])["order"]


def test_a_discount_among_the_modifiers_is_in_the_items_price() -> None:
    modifiers = [{"name": "cheese", "unit_price": 100}, {"name": "coupon", "unit_price": -150}]
    item = {"sku": "s", "name": "Burger", "quantity": 1, "unit_price": 850, "modifiers": modifiers}
    order = order_of(items=[item], total=800)
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send)
    [line] = body(send.requests[0])["order"]["line_items"]
    assert line["base_price_money"]["amount"] == 800
    assert [each["base_price_money"]["amount"] for each in line["modifiers"]] == [0, 0]


def test_a_catalog_item_has_its_name_and_the_orders_price() -> None:
    modifiers = [
        {"sku": "che", "name": "cheese", "quantity": 2, "unit_price": 100},
        {"sku": "odd", "name": "odd one", "unit_price": 5},
        {"name": "no onions"},
    ]
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850, "notes": "rare"}
    order = order_of(items=[{**item, "modifiers": modifiers}], total=1055)
    merchant = SQUARE.merchant.with_catalog({"bur": "V1", "che": "M1"})
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send, merchant)

    def money(amount: int) -> dict[str, object]:
        return {"amount": amount, "currency": "EUR"}

    [line] = body(send.requests[0])["order"]["line_items"]
    assert line == {
        "catalog_object_id": "V1",
        "quantity": "1",
        "base_price_money": money(850),
        "modifiers": [
            {"catalog_object_id": "M1", "quantity": "2", "base_price_money": money(100)},
            {"name": "odd one", "quantity": "1", "base_price_money": money(5)},
            {"name": "no onions", "quantity": "1", "base_price_money": money(0)},
        ],
        "note": "rare",
    }


def test_a_catalog_modifier_on_an_ad_hoc_item_is_ad_hoc() -> None:
    modifiers = [{"sku": "che", "name": "cheese", "unit_price": 100}]
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
    order = order_of(items=[{**item, "modifiers": modifiers}], total=950)
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send, SQUARE.merchant.with_catalog({"che": "M1"}))
    [line] = body(send.requests[0])["order"]["line_items"]
    assert [each.get("name") for each in (line, *line["modifiers"])] == ["Burger", "cheese"]


def test_an_unknown_item_is_named_in_squares_words() -> None:
    detail = "Item variation with catalog object ID `V1` not found."
    unknown = {"errors": [{"code": "NOT_FOUND", "detail": detail}]}
    failed, rejected = submitted(reply(404, unknown)), submitted(reply(400, unknown))
    assert [each.kind for each in (failed, rejected)] == [Kind.FAILED, Kind.REJECTED]
    for outcome, code in ((failed, "http_404"), (rejected, "item_unavailable")):
        assert outcome.reason is not None
        assert (outcome.reason.code, outcome.reason.message) == (code, f"NOT_FOUND {detail}")


def test_a_refusal_that_may_mean_a_duplicate_is_looked_up() -> None:
    assert submitted(REUSED, FOUND).kind is Kind.ACCEPTED
    assert submitted(REUSED, *SQUARE.unknown).kind is Kind.IN_DOUBT
    assert submitted(BAD, FOUND).kind is Kind.ACCEPTED
    rejected = submitted(BAD, *SQUARE.unknown)
    assert rejected.kind is Kind.REJECTED
    assert rejected.reason is not None
    assert rejected.reason.code == "invalid_order"
    assert "already exists" in rejected.reason.message


def test_an_order_is_looked_up_page_by_page_in_its_time() -> None:
    page = reply(200, {"orders": [{"id": "other"}], "cursor": "next"})
    send = Scripted(page, FOUND)
    known = SQUARE.look_up(ORDER, send)
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    first, second = map(body, send.requests)
    assert second == {**first, "cursor": "next"}
    window = first["query"]["filter"]["date_time_filter"]["created_at"]
    assert window["start_at"] < ORDER.placed_at.isoformat() < window["end_at"]
    endless = Scripted(*[page] * 100)
    lost = SQUARE.look_up(ORDER, endless)
    assert lost is not None
    assert lost.kind is Kind.IN_DOUBT


def test_cancelling_names_the_version_with_a_separate_key() -> None:
    send = Scripted(*SQUARE.cancelled(SQUARE.accepted(ORDER.order_id)))
    SQUARE.undo(ORDER, send)
    request = send.requests[1]
    assert (request.method, request.url.rpartition("/")[2]) == (
        "PUT",
        "CAISENgvlJ6jLWAzERDzjyHVybY",
    )
    fulfillments = [{"uid": "F0", "state": "CANCELED"}]
    expected = {"location_id": "L1", "version": 1, "state": "CANCELED"}
    expected["fulfillments"] = fulfillments
    assert body(request)["order"] == expected


@pytest.mark.parametrize("refusal", [(400, "VERSION_MISMATCH"), (409, "CONFLICT")])
def test_an_order_that_square_has_changed_meanwhile_is_looked_up_and_cancelled_once_more(
    refusal: tuple[int, str],
) -> None:
    status, code = refusal
    outdated = reply(status, {"errors": [{"code": code}]})
    look_ups = [
        reply(200, {"orders": [{**SQUARE.accepted(ORDER.order_id)["order"], "version": version}]})
        for version in (1, 2)
    ]
    cancelled = SQUARE.cancelled(SQUARE.accepted(ORDER.order_id))[-1]
    for last, kind in ((cancelled, Kind.CANCELLED), (outdated, Kind.RETRY)):
        send = Scripted(look_ups[0], outdated, look_ups[1], last)
        assert SQUARE.undo(ORDER, send).kind is kind
        assert [body(send.requests[n])["order"]["version"] for n in (1, 3)] == [1, 2]
        assert send.replies == []


def test_an_order_that_square_has_changed_twice_is_cancelled_later(tmp_path: Path) -> None:
    till = Till(tax=None)
    mismatch = (400, {"errors": [{"code": "VERSION_MISMATCH"}]})
    till.refuses += [("PUT", mismatch)] * 2
    gate = till.a_gate(tmp_path)
    gate.take(gate.an_order(seconds=3600))
    assert gate.take_cancel(seconds=900).again is not None
    gate.wait(30)
    gate.take_cancel(seconds=900)
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]


def test_an_order_that_is_still_open_after_its_cancellation_is_in_doubt() -> None:
    is_open = SQUARE.accepted(ORDER.order_id)
    send = Scripted(reply(200, {"orders": [is_open["order"]]}), reply(200, is_open))
    outcome = SQUARE.undo(ORDER, send)
    assert outcome.kind is Kind.IN_DOUBT


def test_each_version_is_cancelled_with_a_separate_key() -> None:
    keys = set()
    for version in (1, 2):
        order = {**SQUARE.accepted(ORDER.order_id)["order"], "version": version}
        send = Scripted(reply(200, {"orders": [order]}), reply(500))
        SQUARE.undo(ORDER, send)
        keys.add(body(send.requests[1])["idempotency_key"])
    assert len(keys) == 2


def test_an_orders_fulfillments_are_cancelled_with_it() -> None:
    order = {**SQUARE.accepted(ORDER.order_id)["order"]}
    order["fulfillments"] = [{"uid": "a", "state": "PROPOSED"}, {"uid": "b", "state": "CANCELED"}]
    send = Scripted(reply(200, {"orders": [order]}), reply(500))
    SQUARE.undo(ORDER, send)
    sent = body(send.requests[1])["order"]
    assert sent["fulfillments"] == [{"uid": "a", "state": "CANCELED"}]


def test_a_pickup_names_its_recipient() -> None:
    customer = {"name": "Ada", "phone": "+1 555 0100"}
    order = order_of(customer=customer, notes="no nuts", fulfillment="pickup")
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send)
    [fulfillment] = body(send.requests[0])["order"]["fulfillments"]
    assert (fulfillment["type"], fulfillment["state"]) == ("PICKUP", "PROPOSED")
    assert fulfillment["pickup_details"] == {
        "schedule_type": "ASAP",
        "recipient": {"display_name": "Ada"},
        "note": "+1 555 0100 no nuts",
    }


@pytest.mark.parametrize(
    ("text", "most", "fields"),
    [
        ("items[0].name", 512, lambda x: {"items": [{**ITEM, "name": x}]}),
        ("items[0].notes", 2000, lambda x: {"items": [{**ITEM, "notes": x}]}),
        ("items[0].notes and notes", 1994, lambda x: {"items": [{**ITEM, "notes": x}], "notes": "nut"}),
        ("notes", 2000, lambda x: {"notes": x, "fulfillment": "pickup", "customer": {"name": "A"}}),
        ("items[0].modifiers[0].name", 255, lambda x: {"items": [{**ITEM, "modifiers": [{"name": x}]}]}),
        ("customer.name", 255, lambda x: {"fulfillment": "pickup", "customer": {"name": x}}),
    ],
)  # fmt: skip
def test_a_text_is_sent_whole_or_refused_with_its_name(
    text: str, most: int, fields: Callable[[str], dict[str, Any]]
) -> None:
    whole = order_of(**fields("x" * most))
    send = Scripted(SQUARE.creates(whole))
    assert SQUARE.create(whole, send).kind is Kind.ACCEPTED
    assert b"x" * most in (send.requests[0].body or b"")
    refused = SQUARE.create(order_of(**fields("x" * (most + 1))), Scripted())
    assert refused.reason is not None
    assert (refused.kind, refused.reason.code) == (Kind.REJECTED, "text_too_long")
    assert refused.reason.message.startswith(f"{text} has ")


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("+1 (415) 555-2671", "+14155552671"),
        ("+49 170 1234567", "+491701234567"),
        ("+1 555 0100", None),  # a digit short
        ("555-0100", None),
        ("+1234567890123456", None),
        ("+49 170 1234567 ext. 3", None),
        ("+\u0661\u0664155552671", None),
    ],
)
def test_a_phone_number_is_the_recipients_or_in_the_note(given: str, number: str | None) -> None:
    customer = {"name": "Ada", "phone": given}
    order = order_of(customer=customer, notes="no nuts", fulfillment="pickup")
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send)
    [fulfillment] = body(send.requests[0])["order"]["fulfillments"]
    details = fulfillment["pickup_details"]
    assert details["recipient"].get("phone_number") == number
    assert details["note"] == ("no nuts" if number else f"{given} no nuts")


def test_a_pickup_note_that_is_too_long_is_in_the_first_line_alone() -> None:
    customer = {"name": "Ada", "phone": "555-0100"}
    order = order_of(customer=customer, notes="n" * 499, fulfillment="pickup")
    send = Scripted(SQUARE.creates(order))
    SQUARE.create(order, send)
    sent = body(send.requests[0])["order"]
    assert sent["fulfillments"][0]["pickup_details"]["note"] == "555-0100"
    assert sent["line_items"][0]["note"] == "n" * 499


def test_every_request_names_the_version_of_the_api() -> None:
    accepted = SQUARE.accepted(ORDER.order_id)
    send = Scripted(BAD, FOUND, reply(200, accepted), SQUARE.cancelled(accepted)[-1])
    SQUARE.create(ORDER, send)
    known = ORDER.in_ledger(None, None, "S1")
    SQUARE.undo(known, send)
    assert {each.method for each in send.requests} == {"POST", "GET", "PUT"}
    assert {each.headers["Square-Version"] for each in send.requests} == {"2026-09-16"}


class Busy:
    """Square with large orders of others before ours: a page of most is longer than is read."""

    def __init__(self, number: int, size: int) -> None:
        self.orders: list[Any] = [{"id": f"X{n}", "note": "x" * size} for n in range(number)]
        self.orders.append(SQUARE.accepted(ORDER.order_id)["order"])
        self.asked: list[str] = []

    def __call__(self, request: Request) -> Reply:
        self.asked.append(f"{request.method} {request.url.rpartition('/v2/orders')[2]}")
        if request.method == "GET":
            ours = [each for each in self.orders if request.url.endswith(f"/{each['id']}")]
            answer = reply(200, {"order": ours[0]}) if ours else reply(404)
        elif request.method == "PUT":
            answer = reply(200, {"order": {**self.orders[-1], "state": "CANCELED"}})
        else:
            said = body(request)
            limit = said["limit"]
            of, _, first = said.get("cursor", f"{limit}:0").partition(":")
            assert of == str(limit)  # a cursor is for the request that it came from
            last = int(first) + limit
            more = {"cursor": f"{limit}:{last}"} if last < len(self.orders) else {}
            answer = reply(200, {"orders": self.orders[int(first) : last], **more})
        if len(answer.body) > request.expects:
            raise NoValidReply("reply_too_long", "the reply is too long")
        return answer


@pytest.mark.parametrize(("number", "size"), [(30, 14_000), (19, 30_000), (2, 250_000)])
def test_pages_that_are_too_long_are_halved(number: int, size: int) -> None:
    pos = Busy(number, size)
    assert SQUARE.undo(ORDER, pos).kind is Kind.CANCELLED
    assert len(pos.asked) <= 12


def test_a_look_up_of_a_single_too_long_order_is_given_up_after_a_few_requests() -> None:
    pos = Busy(1, 300_000)
    with pytest.raises(NoValidReply, match="too long"):
        SQUARE.look_up(ORDER, pos)
    assert len(pos.asked) == 5  # of 20, 10, 5, 2 and 1


def test_another_failure_of_a_page_does_not_shorten_the_next() -> None:
    asked: list[Request] = []

    def pos(request: Request) -> Reply:
        asked.append(request)
        raise NoValidReply("timeout", "no reply in time")

    with pytest.raises(NoValidReply):
        SQUARE.look_up(ORDER, pos)
    assert len(asked) == 1


def test_an_order_with_a_known_square_id_is_not_searched_for() -> None:
    pos = Busy(1000, 14_000)
    order = ORDER.in_ledger(None, None, pos.orders[-1]["id"])
    assert SQUARE.undo(order, pos).kind is Kind.CANCELLED
    known_as = pos.orders[-1]["id"]
    assert pos.asked == [f"GET /{known_as}", f"PUT /{known_as}"]


@pytest.mark.parametrize("known_as", ["X0", "[secret]"])
def test_an_id_of_another_order_or_of_none_is_ignored(known_as: str) -> None:
    """An operator may have mistyped it, and what looks like a secret is not kept."""
    pos = Busy(1, 10)
    order = ORDER.in_ledger(None, None, known_as)
    assert SQUARE.undo(order, pos).kind is Kind.CANCELLED
    assert pos.asked[1:] == ["POST /search", f"PUT /{pos.orders[-1]['id']}"]
    doubtful = SQUARE.undo(order, Scripted(reply(500)))
    assert doubtful.kind is Kind.IN_DOUBT
