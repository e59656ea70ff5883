"""What the replies of each POS mean, beside the promises that ``test_promises.py`` tests.

Of an adapter with several steps at the POS, this is its first one.
"""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pos_gateway.adapters.clover_order import Cart
from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.replies import LOOK_UP, json_object
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import (
    ACKNOWLEDGEMENT,
    BODY_LIMIT,
    Reply,
    Request,
    Send,
    Transport,
)
from pos_gateway.transport.guard import Guard
from testkit.hostile.peer import a_reply, peer, read_request
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import EXAMPLES, VENDORS, Vendor, body, known_as, order_of, sku_of
from tests.orders import an_order

ORDER = order_of()


@pytest.fixture(params=[*VENDORS, *EXAMPLES])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return {**VENDORS, **EXAMPLES}[request.param]


def submitted(vendor: Vendor, *replies: Reply, order: Order = ORDER) -> Outcome:
    send = Scripted(*vendor.before(order), *replies)
    return vendor.create(order, send)


def creation(vendor: Vendor, order: Order, *in_catalog: str) -> Request:
    """The request that creates the order, with these skus in the merchant's catalog."""
    before = vendor.before(order)
    send = Scripted(*before, reply(500))
    merchant = vendor.merchant.with_catalog({sku: known_as(sku) for sku in in_catalog})
    assert vendor.adapter.check(merchant) == []
    vendor.create(order, send, merchant)
    return send.requests[len(before)]


def test_each_state_has_its_outcome(vendor: Vendor) -> None:
    for change, kind in vendor.states:
        answer = reply(200, {**vendor.accepted(ORDER.order_id), **change})
        assert submitted(vendor, answer).kind is kind, change


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (204, Kind.IN_DOUBT),
        (301, Kind.FAILED),
        (401, Kind.RETRY),
        (403, Kind.FAILED),
        (404, Kind.FAILED),
        (405, Kind.FAILED),
        (408, Kind.IN_DOUBT),
        (410, Kind.FAILED),
        (413, Kind.REJECTED),
        (500, Kind.IN_DOUBT),
        (502, Kind.IN_DOUBT),
        (504, Kind.IN_DOUBT),
        (600, Kind.IN_DOUBT),
    ],
)
def test_each_status_has_its_outcome(vendor: Vendor, status: int, kind: Kind) -> None:
    assert submitted(vendor, reply(status, b"")).kind is kind


def test_a_410_pauses_the_merchant_only_for_a_create_whose_url_names_it_alone(
    vendor: Vendor,
) -> None:
    gone = reply(410, b"")
    assert submitted(vendor, gone).merchant_gone is (vendor.adapter.name == "rest")
    looked_up = vendor.look_up(ORDER, Scripted(gone))
    asked_after_a_conflict = submitted(vendor, reply(409), gone)
    *first, _ = vendor.cancelled(vendor.accepted(ORDER.order_id))
    cancelled = vendor.undo(ORDER, Scripted(*first, gone))
    for outcome in (looked_up, asked_after_a_conflict, cancelled):
        assert outcome is not None
        assert not outcome.merchant_gone


def test_pending_is_accepted_only_where_the_vendor_has_it(vendor: Vendor) -> None:
    expected = Kind.PENDING if vendor.has_202 else Kind.IN_DOUBT
    assert submitted(vendor, reply(202)).kind is expected


def test_a_conflict_is_looked_up(vendor: Vendor) -> None:
    found = vendor.found(vendor.accepted(ORDER.order_id))
    assert submitted(vendor, reply(409), found).kind is Kind.ACCEPTED
    contradiction = submitted(vendor, reply(409), *vendor.unknown)
    assert contradiction.kind in (Kind.REJECTED, Kind.IN_DOUBT)
    assert submitted(vendor, reply(409), reply(500)).kind is Kind.IN_DOUBT


def test_a_conflict_that_cannot_be_looked_up_leaves_the_order_in_doubt(vendor: Vendor) -> None:
    """A look-up that was not sent says nothing about the create, which was answered."""
    answers = Scripted(*vendor.before(ORDER), reply(409))
    left = len(vendor.before(ORDER)) + 1

    def send(request: Request) -> Reply:
        if len(answers.requests) == left:
            raise NotSent("refused", "no connection")
        return answers(request)

    with pytest.raises(NoValidReply, match="no connection"):
        vendor.create(ORDER, Send(send))


