"""Clover: what the conformance suite does not test."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.clover_pos import CloverPos
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import CLOVER, DIGEST, body, order_of


def code_of(outcome: Outcome) -> str:
    assert outcome.reason is not None
    return outcome.reason.code


def test_an_order_is_one_line_for_each_piece_with_our_id_in_the_note() -> None:
    modifiers = [{"name": "cheese", "quantity": 2, "unit_price": 50}, {"name": "no onions"}]
    item = {"sku": "s", "name": "Burger", "quantity": 2, "unit_price": 850, "modifiers": modifiers}
    order = order_of(items=[item], total=1900, customer={"name": "Ada"}, notes="no\nnuts")
    send = CloverPos()
    assert CLOVER.adapter.submit(order, CLOVER.merchant, send).kind is Kind.ACCEPTED
    [request] = send.requests
    assert request.url == "https://pos.example.com/v3/merchants/M1/atomic_order/orders"
    line = {"name": "Burger", "price": 950, "note": "2 x cheese; no onions"}
    assert body(request) == {
        "orderCart": {"note": f"[order/1] #{DIGEST} Ada no nuts", "lineItems": [line, line]}
    }


def test_a_catalog_item_is_an_inventory_item_at_the_orders_price() -> None:
    modifiers = [
        {"sku": "che", "name": "cheese", "quantity": 2, "unit_price": 50},
        {"name": "no onions", "unit_price": 10},
    ]
    item = {"sku": "bur", "name": "Burger", "quantity": 2, "unit_price": 850, "notes": "rare"}
    order = order_of(items=[{**item, "modifiers": modifiers}], total=1920)
    merchant = CLOVER.merchant.with_catalog({"bur": "I1", "che": "M1"})
    send = CloverPos()
    assert CLOVER.adapter.submit(order, merchant, send).kind is Kind.ACCEPTED
    line = {
        "item": {"id": "I1"},
        "price": 860,
        "modifications": [{"modifier": {"id": "M1"}, "name": "2 x cheese", "amount": 100}],
        "note": "no onions; rare",
    }
    assert body(send.requests[0])["orderCart"]["lineItems"] == [line, line]


def test_a_discounted_inventory_item_has_the_whole_price() -> None:
    modifiers = [
        {"sku": "che", "name": "cheese", "unit_price": 50},
        {"name": "coupon", "unit_price": -880},
    ]
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
    order = order_of(items=[{**item, "modifiers": modifiers}], total=20)
    merchant = CLOVER.merchant.with_catalog({"bur": "I1", "che": "M1"})
    send = CloverPos()
    assert CLOVER.adapter.submit(order, merchant, send).kind is Kind.ACCEPTED
    [line] = body(send.requests[0])["orderCart"]["lineItems"]
    assert (line["price"], line["modifications"][0]["amount"]) == (20, 0)


def test_more_pieces_than_clover_takes_are_rejected_unsent() -> None:
    for number, kind in ((2500, Kind.ACCEPTED), (2501, Kind.REJECTED)):
        pos = CloverPos()
        item = {"sku": "s", "name": "Chip", "quantity": number, "unit_price": 1}
        order = order_of(items=[item], total=number)
        outcome = CLOVER.adapter.submit(order, CLOVER.merchant, pos)
        assert outcome.kind is kind
        assert len(pos.requests) == (kind is Kind.ACCEPTED)
    assert code_of(outcome) == "invalid_order"


def test_an_order_that_clover_taxes_is_deleted_and_rejected_with_both_totals() -> None:
    pos = CloverPos(tax=9)
    outcome = CLOVER.adapter.submit(order_of(), CLOVER.merchant, pos)
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert outcome.reason is not None
    assert "1853" in outcome.reason.message
    assert "1700" in outcome.reason.message
    assert [request.method for request in pos.requests] == ["POST", "DELETE"]
    assert pos.standing == []


def test_an_order_in_another_currency_is_deleted_and_rejected() -> None:
    pos = CloverPos(currency="USD")
    outcome = CLOVER.adapter.submit(order_of(), CLOVER.merchant, pos)
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert pos.standing == []


@pytest.mark.parametrize(
    "odd", [{"total": True}, {"total": 1700.0}, {"total": None}, {"currency": {"code": "EUR"}}]
)
def test_an_order_whose_total_is_not_known_is_in_doubt_and_stays(odd: dict[str, Any]) -> None:
    send = Scripted(reply(200, {**CLOVER.accepted("order/1"), **odd}))
    outcome = CLOVER.adapter.submit(order_of(), CLOVER.merchant, send)
    assert (outcome.kind, outcome.external_id) == (Kind.IN_DOUBT, None)
    assert len(send.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_an_order_with_another_total_that_is_not_deleted_is_in_doubt(status: int) -> None:
    made = {**CLOVER.accepted("order/1"), "total": 1853}
    send = Scripted(reply(200, made), reply(status), CLOVER.found(made), reply(status))
    for call in (CLOVER.adapter.submit, CLOVER.adapter.look_up):
        outcome = call(order_of(), CLOVER.merchant, send)
        assert outcome is not None
        assert (outcome.kind, code_of(outcome)) == (Kind.IN_DOUBT, "price_mismatch")


def test_an_order_with_another_total_that_is_paid_is_left_to_an_operator() -> None:
    made = {**CLOVER.accepted("order/1"), "total": 1853, "state": "locked"}
    outcome = CLOVER.adapter.submit(order_of(), CLOVER.merchant, Scripted(reply(200, made)))
    assert (outcome.kind, outcome.for_operator, outcome.external_id) == (Kind.IN_DOUBT, True, None)
    assert outcome.contact is CallResult.ANSWERED
    assert outcome.reason is not None
    assert made["id"] in outcome.reason.message


@pytest.mark.parametrize("after", [0, 9_000, 11_000])
def test_an_order_in_doubt_that_the_shop_has_changed_is_left_to_an_operator(after: int) -> None:
    """A guest adds a dessert at the till while the create's lost reply is waited for."""
    at = 1_800_000_000_000
    made = {**CLOVER.accepted("order/1"), "total": 2200, "createdTime": at}
    send = Scripted(CLOVER.found({**made, "modifiedTime": at + after}), reply(200))
    known = CLOVER.adapter.look_up(order_of(), CLOVER.merchant, send)
    assert known is not None
    is_changed = after > 10_000
    assert (known.kind is Kind.IN_DOUBT, known.for_operator) == (is_changed, is_changed)
    assert [request.method for request in send.requests] == ["GET", "DELETE"][: 2 - is_changed]


