"""Square: what the conformance suite does not test."""

from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import Reply
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import SQUARE, body, order_of

ORDER = order_of(customer={"name": "Ada"}, notes="no nuts")
REUSED = reply(400, {"errors": [{"code": "IDEMPOTENCY_KEY_REUSED"}]})
BAD = reply(400, {"errors": [{"code": "BAD_REQUEST", "detail": "Order 7 already exists."}]})
FOUND = SQUARE.found(SQUARE.accepted(ORDER.order_id))


def submitted(*replies: Reply) -> Outcome:
    return SQUARE.adapter.submit(ORDER, SQUARE.merchant, Scripted(*replies))


def test_an_order_goes_to_the_merchants_location_as_ad_hoc_items() -> None:
    send = Scripted(reply(200, SQUARE.accepted(ORDER.order_id)))
    SQUARE.adapter.submit(ORDER, SQUARE.merchant, send)
    [request] = send.requests
    assert (request.method, request.url) == ("POST", "https://pos.example.com/v2/orders")
    sent = body(request)
    assert len(sent["idempotency_key"]) <= 192
    assert sent["order"] == {
        "location_id": "L1",
        "metadata": {"order_id": "order/1"},
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
    }


def test_a_long_order_id_is_in_the_metadata_alone() -> None:
    order = order_of("x" * 128)
    send = Scripted(reply(200, SQUARE.accepted(order.order_id)))
    assert SQUARE.adapter.submit(order, SQUARE.merchant, send).kind is Kind.ACCEPTED
    assert "reference_id" not in body(send.requests[0])["order"]


def test_a_discount_among_the_modifiers_is_in_the_items_price() -> None:
    modifiers = [{"name": "cheese", "unit_price": 100}, {"name": "coupon", "unit_price": -150}]
    item = {"sku": "s", "name": "Burger", "quantity": 1, "unit_price": 850, "modifiers": modifiers}
    order = order_of(items=[item], total=800)
    send = Scripted(reply(200, SQUARE.accepted(order.order_id)))
    SQUARE.adapter.submit(order, SQUARE.merchant, send)
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
    send = Scripted(reply(200, SQUARE.accepted(order.order_id)))
    SQUARE.adapter.submit(order, merchant, send)

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
    send = Scripted(reply(200, SQUARE.accepted(order.order_id)))
    SQUARE.adapter.submit(order, SQUARE.merchant.with_catalog({"che": "M1"}), send)
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
    assert submitted(REUSED, SQUARE.unknown).kind is Kind.IN_DOUBT
    assert submitted(BAD, FOUND).kind is Kind.ACCEPTED
    rejected = submitted(BAD, SQUARE.unknown)
    assert rejected.kind is Kind.REJECTED
    assert rejected.reason is not None
    assert rejected.reason.code == "invalid_order"
    assert "already exists" in rejected.reason.message


def test_an_order_is_looked_up_page_by_page_in_its_time() -> None:
    page = reply(200, {"orders": [{"id": "other"}], "cursor": "next"})
    send = Scripted(page, FOUND)
    known = SQUARE.adapter.look_up(ORDER, SQUARE.merchant, send)
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    first, second = map(body, send.requests)
    assert second == {**first, "cursor": "next"}
    window = first["query"]["filter"]["date_time_filter"]["created_at"]
    assert window["start_at"] < ORDER.placed_at.isoformat() < window["end_at"]
    endless = Scripted(*[page] * 100)
    lost = SQUARE.adapter.look_up(ORDER, SQUARE.merchant, endless)
    assert lost is not None
    assert lost.kind is Kind.IN_DOUBT


def test_cancelling_names_the_version_with_a_separate_key() -> None:
    send = Scripted(*SQUARE.cancelled(SQUARE.accepted(ORDER.order_id)))
    SQUARE.adapter.cancel(ORDER, SQUARE.merchant, send)
    request = send.requests[1]
    assert (request.method, request.url.rpartition("/")[2]) == (
        "PUT",
        "CAISENgvlJ6jLWAzERDzjyHVybY",
    )
    expected = {"location_id": "L1", "version": 1, "state": "CANCELED", "fulfillments": []}
    assert body(request)["order"] == expected


def test_an_order_that_is_still_open_after_its_cancellation_is_in_doubt() -> None:
    is_open = SQUARE.accepted(ORDER.order_id)
    send = Scripted(reply(200, {"orders": [is_open["order"]]}), reply(200, is_open))
    outcome = SQUARE.adapter.cancel(ORDER, SQUARE.merchant, send)
    assert outcome.kind is Kind.IN_DOUBT


def test_each_version_is_cancelled_with_a_separate_key() -> None:
    keys = set()
    for version in (1, 2):
        order = {**SQUARE.accepted(ORDER.order_id)["order"], "version": version}
        send = Scripted(reply(200, {"orders": [order]}), reply(500))
        SQUARE.adapter.cancel(ORDER, SQUARE.merchant, send)
        keys.add(body(send.requests[1])["idempotency_key"])
    assert len(keys) == 2


def test_an_orders_fulfillments_are_cancelled_with_it() -> None:
    order = {**SQUARE.accepted(ORDER.order_id)["order"]}
    order["fulfillments"] = [{"uid": "a", "state": "PROPOSED"}, {"uid": "b", "state": "CANCELED"}]
    send = Scripted(reply(200, {"orders": [order]}), reply(500))
    SQUARE.adapter.cancel(ORDER, SQUARE.merchant, send)
    sent = body(send.requests[1])["order"]
    assert sent["fulfillments"] == [{"uid": "a", "state": "CANCELED"}]


def test_a_pickup_names_its_recipient() -> None:
    customer = {"name": "Ada", "phone": "+1 555 0100"}
    order = order_of(customer=customer, notes="no nuts", fulfillment="pickup")
    send = Scripted(reply(200, SQUARE.accepted(order.order_id)))
    SQUARE.adapter.submit(order, SQUARE.merchant, send)
    [fulfillment] = body(send.requests[0])["order"]["fulfillments"]
    assert (fulfillment["type"], fulfillment["state"]) == ("PICKUP", "PROPOSED")
    assert fulfillment["pickup_details"] == {
        "schedule_type": "ASAP",
        "recipient": {"display_name": "Ada"},
        "note": "+1 555 0100 no nuts",
    }
