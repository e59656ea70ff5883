"""Toast: what the conformance suite does not test."""

import json
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters import toast_api, toast_create, toast_order, toast_search
from pos_gateway.adapters.replies import json_object
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.states import Action
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send
from testkit.vendors.way import Trouble
from tests.adapters.scripted import Scripted, reply
from tests.adapters.toast_pos import ToastPos
from tests.adapters.vendors import (
    DIGEST,
    TOAST,
    body,
    guid,
    known_as,
    order_of,
    sku_of,
    toast_pos,
)
from tests.gate import Gate

ADA = {"name": "Ada Lovelace", "phone": "+1 (555) 010-0199", "email": "ada@example.com"}
ORDER = order_of(tip=300, customer=ADA, notes="no nuts")
BEFORE = TOAST.before(ORDER)
REFUSED = reply(400, {"status": 400, "code": 10025, "message": "Payment amount cannot be empty"})


def submitted(*replies: Reply, order: Order = ORDER) -> Outcome:
    return TOAST.adapter.submit(order, TOAST.merchant, Scripted(*replies))


def code_of(outcome: Outcome) -> str:
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    return outcome.reason.code


def test_an_order_is_priced_and_then_posted_under_its_external_id() -> None:
    pos = toast_pos(ORDER)
    assert TOAST.adapter.submit(ORDER, TOAST.merchant, pos).kind is Kind.ACCEPTED
    prices, _, _, creation = pos.requests
    assert prices.url == "https://pos.example.com/orders/v2/prices"
    assert creation.url == "https://pos.example.com/orders/v2/orders"
    assert creation.headers["Toast-Restaurant-External-ID"] == guid("restaurant")
    assert prices.body == creation.body
    sent = body(creation)
    assert sent["externalId"] == f"GATEWAY:order/1-{DIGEST}"
    assert sent["diningOption"]["guid"] == guid("dining option")
    [check] = sent["checks"]
    named = {"firstName": "Ada", "lastName": "Lovelace"}
    assert check["customer"] == {**named, "phone": "5550100199", "email": "ada@example.com"}
    assert check["tabName"] == "Ada Lovelace"
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


def test_an_order_that_the_restaurant_has_not_approved_needs_no_void() -> None:
    """An order for later is accepted, and approved or not when its time comes."""
    found = {**TOAST.accepted(ORDER.order_id), "approvalStatus": "NOT_APPROVED"}
    send = Scripted(reply(200, found))
    outcome = TOAST.adapter.cancel(ORDER, TOAST.merchant, send)
    assert outcome == Outcome(Kind.CANCELLED, external_id=str(found["guid"]))
    assert [request.method for request in send.requests] == ["GET"]


def with_pos(**settings: str) -> Merchant:
    """The merchant with further settings in ``pos``."""
    merchant = TOAST.merchant
    merchant = merchant.model_copy(update={"pos": {**merchant.pos, **settings}})
    assert TOAST.adapter.check(merchant) == []
    return merchant


def test_the_groups_guid_precedes_the_items() -> None:
    modifier = {"sku": f"{guid('sauces')}/{guid('mayo')}", "name": "mayo", "quantity": 2}
    item = {"sku": f"{guid('mains')}/{guid('burger')}", "name": "b", "quantity": 1, "unit_price": 5}
    order = order_of(items=[{**item, "modifiers": [modifier]}], total=5)
    send = Scripted(*TOAST.before(order), reply(500))
    TOAST.adapter.submit(order, TOAST.merchant, send)
    [selection] = body(send.requests[0])["checks"][0]["selections"]
    assert selection["itemGroup"]["guid"] == guid("mains")
    sent, again = selection["modifiers"]
    assert sent == again
    assert (sent["optionGroup"]["guid"], sent["item"]["guid"]) == (guid("sauces"), guid("mayo"))