@pytest.mark.parametrize("lost", ["POST", "DELETE"])
def test_an_order_with_another_total_is_never_accepted_whatever_reply_is_lost(lost: str) -> None:
    pos, order = CloverPos(tax=9), order_of()
    pos.silent = {lost}
    with pytest.raises(NoValidReply):
        CLOVER.adapter.submit(order, CLOVER.merchant, pos)
    pos.silent = set()
    known = CLOVER.adapter.look_up(order, CLOVER.merchant, pos)
    if known is not None:
        assert (lost, known.kind, code_of(known)) == ("POST", Kind.REJECTED, "price_mismatch")
    assert pos.standing == []


def test_a_deletion_that_is_not_sent_leaves_the_order_in_doubt() -> None:
    """As not sent, the order would be made a second time."""
    pos = CloverPos(tax=9)

    def send(request: Request) -> Reply:
        if request.method == "DELETE":
            raise NotSent("refused", "no connection")
        return pos(request)

    with pytest.raises(NoValidReply, match="no connection"):
        CLOVER.adapter.submit(order_of(), CLOVER.merchant, Send(send))
    with pytest.raises(NoValidReply, match="no connection"):
        CLOVER.adapter.look_up(order_of(), CLOVER.merchant, Send(send))
    assert len(pos.standing) == 1


def test_an_accepted_order_whose_total_the_shop_has_changed_stays_accepted() -> None:
    pos, order = CloverPos(), order_of()
    accepted = CLOVER.adapter.submit(order, CLOVER.merchant, pos)
    pos.orders[0]["total"] = 2200  # a dessert
    order = order.in_ledger(None, None, accepted.external_id)
    assert CLOVER.adapter.look_up(order, CLOVER.merchant, pos) == accepted
    assert CLOVER.adapter.cancel(order, CLOVER.merchant, pos).kind is Kind.CANCELLED