def test_an_order_of_the_calendars_first_or_last_day_is_looked_up(vendor: Vendor) -> None:
    """Some backends set ``deliver_by`` to the calendar's end for orders without a deadline."""
    times = {"placed_at": "0001-01-01T00:00:00Z", "deliver_by": "9999-12-31T23:59:59Z"}
    order = Order.parse({**json.loads(ORDER.to_json()), **times})
    accepted = vendor.accepted(order.order_id)
    known = vendor.look_up(order, Scripted(vendor.found(accepted)))
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    cancelled = vendor.undo(order, Scripted(*vendor.cancelled(accepted)))
    assert cancelled.kind is Kind.CANCELLED


def test_an_order_is_cancelled_kept_or_unknown(vendor: Vendor) -> None:
    def cancelled(*answers: Reply) -> Outcome:
        return vendor.undo(ORDER, Scripted(*answers))

    accepted = vendor.accepted(ORDER.order_id)
    *first, last = vendor.cancelled(accepted)
    assert cancelled(*first, last).kind is Kind.CANCELLED
    assert cancelled(*first, reply(400)).kind is Kind.REJECTED
    assert cancelled(*first, reply(500)).kind is Kind.IN_DOUBT
    unknown = cancelled(*vendor.unknown)
    assert unknown.reason is not None
    assert (unknown.kind, unknown.reason.code) == (Kind.REJECTED, "unknown_order")


def test_only_a_cancelling_request_is_marked_as_a_change(vendor: Vendor) -> None:
    """The gateway records before it that a POS may have cancelled the order."""
    *first, last = vendor.cancelled(vendor.accepted(ORDER.order_id))
    send = Scripted(*first, last)
    vendor.undo(ORDER, send)
    assert [each.changes for each in send.requests] == [False] * len(first) + [True]
    send = Scripted(*vendor.unknown)
    vendor.look_up(ORDER, send)
    assert not any(each.changes for each in send.requests)
    assert creation(vendor, ORDER).changes


def test_a_key_is_sent_with_the_order_and_names_its_merchant(vendor: Vendor) -> None:
    """A guarantee is claimed by what is sent; order ids are one merchant's."""
    mine = creation(vendor, ORDER)
    key = vendor.key(mine)
    assert isinstance(key, str)
    assert ORDER.order_id in key or vendor.adapter.guarantee is Guarantee.KEYED
    sent = [mine.url, *mine.headers.values(), (mine.body or b"").decode()]
    assert any(key in unquote(text) for text in sent)
    theirs = order_of(merchant_id="fast-2")
    other = replace(vendor, record={**vendor.record, "id": "fast-2"})
    is_shared = vendor.key(creation(other, theirs)) == key
    assert is_shared is not vendor.marks_merchants


@pytest.mark.parametrize(("currency", "cents"), [("JPY", "17.01"), ("KWD", "17.01"), ("EUR", "")])
def test_no_currency_is_taken_for_hundredths(vendor: Vendor, currency: str, cents: str) -> None:
    """The yen has no smaller unit, and a dinar has a thousand: 1701 is 1701 and 1.701."""
    item = {"sku": order_of().items[0].sku, "name": "Burger", "quantity": 1, "unit_price": 1701}
    order = order_of(currency=currency, items=[item], total=1701)
    send = Scripted(*vendor.before(order), vendor.creates(order))
    outcome = vendor.create(order, send)
    if outcome.kind is Kind.REJECTED:
        assert (currency != "EUR", send.requests) == (True, [])
        return
    text = (send.requests[-1].body or b"").decode()
    assert vendor.comes_to(order, json.loads(text)) == 1701
    assert not cents or cents not in text
    assert currency in text or vendor.adapter.name in ("toast", "clover")


def test_a_catalog_item_has_the_poss_id_and_the_orders_price(vendor: Vendor) -> None:
    bun, cheese, soup = sku_of("bun"), sku_of("cheese"), sku_of("soup")
    burger = {"sku": bun, "name": "Burger", "quantity": 1, "unit_price": 850}
    modifiers = [{"sku": cheese, "name": "cheese", "quantity": 2, "unit_price": 50}]
    order = order_of(
        items=[
            {**burger, "modifiers": modifiers},
            {"sku": soup, "name": "Soup", "quantity": 1, "unit_price": 450, "modifiers": modifiers},
        ],
        total=1500,
    )
    with_it = creation(vendor, order, bun, cheese)
    assert creation(vendor, order, "another") == creation(vendor, order)
    if vendor.item_ids is None:
        assert with_it == creation(vendor, order)
        return
    assert vendor.item_ids(body(with_it))[:2] == [known_as(bun), known_as(cheese)]
    assert vendor.item_ids(body(with_it))[2] != known_as(soup)
    assert vendor.comes_to(order, body(with_it)) == order.total