def test_the_catalog_maps_skus_to_guids() -> None:
    modifier = {"sku": "may", "name": "mayo", "unit_price": 5}
    item = {"sku": "bur", "name": "b", "quantity": 1, "unit_price": 5, "modifiers": [modifier]}
    order = order_of(items=[item], total=10)
    catalog = {"bur": f"{guid('mains')}/{guid('burger')}", "may": f"{guid('s')}/{guid('mayo')}"}
    send = Scripted(
        reply(200, {"checks": [{"amount": 0.1, "totalAmount": 0.1}]}), *BEFORE[1:], reply(500)
    )
    TOAST.adapter.submit(order, TOAST.merchant.with_catalog(catalog), send)
    [selection] = body(send.requests[0])["checks"][0]["selections"]
    assert selection["itemGroup"]["guid"] == guid("mains")
    assert selection["item"]["guid"] == guid("burger")
    assert [each["item"]["guid"] for each in selection["modifiers"]] == [guid("mayo")]


def test_a_catalog_has_an_items_group_and_its_own_guid() -> None:
    """Toast refuses an item without its group."""
    catalog = {"a": guid("a"), "b": f"{guid('g')}/{guid('b')}", "c": "1234"}
    problems = TOAST.adapter.check(TOAST.merchant.with_catalog(catalog))
    assert [each.field for each in problems] == ["pos_id"] * 2
    assert {each.value for each in problems} == {guid("a"), "1234"}
    assert "group/item" in problems[0].problem


def test_an_item_or_a_modifier_without_its_group_is_refused_by_name() -> None:
    item = {"sku": sku_of("b"), "name": "Burger", "quantity": 1, "unit_price": 5}
    cheese = {"name": "cheese", "sku": guid("cheese")}
    for each, named in (
        ({**item, "sku": guid("b")}, guid("b")),
        ({**item, "modifiers": [cheese]}, "cheese"),
    ):
        pos = toast_pos(ORDER)
        outcome = TOAST.adapter.submit(order_of(items=[each], total=5), TOAST.merchant, pos)
        assert code_of(outcome) == "invalid_order"
        assert outcome.reason is not None
        assert named in outcome.reason.message
        assert pos.requests == []


def with_modifiers(quantity: int, *modifiers: dict[str, Any]) -> Order:
    """An order of these modifiers on each of as many burgers."""
    burger = {"sku": sku_of("b"), "name": "Burger", "quantity": quantity, "unit_price": 850}
    each = 850 + sum(m.get("quantity", 1) * m.get("unit_price", 0) for m in modifiers)
    return order_of(items=[{**burger, "modifiers": list(modifiers)}], total=quantity * each)


BACON = {"name": "bacon", "sku": sku_of("bacon"), "unit_price": 150}
NO_ONION = {"name": "no onion", "sku": sku_of("no onion")}


@pytest.mark.parametrize("quantity", [1, 2, 5])
@pytest.mark.parametrize(
    "modifiers",
    [
        [BACON],
        [{**BACON, "quantity": 2}],
        [NO_ONION],
        [{"name": "no onion"}],
        [{**BACON, "quantity": 3}, NO_ONION, {"name": "well done", "quantity": 2}],
    ],
)
def test_a_modifier_has_its_items_quantity_and_is_listed_again_for_each_time(
    quantity: int, modifiers: list[dict[str, Any]]
) -> None:
    """Toast's guide: a modifier of another quantity than its item's rejects the order."""
    order = with_modifiers(quantity, *modifiers)
    pos = toast_pos(order)
    assert TOAST.adapter.submit(order, TOAST.merchant, pos).kind is Kind.ACCEPTED
    [made] = pos.orders
    assert made["checks"][0]["totalAmount"] * 100 == order.total
    assert made["checks"][0]["paymentStatus"] == "CLOSED"


def test_modifiers_without_number_are_refused_before_they_are_written() -> None:
    modifiers = [{**BACON, "unit_price": 0, "quantity": 10_000}] * 250
    outcome = TOAST.adapter.submit(with_modifiers(1, *modifiers), TOAST.merchant, Scripted())
    assert code_of(outcome) == "invalid_order"


def test_the_shortest_modifier_is_no_shorter_than_is_assumed() -> None:
    order = with_modifiers(1, BACON)
    pos = toast_pos(order)
    TOAST.adapter.submit(order, TOAST.merchant, pos)
    [modifier] = body(pos.requests[0])["checks"][0]["selections"][0]["modifiers"]
    shortest = len(json.dumps(modifier, separators=(",", ":")))
    assert 0.9 * shortest <= toast_order._MODIFIER <= shortest