def test_an_order_in_doubt_with_another_total_can_be_cancelled() -> None:
    pos, order = CloverPos(tax=9), order_of()
    pos.silent = {"POST"}
    with pytest.raises(NoValidReply):
        CLOVER.adapter.submit(order, CLOVER.merchant, pos)
    assert CLOVER.adapter.cancel(order, CLOVER.merchant, pos).kind is Kind.CANCELLED


def texts(size: int) -> dict[str, dict[str, Any]]:
    """Orders with a text of this length at one place, without what the adapter adds to it."""
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
    topping = {"sku": "che", "name": "x" * size}
    toppings = [{"name": "x" * 9, "unit_price": 0}] * (size // 11)
    return {
        "notes": {"notes": "x" * (size - len(f"[order/1] #{DIGEST} "))},
        "items[0].name": {"items": [{**item, "sku": "s", "name": "x" * size}]},
        "items[0].notes": {"items": [{**item, "notes": "x" * size}]},
        "items[0].modifiers[0].name": {"items": [{**item, "modifiers": [topping]}]},
        "modifiers' names": {
            "items": [{**item, "modifiers": toppings, "notes": "x" * (size % 11)}]
        },
    }


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("notes", 2047),
        ("items[0].name", 127),
        ("items[0].notes", 255),
        ("items[0].modifiers[0].name", 255),
        ("modifiers' names", 255),
    ],
)
def test_a_text_is_sent_whole_or_refused_by_name(field: str, most: int) -> None:
    """40 toppings were paid for, and 14 of them reached the ticket."""
    merchant = CLOVER.merchant.with_catalog({"bur": "I1", "che": "M1"})
    for size, code in ((most, None), (most + 1, "text_too_long")):
        pos = CloverPos()
        order = order_of(**{"total": 1700 if field == "notes" else 850, **texts(size)[field]})
        outcome = CLOVER.adapter.submit(order, merchant, pos)
        if code is None:
            assert outcome.kind is Kind.ACCEPTED
            assert len(pos.orders) == 1
        else:
            assert code_of(outcome) == code
            assert outcome.reason is not None
            assert field in outcome.reason.message
            assert pos.requests == []


def test_an_order_for_the_same_amount_without_a_note_is_ambiguous() -> None:
    order = order_of()

    def look_up(**found: object) -> Outcome | None:
        answer = reply(200, {"elements": [{"id": "7", **found}]})
        return CLOVER.adapter.look_up(order, CLOVER.merchant, Scripted(answer))

    lost = look_up(total=order.total)
    assert lost is not None
    assert lost.kind is Kind.IN_DOUBT
    assert look_up(total=order.total, note="[another] Ada") is None
    assert look_up(total=order.total - 1) is None
    assert look_up(total=2 * order.total) is None


@pytest.mark.parametrize("tax", [0, 9, 25])
def test_an_order_whose_note_was_lost_is_in_doubt_also_with_tax(tax: int) -> None:
    """As absent, it would be made a second time."""
    pos, order = CloverPos(tax=tax, loses=True), order_of()
    pos.silent = {"POST"}
    with pytest.raises(NoValidReply):
        CLOVER.adapter.submit(order, CLOVER.merchant, pos)
    known = CLOVER.adapter.look_up(order, CLOVER.merchant, pos)
    assert known is not None
    assert known.kind is Kind.IN_DOUBT


def test_an_acceptance_may_leave_out_the_note() -> None:
    accepted = {**CLOVER.accepted("order/1"), "note": None}
    send = Scripted(reply(200, accepted))
    assert CLOVER.adapter.submit(order_of(), CLOVER.merchant, send).kind is Kind.ACCEPTED


def test_an_order_is_looked_up_page_by_page_by_its_whole_mark() -> None:
    order = order_of()
    alike = {**CLOVER.accepted("order/1"), "note": f"[order/1]] #{DIGEST} Ada"}
    full = reply(200, {"elements": [alike] * 100})
    send = Scripted(full, CLOVER.found(CLOVER.accepted(order.order_id)))
    known = CLOVER.adapter.look_up(order, CLOVER.merchant, send)
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    queries = [parse_qs(urlsplit(request.url).query) for request in send.requests]
    assert [query["offset"] for query in queries] == [["0"], ["90"]]
    assert [each[:13] for each in queries[0]["filter"]] == ["createdTime>=", "createdTime<="]
    lost = CLOVER.adapter.look_up(order, CLOVER.merchant, Scripted(*[full] * 100))
    assert lost is not None
    assert lost.kind is Kind.IN_DOUBT


