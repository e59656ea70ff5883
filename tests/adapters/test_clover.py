"""Clover: what the conformance suite does not test, and no strict Clover can be made to do."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.clover_shop import Shop
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import CLOVER, DIGEST, body, order_of

#: The replies of lists that know no reference of ours.
NO_REFERENCE = CLOVER.unknown[:2]


def code_of(outcome: Outcome) -> str:
    assert outcome.reason is not None
    return outcome.reason.code


def cart_of(order: Order, **catalog: str) -> dict[str, Any]:
    """What is previewed, and then made."""
    send = Scripted(*CLOVER.before(order), CLOVER.creates(order))
    merchant = CLOVER.merchant.with_catalog(catalog)
    assert CLOVER.create(order, send, merchant).kind is Kind.ACCEPTED
    preview, creation = send.requests
    urls = [
        f"https://pos.example.com/v3/merchants/M1/atomic_order/{x}" for x in ("checkouts", "orders")
    ]
    assert [preview.url, creation.url] == urls
    assert (preview.body, preview.changes) == (creation.body, False)
    cart = body(creation)["orderCart"]
    assert isinstance(cart, dict)
    return cart


def test_an_order_is_one_line_for_each_piece_with_our_id_in_the_note() -> None:
    modifiers = [{"name": "cheese", "quantity": 2, "unit_price": 50}, {"name": "no onions"}]
    item = {"sku": "s", "name": "Burger", "quantity": 2, "unit_price": 850, "modifiers": modifiers}
    fields = {"customer": {"name": "Ada"}, "notes": "no\nnuts", "fulfillment": "dine in"}
    cart = cart_of(order_of(items=[item], total=1900, **fields))
    assert len(cart.pop("externalReferenceId")) == 12
    line = {"name": "Burger", "price": 950, "note": "2 x cheese; no onions"}
    note = f"[order/1] #{DIGEST} Ada dine in no nuts"
    assert cart == {"state": "open", "note": note, "lineItems": [line, line]}


def test_a_reference_is_one_orders_of_one_merchant() -> None:
    orders = [order_of(order_id, merchant_id=m) for order_id in "ab" for m in ("m-1", "m-2")]
    references = [cart_of(each)["externalReferenceId"] for each in orders]
    assert len(set(references)) == len(orders)


def test_a_catalog_item_is_an_inventory_item_at_the_orders_price() -> None:
    modifiers = [
        {"sku": "che", "name": "cheese", "quantity": 2, "unit_price": 50},
        {"name": "no onions", "unit_price": 10},
    ]
    item = {"sku": "bur", "name": "Burger", "quantity": 2, "unit_price": 850, "notes": "rare"}
    cart = cart_of(
        order_of(items=[{**item, "modifiers": modifiers}], total=1920), bur="I1", che="M1"
    )
    line = {
        "item": {"id": "I1"},
        "price": 860,
        "modifications": [{"modifier": {"id": "M1"}, "name": "2 x cheese", "amount": 100}],
        "note": "no onions; rare",
    }
    assert cart["lineItems"] == [line, line]


def test_a_modifier_without_a_name_goes_by_its_sku_or_is_refused_by_name_if_it_has_a_price() -> (
    None
):
    def order(**modifier: Any) -> Order:
        item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
        item["modifiers"] = [{"name": " ", **modifier}]
        return order_of(items=[item], total=850 + 2 * modifier.get("unit_price", 0))

    [line] = cart_of(order(sku="cheese", quantity=2, unit_price=50))["lineItems"]
    assert line == {"name": "Burger", "price": 950, "note": "2 x cheese"}
    fields = {"sku": "che", "quantity": 2, "unit_price": 50}
    [line] = cart_of(order(**fields), bur="I1", che="M1")["lineItems"]
    assert line["modifications"] == [{"modifier": {"id": "M1"}, "name": "2 x che", "amount": 100}]
    [line] = cart_of(order())["lineItems"]
    assert line == {"name": "Burger", "price": 850}
    send = Scripted()
    outcome = CLOVER.create(order(sku=" ", quantity=2, unit_price=50), send)
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "invalid_order")
    assert outcome.reason is not None
    assert outcome.reason.message.startswith("items[0].modifiers[0]: ")
    assert send.requests == []


def test_a_discounted_inventory_item_has_the_whole_price() -> None:
    modifiers = [
        {"sku": "che", "name": "cheese", "unit_price": 50},
        {"name": "coupon", "unit_price": -880},
    ]
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
    cart = cart_of(order_of(items=[{**item, "modifiers": modifiers}], total=20), bur="I1", che="M1")
    [line] = cart["lineItems"]
    assert (line["price"], line["modifications"][0]["amount"]) == (20, 0)


def test_more_pieces_than_clover_takes_are_rejected_unsent() -> None:
    for number, kind in ((2500, Kind.ACCEPTED), (2501, Kind.REJECTED)):
        shop = Shop()
        item = {"sku": "s", "name": "Chip", "quantity": number, "unit_price": 1}
        outcome = CLOVER.create(order_of(items=[item], total=number), shop.send)
        assert outcome.kind is kind
        assert len(shop.facts) == (kind is Kind.ACCEPTED)
    assert code_of(outcome) == "invalid_order"
    assert shop.send.requests == []


@pytest.mark.parametrize(
    "odd", [{"total": True}, {"total": 1700.0}, {"total": None}, {"currency": {"code": "EUR"}}]
)
def test_an_order_whose_total_is_not_known_is_in_doubt_and_stays(odd: dict[str, Any]) -> None:
    order, made = order_of(), reply(200, {**CLOVER.accepted("order/1"), **odd})
    send = Scripted(*CLOVER.before(order), made)
    outcome = CLOVER.create(order, send)
    assert (outcome.kind, outcome.external_id) == (Kind.IN_DOUBT, None)
    assert len(send.requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply(200, {}), Kind.RETRY),
        (reply(200, {"total": 1700.0}), Kind.RETRY),
        (reply(200, b"<html>"), Kind.RETRY),
        (reply(500), Kind.RETRY),
        (reply(409), Kind.RETRY),
        (reply(429), Kind.RETRY),
        (reply(401), Kind.RETRY),
        (reply(400, {"message": "item_does_not_exist"}), Kind.REJECTED),
        (reply(403), Kind.FAILED),
        (reply(404), Kind.FAILED),
    ],
)
def test_nothing_is_made_without_a_preview(answer: Reply, kind: Kind) -> None:
    send = Scripted(answer)
    assert CLOVER.create(order_of(), send).kind is kind
    assert len(send.requests) == 1


def test_a_preview_without_a_reply_leaves_nothing_in_doubt() -> None:
    def send(request: Request) -> Reply:
        raise NoValidReply("timeout", "no reply")

    with pytest.raises(NotSent, match="no reply"):
        CLOVER.create(order_of(), Send(send))


def texts(size: int) -> dict[str, dict[str, Any]]:
    """Orders with a text of this length at one place, without what the adapter adds to it."""
    item = {"sku": "bur", "name": "Burger", "quantity": 1, "unit_price": 850}
    topping = {"sku": "che", "name": "x" * size}
    toppings = [{"name": "x" * 9, "unit_price": 0}] * (size // 11)
    return {
        "notes": {"notes": "x" * (size - len(f"[order/1] #{DIGEST} "))},
        "fulfillment": {"fulfillment": "x" * (size - len(f"[order/1] #{DIGEST} "))},
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
        ("fulfillment", 2047),
        ("items[0].name", 127),
        ("items[0].notes", 255),
        ("items[0].modifiers[0].name", 255),
        ("modifiers' names", 255),
    ],
)
def test_a_text_is_sent_whole_or_refused_by_name(field: str, most: int) -> None:
    """40 toppings were paid for, and 14 of them reached the ticket."""
    merchant = CLOVER.merchant.with_catalog({"bur": "BURGER", "che": "CHEESE"})
    for size, code in ((most, None), (most + 1, "text_too_long")):
        shop, fields = Shop(), texts(size)[field]
        order = order_of(**{"total": 850 if "items" in fields else 1700, **fields})
        outcome = CLOVER.create(order, shop.send, merchant)
        if code is None:
            assert outcome.kind is Kind.ACCEPTED
            assert len(shop.facts) == 1
        else:
            assert code_of(outcome) == code
            assert outcome.reason is not None
            assert field in outcome.reason.message
            assert shop.send.requests == []


def test_an_order_for_the_same_amount_without_a_note_is_ambiguous() -> None:
    order = order_of()

    def look_up(**found: object) -> Outcome | None:
        answer = reply(200, {"elements": [{"id": "7", **found}]})
        return CLOVER.look_up(order, Scripted(*NO_REFERENCE, answer))

    for note in (None, "Ada", "[table 5] no hurry"):
        lost = look_up(total=order.total, note=note)
        assert lost is not None
        assert lost.kind is Kind.IN_DOUBT
    assert look_up(total=order.total, note=f"[another] #{DIGEST} Ada") is None
    assert look_up(total=order.total - 1) is None
    assert look_up(total=2 * order.total) is None


def test_an_acceptance_may_leave_out_the_note() -> None:
    order, made = order_of(), reply(200, {**CLOVER.accepted("order/1"), "note": None})
    send = Scripted(*CLOVER.before(order), made)
    assert CLOVER.create(order, send).kind is Kind.ACCEPTED


@pytest.mark.parametrize("refusal", [reply(400), NoValidReply("reply_too_long", "too long")])
def test_an_order_is_looked_up_page_by_page_where_lists_have_no_such_filter(refusal: Any) -> None:
    order = order_of()
    alike = {**CLOVER.accepted("order/1"), "note": f"[order/1]] #{DIGEST} Ada"}
    full = reply(200, {"elements": [alike] * 100})
    pages = iter([full, CLOVER.found(CLOVER.accepted(order.order_id))])
    queries = list[dict[str, list[str]]]()

    def answer(request: Request) -> Reply:
        query = parse_qs(urlsplit(request.url).query)
        if query["filter"][0].startswith("externalReferenceId="):
            if isinstance(refusal, Exception):
                raise refusal
            return refusal  # type: ignore[no-any-return]
        queries.append(query)
        return next(pages, full)

    known = CLOVER.look_up(order, Send(answer))
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    assert [query["offset"] for query in queries] == [["0"], ["90"]]
    assert [each[:13] for each in queries[0]["filter"]] == ["createdTime>=", "createdTime<="]
    lost = CLOVER.look_up(order, Send(answer))
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
        if "offset" not in query:  # lists know no reference
            return NO_REFERENCE[0]
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
    known = CLOVER.look_up(order_of(), Send(Shrinking(before, deleted)))
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
    known = CLOVER.look_up(order_of(), Send(pos))
    assert known is not None
    if known.kind is not Kind.ACCEPTED:
        assert known.kind is Kind.IN_DOUBT
        assert number
    assert pos.asked <= 16


def test_a_look_up_of_a_single_too_long_order_is_given_up_after_a_few_requests() -> None:
    pos = Shrinking(1, range(0), 300_000)
    with pytest.raises(NoValidReply, match="too long"):
        CLOVER.look_up(order_of(), Send(pos))
    assert pos.asked == 7  # of 100, 50, 25, 12, 6, 3 and 2


@pytest.mark.parametrize(
    "answers",
    [
        [reply(200, CLOVER.accepted("order/1"))],
        [reply(200, {**CLOVER.accepted("order/1"), "note": "table 5"})],
        [reply(404), *CLOVER.cancelled(CLOVER.accepted("order/1"))[:2]],
        [reply(200, CLOVER.accepted("x")), *CLOVER.cancelled(CLOVER.accepted("order/1"))[:2]],
    ],
)
def test_an_order_with_a_known_clover_id_is_searched_for_only_if_that_is_anothers(
    answers: list[Reply],
) -> None:
    send = Scripted(*answers, NO_REFERENCE[0], reply(200))
    order = order_of().in_ledger(None, None, "K/1")
    assert CLOVER.undo(order, send).kind is Kind.CANCELLED
    assert send.requests[0].url.partition("?")[0].endswith("/v3/merchants/M1/orders/K%2F1")
    assert send.requests[-1].url.endswith(f"/orders/{CLOVER.accepted('')['id']}")
    assert send.replies == []


def test_an_order_with_a_known_clover_id_is_none_of_those_without_a_note() -> None:
    walk_in = {"id": "W", "state": "open", "total": order_of().total}
    for known_as, is_known in (("K", False), (None, True)):
        answers = [reply(404)] if known_as else []
        send = Scripted(*answers, *NO_REFERENCE, CLOVER.found(walk_in))
        known = CLOVER.look_up(order_of().in_ledger(None, None, known_as), send)
        assert (known is not None) is is_known