@pytest.mark.parametrize("where", ["notes", "items[0].notes", "items[0].modifiers[0].name"])
def test_a_special_request_is_sent_whole_or_refused_by_name(where: str) -> None:
    burger = {"sku": sku_of("b"), "name": "Burger", "quantity": 1, "unit_price": 850}
    for size in (1000, 1001):
        text = "x" * size
        fields: dict[str, Any] = {"items": [burger]}
        if where == "notes":
            fields["notes"] = text
        elif where == "items[0].notes":
            fields["items"] = [{**burger, "notes": text}]
        else:
            fields["items"] = [{**burger, "modifiers": [{"name": text}]}]
        order = order_of(total=850, **fields)
        pos = toast_pos(order)
        outcome = TOAST.adapter.submit(order, TOAST.merchant, pos)
        if size == 1000:
            assert outcome.kind is Kind.ACCEPTED
        else:
            assert code_of(outcome) == "text_too_long"
            assert outcome.reason is not None
            assert where in outcome.reason.message
            assert pos.requests == []


@pytest.mark.parametrize(
    ("customer", "names"),
    [
        ({"name": "Ada"}, ("Ada", ".")),
        ({"name": "Ada King Lovelace"}, ("Ada King", "Lovelace")),
        ({"name": "Ada Lovelace", "first_name": "Ada"}, ("Ada", "Lovelace")),
        ({"name": "x", "first_name": "Ada", "last_name": "King"}, ("Ada", "King")),
        ({"name": None, "last_name": "King"}, ("King", ".")),
    ],
)
def test_a_customer_has_a_first_and_a_last_name(
    customer: dict[str, str], names: tuple[str, str]
) -> None:
    order = order_of(customer={**ADA, **customer})
    pos = toast_pos(order)
    assert TOAST.adapter.submit(order, TOAST.merchant, pos).kind is Kind.ACCEPTED
    sent = pos.orders[0]["checks"][0]["customer"]
    assert (sent["firstName"], sent["lastName"]) == names


@pytest.mark.parametrize(
    ("phone", "number"),
    [
        ("5550100199", {"phone": "5550100199"}),
        ("1-555-010-0199", {"phone": "5550100199"}),
        ("+44 20 7946 0018", {"phone": "2079460018", "phoneCountryCode": "44"}),
        ("+353 1 234 5678", {"phone": "12345678", "phoneCountryCode": "353"}),
        ("+49 30 123456", {"phone": "30123456", "phoneCountryCode": "49"}),
    ],
)
def test_a_phone_number_has_ten_digits_or_a_country(phone: str, number: dict[str, str]) -> None:
    order = order_of(customer={**ADA, "phone": phone})
    pos = toast_pos(order)
    assert TOAST.adapter.submit(order, TOAST.merchant, pos).kind is Kind.ACCEPTED
    sent = pos.orders[0]["checks"][0]["customer"]
    assert {name: value for name, value in sent.items() if name.startswith("phone")} == number


#: An e-mail address that is longer than Toast takes.
LONG = "ada@" + "x" * 50


@pytest.mark.parametrize(
    ("missing", "tab", "completed_tab"),
    [
        ({"phone": None}, "Ada Lovelace ada@example.com", "Ada Lovelace"),
        ({"phone": "555"}, "Ada Lovelace 555 ada@example.com", "Ada Lovelace 555"),
        ({"email": None}, "Ada Lovelace +1 (555) 010-0199", "Ada Lovelace"),
        ({"email": LONG}, f"Ada Lovelace +1 (555) 010-0199 {LONG}", f"Ada Lovelace {LONG}"),
        (
            {"email": "ädä@example.com"},
            "Ada Lovelace +1 (555) 010-0199 ädä@example.com",
            "Ada Lovelace ädä@example.com",
        ),
    ],
)
def test_what_is_known_of_an_incomplete_customer_is_on_the_tab(
    missing: dict[str, Any], tab: str, completed_tab: str
) -> None:
    """Toast refuses a customer without all four; the kitchen display shows the tab's name."""
    order = order_of(customer={**ADA, **missing})
    pos = toast_pos(order)
    assert TOAST.adapter.submit(order, TOAST.merchant, pos).kind is Kind.ACCEPTED
    [check] = pos.orders[0]["checks"]
    assert check["tabName"] == tab
    assert "customer" not in check
    completed = toast_pos(order)
    merchant = with_pos(customer_email="a@b.example", customer_phone="5550100100")
    TOAST.adapter.submit(order, merchant, completed)
    [check] = completed.orders[0]["checks"]
    sent = check["customer"]
    assert sent["email"] == ("a@b.example" if "email" in missing else ADA["email"])
    assert sent["phone"] == ("5550100100" if "phone" in missing else "5550100199")
    assert check["tabName"] == completed_tab