class Shrinking:
    """Clover with this many orders before ours, some of which are deleted during the look-up."""

    def __init__(self, before: int, deleted: range, size: int = 0) -> None:
        fields = {"title": "x" * size}
        others = [{**CLOVER.accepted(f"x{n}"), "id": f"X{n}", **fields} for n in range(before)]
        self._orders = [*others, CLOVER.accepted("order/1")]
        self._deleted = deleted
        self.asked = 0

    def __call__(self, request: Request) -> Reply:
        query = parse_qs(urlsplit(request.url).query)
        offset, limit = int(query["offset"][0]), int(query["limit"][0])
        found = self._orders[offset : offset + limit]
        del self._orders[self._deleted.start : self._deleted.stop]
        self._deleted = range(0)
        self.asked += 1
        answer = reply(200, {"elements": found})
        if len(answer.body) > request.expects:
            raise NoValidReply("reply_too_long", "the reply is too long")
        return answer


@pytest.mark.parametrize("before", [90, 95, 99, 100, 101, 189, 190])
@pytest.mark.parametrize("number", [0, 1, 5, 10, 11, 50])
@pytest.mark.parametrize("first", [0, 95])
def test_an_order_is_found_or_in_doubt_however_many_are_deleted_meanwhile(
    before: int, number: int, first: int
) -> None:
    deleted = range(first, min(first + number, before))
    known = CLOVER.adapter.look_up(order_of(), CLOVER.merchant, Shrinking(before, deleted))
    assert known is not None
    if known.kind is not Kind.ACCEPTED:
        assert known.kind is Kind.IN_DOUBT
        assert number


@pytest.mark.parametrize(
    ("before", "size"), [(120, 3_000), (60, 6_000), (19, 30_000), (3, 120_000), (3, 100_000)]
)
@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_pages_that_are_too_long_are_halved(before: int, size: int, number: int) -> None:
    pos = Shrinking(before, range(min(number, before)), size)
    known = CLOVER.adapter.look_up(order_of(), CLOVER.merchant, pos)
    assert known is not None
    if known.kind is not Kind.ACCEPTED:
        assert known.kind is Kind.IN_DOUBT
        assert number
    assert pos.asked <= 16


def test_a_look_up_of_a_single_too_long_order_is_given_up_after_a_few_requests() -> None:
    pos = Shrinking(1, range(0), 300_000)
    with pytest.raises(NoValidReply, match="too long"):
        CLOVER.adapter.look_up(order_of(), CLOVER.merchant, pos)
    assert pos.asked == 7  # of 100, 50, 25, 12, 6, 3 and 2


@pytest.mark.parametrize(
    "answers",
    [
        [reply(200, CLOVER.accepted("order/1"))],
        [reply(404), CLOVER.found(CLOVER.accepted("order/1"))],
        [reply(200, CLOVER.accepted("x")), CLOVER.found(CLOVER.accepted("order/1"))],
    ],
)
def test_an_order_with_a_known_clover_id_is_searched_for_only_if_that_is_anothers(
    answers: list[Reply],
) -> None:
    send = Scripted(*answers, reply(200))
    order = order_of().in_ledger(None, None, "K/1")
    assert CLOVER.adapter.cancel(order, CLOVER.merchant, send).kind is Kind.CANCELLED
    assert send.requests[0].url.endswith("/v3/merchants/M1/orders/K%2F1")
    assert send.requests[-1].url.endswith(f"/orders/{CLOVER.accepted('')['id']}")
    assert send.replies == []


def test_an_order_with_a_known_clover_id_is_none_of_those_without_a_note() -> None:
    walk_in = {"id": "W", "state": "open", "total": order_of().total}
    for known_as, is_known in (("K", False), (None, True)):
        answers = [reply(404)] if known_as else []
        send = Scripted(*answers, CLOVER.found(walk_in))
        order = order_of().in_ledger(None, None, known_as)
        known = CLOVER.adapter.look_up(order, CLOVER.merchant, send)
        assert (known is not None) is is_known