_TEXT = st.text(max_size=30)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    items: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 4))):
        modifiers = [
            {
                "sku": sku_of(number, each),
                "name": draw(_TEXT),
                "quantity": draw(st.integers(1, 3)),
                "unit_price": draw(st.integers(-200, 500)),
            }
            for each in range(draw(st.integers(0, 3)))
        ]
        item = {"sku": sku_of(number), "name": draw(_TEXT), "quantity": draw(st.integers(1, 60))}
        price = draw(st.integers(0, 10**7))
        items.append({**item, "unit_price": price, "modifiers": modifiers, "notes": draw(_TEXT)})
    total = sum(
        item["quantity"]
        * (item["unit_price"] + sum(m["quantity"] * m["unit_price"] for m in item["modifiers"]))
        for item in items
    )
    off = draw(st.sampled_from([0, 0, 0, 1, -1]))
    tip = draw(st.none() | st.integers(0, 10**6))
    return Order.parse(an_order(items=items, total=max(0, total + off), tip=tip, notes=draw(_TEXT)))


@pytest.mark.parametrize("name", VENDORS)
@settings(max_examples=60, deadline=None)
@given(order=orders(), in_catalog=st.sets(st.tuples(st.integers(0, 3), st.integers(-1, 2))))
def test_the_request_adds_up_to_the_total_or_is_rejected(
    name: str, order: Order, in_catalog: set[tuple[int, int]]
) -> None:
    vendor = VENDORS[name]
    skus = [sku_of(item) if part < 0 else sku_of(item, part) for item, part in in_catalog]
    merchant = vendor.merchant.with_catalog({sku: known_as(sku) for sku in skus})
    before = vendor.before(order)
    send = Scripted(*before, vendor.creates(order))
    outcome = vendor.create(order, send, merchant)
    if outcome.kind is Kind.REJECTED:
        assert outcome.reason is not None
        has_lonely_tip = order.tip and not order.total and name in ("square", "clover")
        expected = "unsupported_field" if has_lonely_tip else "price_mismatch"
        assert outcome.reason.code in (expected, "price_mismatch")
        assert send.requests == []
    else:
        assert outcome.kind is Kind.ACCEPTED
        assert vendor.comes_to(order, body(send.requests[-1])) == order.total


@pytest.mark.parametrize(
    "name", ["\x00\r\n\x1b[31m\u202e", "🍔" * 2000, "x" * 4096, "", '"\\', "\u2028é\ufeff"]
)
def test_a_hostile_name_is_sent_as_valid_json(vendor: Vendor, name: str) -> None:
    item = {"sku": sku_of("i"), "name": name, "quantity": 1, "unit_price": 5, "notes": name}
    item["modifiers"] = [{"name": name}]
    customer = {"name": name, "phone": name}
    order = order_of(items=[item], total=5, customer=customer, notes=name)
    outcome = submitted(vendor, reply(500), order=order)
    if outcome.kind is Kind.REJECTED:
        assert outcome.reason is not None
        assert (outcome.reason.code, len(name) > 255) == ("text_too_long", True)
        return
    request = creation(vendor, order)
    assert vendor.comes_to(order, body(request)) == 5
    assert all(value >= " " for value in request.headers.values())
    assert "\n" not in request.url


def test_a_reply_about_a_small_order_has_the_full_limit(vendor: Vendor) -> None:
    """Clover repeats an item for each of its pieces: the order's size says nothing of the reply's."""
    is_clover = vendor.adapter.name == "clover"
    most = BODY_LIMIT if is_clover else ACKNOWLEDGEMENT + 16 * len(ORDER.source)
    assert creation(vendor, ORDER).expects <= most