def test_a_guest_without_a_name_goes_by_the_orders() -> None:
    for fields, name in (({}, "order/1"), ({"display_id": "A-17"}, "A-17")):
        order = order_of(customer={**ADA, "name": None}, **fields)
        pos = toast_pos(order)
        assert TOAST.adapter.submit(order, TOAST.merchant, pos).kind is Kind.ACCEPTED
        [check] = pos.orders[0]["checks"]
        assert (check["customer"]["firstName"], check["customer"]["lastName"]) == (name, ".")
        assert ADA["phone"] in check["tabName"]


def test_a_refusal_for_want_of_a_customer_says_what_to_give() -> None:
    order = order_of()
    takeout = toast_pos(order, dining_options={guid("dining option"): "TAKE_OUT"})
    outcome = TOAST.adapter.submit(order, TOAST.merchant, takeout)
    assert code_of(outcome) == "invalid_order"
    assert outcome.reason is not None
    assert "pos.customer_phone" in outcome.reason.message


@pytest.mark.parametrize("email", ["a", "a@b@c", "a b@c", "ä@b.example", "a@" + "x" * 52])
def test_an_invalid_email_is_refused_in_the_record(email: str) -> None:
    merchant = TOAST.merchant
    merchant = merchant.model_copy(update={"pos": {**merchant.pos, "customer_email": email}})
    assert [each.field for each in TOAST.adapter.check(merchant)] == ["pos.customer_email"]


def test_a_delivery_is_refused_by_name() -> None:
    for text in ("delivery", "Delivery "):
        outcome = TOAST.adapter.submit(order_of(fulfillment=text), TOAST.merchant, Scripted())
        assert code_of(outcome) == "unsupported_field"
        assert outcome.reason is not None
        assert "fulfillment" in outcome.reason.message


def test_another_price_at_toast_is_a_rejection_without_a_create() -> None:
    other = reply(200, {"checks": [{"amount": 17.5, "totalAmount": 18.9}]})
    assert code_of(submitted(other)) == "price_mismatch"


def test_a_total_that_agrees_only_before_tax_is_rejected_with_both_numbers() -> None:
    """Paid as it is, the check would stay open for the tax."""
    pos = toast_pos(ORDER, tax=8)
    outcome = TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    assert code_of(outcome) == "price_mismatch"
    assert outcome.reason is not None
    for number in ("is 1836,", "is 1700 EUR", "before tax the POS's is 1700"):
        assert number in outcome.reason.message
    assert pos.orders == []


def test_a_total_with_tax_is_accepted_and_paid() -> None:
    pos = toast_pos(ORDER, tax=8, has_tax=True)
    assert TOAST.adapter.submit(ORDER, TOAST.merchant, pos).kind is Kind.ACCEPTED
    [check] = pos.orders[0]["checks"]
    assert (check["amount"], check["totalAmount"], check["paymentStatus"]) == (
        15.74,
        17.0,
        "CLOSED",
    )


DEARER, UNPAID = {"tax": 9}, {"takes_payments": False}


def turning(*troubles: Trouble, **restaurant: Any) -> ToastPos:
    """A restaurant that is dearer once it was asked for the prices, and whose staff fires orders."""
    pos = toast_pos(ORDER, **{"turns": DEARER, "auto_fires": False, **restaurant})
    pos.way.troubles += troubles
    return pos


@pytest.mark.parametrize(
    ("turns", "code"), [(DEARER, "price_mismatch"), (UNPAID, "payment_required")]
)
@pytest.mark.parametrize("what", [None, "orders", "void"])
def test_an_order_that_turns_out_otherwise_is_voided_and_rejected(
    turns: Any, code: str, what: str | None
) -> None:
    """Whatever reply is lost. A device has fired the order: it is in preparation at once."""
    pos = toast_pos(ORDER, turns=turns)
    if what is None:
        assert code_of(TOAST.adapter.submit(ORDER, TOAST.merchant, pos)) == code
        assert (len(pos.orders), pos.standing) == (1, [])
        return
    pos = turning(Trouble("after", "POST", f".*/{what}"), turns=DEARER)
    with pytest.raises(NoValidReply):
        TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    known = TOAST.adapter.look_up(ORDER, TOAST.merchant, pos)
    assert known is not None
    assert code_of(known) == "price_mismatch"
    assert (len(pos.orders), pos.standing) == (1, [])


def test_an_order_with_another_total_that_is_not_voided_is_in_doubt() -> None:
    """Toast refuses to void what the kitchen has begun with; an operator has to look."""
    pos = toast_pos(ORDER, turns=DEARER, voids_begun=False)
    outcome = TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    again = TOAST.adapter.look_up(ORDER, TOAST.merchant, pos)
    for each, said in ((outcome, "the kitchen has begun"), (again, "the shop has begun")):
        assert each is not None
        assert each.reason is not None
        assert (each.kind, each.reason.code) == (Kind.IN_DOUBT, "price_mismatch")
        assert said in each.reason.message
        assert each.external_id is None
    assert again is not None
    assert again.for_operator
    assert len(pos.standing) == 1


@pytest.mark.parametrize("act", ["fire", "ready"])
def test_an_order_with_another_total_that_was_begun_with_is_left_to_an_operator(act: str) -> None:
    pos = turning(Trouble("after", "POST", ".*/orders"))
    with pytest.raises(NoValidReply):
        TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    [made] = pos.orders
    pos.toast.acts["fire"](order=made["guid"])
    if act == "ready":
        pos.toast.acts["ready"](order=made["guid"])
    known = TOAST.adapter.look_up(ORDER, TOAST.merchant, pos)
    assert known is not None
    assert (known.kind, known.for_operator, known.external_id) == (Kind.IN_DOUBT, True, None)
    assert known.reason is not None
    assert made["guid"] in known.reason.message
    assert not made["voided"]


def test_a_voiding_that_is_not_sent_leaves_the_order_in_doubt() -> None:
    """As not sent, the order would be made a second time."""
    pos = turning()

    def send(request: Request) -> Reply:
        if request.url.endswith("/void"):
            raise NotSent("refused", "no connection")
        return pos(request)

    with pytest.raises(NoValidReply, match="no connection"):
        TOAST.adapter.submit(ORDER, TOAST.merchant, Send(send))


def test_an_accepted_order_whose_total_the_shop_has_changed_stays_accepted() -> None:
    pos = toast_pos(ORDER)
    accepted = TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    pos.toast.orders[0].content["checks"][0].update(
        totalAmount=22.0, paymentStatus="OPEN"
    )  # a dessert
    order = ORDER.in_ledger(None, None, accepted.external_id)
    assert TOAST.adapter.look_up(order, TOAST.merchant, pos) == accepted
    assert TOAST.adapter.cancel(order, TOAST.merchant, pos).kind is Kind.CANCELLED


def test_an_order_that_staff_collects_for_may_be_open() -> None:
    merchant, order = TOAST.merchant, order_of()
    paid_there = {name: value for name, value in merchant.pos.items() if name != "payment"}
    merchant = merchant.model_copy(update={"pos": paid_there})
    pos = toast_pos(order)
    assert TOAST.adapter.submit(order, merchant, pos).kind is Kind.ACCEPTED
    assert pos.orders[0]["checks"][0]["paymentStatus"] == "OPEN"
    tipped = TOAST.adapter.submit(ORDER, merchant, pos)
    assert code_of(tipped) == "unsupported_field"
    assert tipped.reason is not None
    assert tipped.reason.message.startswith("tip: ")