class Endless(Send):
    """A POS whose pages have other orders, and another page after each."""

    def __init__(self, vendor: Vendor) -> None:
        self._other = vendor.accepted("another order")
        self.read = 0

    def __call__(self, request: Request) -> Reply:
        if request.method == "POST" and "search" not in request.url:
            return reply(409)
        number = 20 if "search" in request.url else 100
        note = "[x] " + "x" * (250_000 // number - 400)
        orders: list[Any] = [{**self._other, "note": note}] * number
        name = "orders" if "search" in request.url else "elements"
        page = {**self._other, "cursor": "x", name: orders}
        text = json.dumps(page).encode().ljust(request.expects)[: request.expects]
        self.read += len(text)
        return reply(200, text)


def test_a_look_up_reads_at_most_a_mebibyte(vendor: Vendor) -> None:
    pos = Endless(vendor)
    known = vendor.look_up(ORDER, pos)
    assert known is not None
    assert known.kind is Kind.IN_DOUBT
    assert pos.read <= LOOK_UP + BODY_LIMIT


@pytest.mark.parametrize(("name", "most"), [("square", 20), ("clover", 100)])
def test_a_page_with_more_orders_than_requested_is_no_answer(name: str, most: int) -> None:
    vendor = VENDORS[name]
    for number, kind in ((most - 1, None), (most + 1, Kind.IN_DOUBT)):
        orders: list[Any] = [{"note": "[x]"}] * number
        page = reply(200, {"orders": orders, "elements": orders})
        pages = Scripted(*vendor.unknown[:-1], page)
        known = vendor.look_up(ORDER, pages)
        assert (known and known.kind) == kind


def test_a_reply_of_nothing_but_nesting_is_no_answer() -> None:
    for part in (b"{}", b"[]", b"1"):
        assert json_object(Reply(200, {}, b'{"a":[' + b",".join([part] * 9000) + b"]}"))
        assert json_object(Reply(200, {}, b'{"a":[' + b",".join([part] * 60_000) + b"]}")) is None


def test_a_whole_number_beyond_64_bits_is_no_answer() -> None:
    for number, is_fine in ((2**63 - 1, True), (-(2**63), True), (2**63, False), (10**400, False)):
        found = json_object(Reply(200, {}, b'{"total":%d}' % number))
        assert (found == {"total": number}) is is_fine
        assert found is None or is_fine


@pytest.mark.parametrize("cursor", ["x" * 5000, {"a": 1}, 7])
def test_a_cursor_that_is_sent_back_is_bounded(cursor: object) -> None:
    pages = Scripted(*[reply(200, {"orders": [], "cursor": cursor})] * 30)
    square = VENDORS["square"]
    known = square.look_up(ORDER, pages)
    assert known is not None
    assert known.kind is Kind.IN_DOUBT
    assert len(pages.requests) == 1


def test_a_request_over_the_size_limit_is_not_built(vendor: Vendor) -> None:
    """It can grow with items times modifiers times quantity."""
    modifiers = [{"name": "x" * 50, "sku": sku_of("m")}] * 240
    items = [{"sku": sku_of("i"), "name": "x", "quantity": 120, "unit_price": 0}] * 20
    for each in items:
        each["modifiers"] = modifiers
    order = order_of(items=items, total=0)
    most = vendor.adapter.limits.request_bytes
    merchant = vendor.merchant.with_catalog({sku_of(x): known_as(sku_of(x)) for x in "im"})
    send = Scripted(*vendor.before(order), reply(500))
    outcome = vendor.create(order, send, merchant)
    sizes = [len(request.body or b"") for request in send.requests]
    if outcome.kind is Kind.REJECTED:
        assert outcome.reason is not None
        assert f"at most {most} are sent" in outcome.reason.message
        assert sizes == []
    else:
        assert max(sizes) <= (most or len(order.to_json()))


@pytest.mark.parametrize("quantity", [1, 2, 2500])
@pytest.mark.parametrize("kind", [None, "T"])
def test_the_size_of_clovers_request_is_known_before_it_is_built(
    quantity: int, kind: str | None
) -> None:
    item = {"sku": "s", "name": "é", "quantity": quantity, "unit_price": 1}
    order = order_of(items=[item], total=quantity)
    clover = VENDORS["clover"].merchant
    merchant = clover.model_copy(
        update={"pos": {**clover.pos, **({"order_type": kind} if kind else {})}}
    )
    cart = Cart(order, merchant)
    assert len(cart.encoded()) == cart.size
    assert len(json.loads(cart.encoded())["orderCart"]["lineItems"]) == quantity


def test_the_adapter_works_over_a_socket(vendor: Vendor) -> None:
    accepted = reply(200, vendor.accepted(ORDER.order_id))
    sent = creation(vendor, ORDER)
    before = [each if isinstance(each, Reply) else each(sent) for each in vendor.before(ORDER)]
    script = [*before, accepted, vendor.found(vendor.accepted(ORDER.order_id))]
    answers, received = iter(script), []

    def play(connection: Any) -> None:
        while request := read_request(connection):
            received.append(request)
            connection.sendall(a_reply(next(answers).body))

    with peer(play) as seen:
        merchant = vendor.merchant.model_copy(update={"base_url": seen.url("")})
        send = over(Transport(guard=Guard(allow_all=True)))
        assert vendor.create(ORDER, send, merchant).kind is Kind.ACCEPTED
        found = vendor.look_up(ORDER, send, merchant)
    assert found is not None
    assert found.kind is Kind.ACCEPTED
    assert len(received) == len(script)
    assert seen.connections == 1


def over(transport: Transport) -> Send:
    def send(request: Request) -> Reply:
        return transport.send(request, key="m", connections=1, seconds=5)

    return Send(send)