def test_a_pending_order_may_be_open() -> None:
    found = {**TOAST.accepted(ORDER.order_id), "approvalStatus": "NEEDS_APPROVAL"}
    check = {"amount": 17.0, "totalAmount": 17.0, "paymentStatus": "OPEN"}
    assert submitted(*BEFORE, reply(200, {**found, "checks": [check]})).kind is Kind.PENDING


@pytest.mark.parametrize("status", [None, "SETTLED", ["CLOSED"]])
def test_a_payment_of_which_toast_says_nothing_known_is_in_doubt(status: object) -> None:
    check = {"amount": 17.0, "totalAmount": 17.0, "paymentStatus": status}
    found = {**TOAST.accepted(ORDER.order_id), "checks": [check]}
    assert submitted(*BEFORE, reply(200, found)).kind is Kind.IN_DOUBT


def test_an_order_for_nothing_owes_nothing() -> None:
    item = {"sku": sku_of("burger"), "name": "Burger", "quantity": 1, "unit_price": 0}
    order, check = order_of(items=[item], total=0), {"amount": 0, "totalAmount": 0.0}
    made = {**TOAST.accepted(order.order_id), "checks": [{**check, "paymentStatus": "OPEN"}]}
    answers = (reply(200, {"checks": [check]}), *BEFORE[1:], reply(200, made))
    assert submitted(*answers, order=order).kind is Kind.ACCEPTED


def test_an_item_that_toast_does_not_know_is_named_in_its_words() -> None:
    """Toast's 404 is about an entity that the order refers to."""
    pos = toast_pos(ORDER, menu=[])
    outcome = TOAST.adapter.submit(ORDER, TOAST.merchant, pos)
    assert code_of(outcome) == "item_unavailable"
    assert outcome.reason is not None
    assert "'Burger'" in outcome.reason.message
    assert f"MenuItem {guid('burger')} was not found" in outcome.reason.message
    merchant = TOAST.merchant.with_catalog({sku_of("burger"): known_as(sku_of("burger"))})
    renamed = TOAST.adapter.submit(ORDER, merchant, pos)
    assert code_of(renamed) == "item_unavailable"
    unnamed = reply(404, {"code": 7, "message": "menu item not found"})
    assert code_of(submitted(*BEFORE, unnamed)) == "item_unavailable"


def test_a_modifier_of_a_modifier_that_toast_does_not_know_is_named() -> None:
    order = with_modifiers(1, {**NO_ONION, "modifiers": [{**BACON, "unit_price": 0}]})
    unknown = reply(404, {"code": 7, "message": f"MenuItem {guid('bacon')} was not found"})
    outcome = submitted(unknown, order=order)
    assert code_of(outcome) == "item_unavailable"
    assert outcome.reason is not None
    assert outcome.reason.message.startswith("'bacon' (")


def test_a_setting_that_toast_does_not_know_fails_the_order_with_its_words() -> None:
    words = f"DiningOption {guid('dining option')} does not exist"
    for replies in ([], BEFORE):
        outcome = submitted(*replies, reply(404, {"code": 7, "message": words}))
        assert outcome.kind is Kind.FAILED
        assert outcome.reason is not None
        assert outcome.reason.code == "http_404"
        assert outcome.reason.message == f"pos.dining_option: 7 {words}"
    assert submitted(reply(404, b"<html>")).kind is Kind.FAILED


UNPRICED: list[dict[str, Any]] = [
    {},
    *({"totalAmount": each} for each in (None, True, "17.00", 10**14, 1e999, float("nan"))),
    {"totalAmount": int("9" * 4299)},
]


@pytest.mark.parametrize(
    "answer",
    [
        *(reply(status) for status in (429, 500, 504)),
        reply(200, b"<html>"),
        *(reply(200, {"checks": [check]}) for check in UNPRICED),
    ],
)
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
    items = [{"sku": sku_of("b"), "name": "B", "quantity": 1, "unit_price": 1700}]
    order = gate.an_order(items=items, seconds=120)
    for _ in range(4):
        gate.take(order)
        gate.wait(45)
    assert ([kind for kind, _ in gate.recorded()], creates) == (["expired"], [])


def test_an_order_that_is_not_sent_after_its_prices_is_not_in_doubt(tmp_path: Path) -> None:
    def pos(request: Request) -> Any:
        is_order = request.method == "POST" and request.url.endswith("/orders")
        return NotSent("connect", "refused") if is_order else (200, TOAST.accepted("o1"))

    gate = Gate(tmp_path, pos)
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "toast", **TOAST.record}
    MerchantStore(gate.database).put([Merchant.parse(record)])
    items = [{"sku": sku_of("b"), "name": "B", "quantity": 1, "unit_price": 1700}]
    assert gate.take(gate.an_order(items=items)).outcome.kind is Kind.RETRY
    assert (gate.said[-1][1], gate.row_state()) == ("/orders/v2/orders", "new")


def test_a_cancellation_in_doubt_of_a_combined_order_is_told_as_not_done(tmp_path: Path) -> None:
    """Its look-up says that the order stands; in doubt for an operator is no end of a request for an accepted order."""
    known: dict[str, Any] = TOAST.accepted("o1")

    def pos(request: Request) -> Any:
        if request.method == "POST" and request.url.endswith("/orders"):
            known["externalId"] = json.loads(request.body or b"")["externalId"]
        return NoValidReply("timeout", "") if request.url.endswith("/void") else (200, known)

    gate = Gate(tmp_path, pos)
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "toast", **TOAST.record}
    MerchantStore(gate.database).put([Merchant.parse(record)])
    items = [{"sku": sku_of("b"), "name": "B", "quantity": 1, "unit_price": 1700}]
    gate.take(gate.an_order(items=items, seconds=7200))
    request = gate.a_request(seconds=600)
    gate.take(request, Action.CANCEL)
    known["deleted"] = True
    gate.wait(60)
    gate.take(request, Action.CANCEL)
    assert gate.recorded() == [("accepted", None), ("accepted", "not_cancelled")]


def test_a_refused_price_request_is_a_rejection() -> None:
    assert code_of(submitted(REFUSED)) == "payment_required"
    assert submitted(reply(401)).kind is Kind.RETRY


def test_a_refused_order_is_looked_up() -> None:
    found = reply(200, TOAST.accepted(ORDER.order_id))
    assert submitted(*BEFORE, REFUSED, found).kind is Kind.ACCEPTED
    assert code_of(submitted(*BEFORE, REFUSED, *TOAST.unknown)) == "payment_required"
    assert code_of(submitted(*BEFORE, reply(422), *TOAST.unknown)) == "invalid_order"
    assert submitted(*BEFORE, REFUSED, reply(400)).kind is Kind.IN_DOUBT
    for words in (
        "The externalId is taken",
        "An order with this identifier exists",
        "Order must be unique",
        "The order exists",
    ):
        taken = reply(400, {"message": words})
        assert submitted(*BEFORE, taken, *TOAST.unknown).kind is Kind.IN_DOUBT
    for words in ("The table does not exist", "This revenue center doesn't exist"):
        lacking = reply(400, {"message": words})
        assert code_of(submitted(*BEFORE, lacking, *TOAST.unknown)) == "invalid_order"


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

    for module in (toast_api, toast_create, toast_search):
        monkeypatch.setattr(module, "json_object", reading)
    assert code_of(submitted(*BEFORE, REFUSED, *TOAST.unknown)) == "payment_required"
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
        {"items": [{"sku": guid("b"), "name": "b", "quantity": 2, "unit_price": 850}]},
    ],
)
def test_an_order_that_toast_cannot_represent_is_rejected_unsent(change: dict[str, object]) -> None:
    assert code_of(submitted(order=order_of(**change))) == "invalid_order"


def test_a_modifier_with_a_price_needs_a_guid() -> None:
    modifier = {"name": "cheese", "unit_price": 50}
    item = {"sku": sku_of("b"), "name": "b", "quantity": 1, "unit_price": 850}
    order = order_of(items=[{**item, "modifiers": [modifier]}], total=900)
    assert code_of(submitted(order=order)) == "invalid_order"


def test_a_look_up_may_read_toasts_largest_reply() -> None:
    """Some 2 KB of each item: an order whose acceptance was too long to be read is found."""
    send = Scripted(*TOAST.unknown)
    TOAST.adapter.look_up(ORDER, TOAST.merchant, send)
    assert {request.expects for request in send.requests} == {BODY_LIMIT}
