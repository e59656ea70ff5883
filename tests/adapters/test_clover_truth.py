"""What is true at a strict Clover when the adapter says ``accepted``, ``rejected`` or ``cancelled``.

The order's steps are taken by a walker, with facts that outlive attempts.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.adapters.testing.walk import Walker
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import ACKNOWLEDGEMENT, Reply, Request, Send, Transport
from pos_gateway.transport.guard import Guard
from testkit.patience import PATIENCE
from testkit.vendors.server import VendorServer
from tests.adapters.clover_shop import Shop
from tests.adapters.vendors import ADDRESS, CLOVER, order_of

Body = dict[str, Any]
#: Catalog: our sku to Clover's id.
CATALOG = {"burger": "BURGER", "cheese": "CHEESE"}
ALLERGY = "allergy: nuts"
ADA = {"name": "Ada", "phone": "+12125550123"}


@pytest.fixture
def shop() -> Shop:
    return Shop()


def code_of(outcome: Outcome | None) -> str:
    assert outcome is not None
    assert outcome.reason is not None
    return outcome.reason.code


def message(outcome: Outcome) -> str:
    return outcome.reason.message if outcome.reason else ""


def burger(*toppings: Body, **fields: Any) -> Body:
    return {"sku": "burger", "name": "Burger", "quantity": 1, "unit_price": 850, **fields} | (
        {"modifiers": list(toppings)} if toppings else {}
    )


FREE: Body = {"items": [burger(unit_price=0)], "total": 0}


def assert_kitchen_has(shop: Shop, order: Order, tickets: int = 1) -> None:
    """One order, shown, paid once and as agreed, and on paper."""
    [fact] = shop.standing
    assert (fact["is_shown"], fact["total"], len(fact["tickets"])) == (True, order.total, tickets)
    assert (fact["payments"], fact["tips"]) == ([order.total] * bool(order.total), order.tip or 0)


def assert_nothing_stands(shop: Shop) -> None:
    """No order, or deleted ones, of which nothing was paid or printed."""
    assert shop.standing == []
    for fact in shop.facts:
        assert (fact["payments"], fact["tickets"]) == ([], [])


# Accepted


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="plain"),
        pytest.param({"tip": 200}, id="tip"),
        pytest.param(FREE, id="total 0"),
        pytest.param({"display_id": "A 17"}, id="display id"),
        pytest.param({"fulfillment": "delivery"}, id="delivery"),
        pytest.param({"notes": "n" * 600 + ALLERGY}, id="long note"),
        pytest.param({"items": [burger(quantity=150, unit_price=1)], "total": 150}, id="150 lines"),
    ],
)
def test_an_accepted_order_is_paid_and_on_paper_once(shop: Shop, fields: Body) -> None:
    order = order_of(**{"customer": ADA, **fields})
    walker = shop.walker(order)
    outcome = walker.forward()
    assert (outcome.kind, outcome.external_id) == (Kind.ACCEPTED, shop.fact["id"])
    assert_kitchen_has(shop, order)
    [ticket] = shop.fact["tickets"]
    assert ticket["title"] == fields.get("display_id")
    words = [ADA["name"], ADA["phone"], fields.get("fulfillment"), fields.get("notes")]
    assert ticket["note"].split(" ", 2)[2] == " ".join(filter(None, words))
    assert len(shop.send.requests) <= CLOVER.adapter.limits.requests
    assert walker.look_up() == replace(outcome, facts=None)  # the event's id is of that call alone


def test_replies_about_a_hundred_pieces_are_read(shop: Shop) -> None:
    """Clover repeats the item for each piece."""
    sizes = list[int]()

    def send(request: Request) -> Reply:
        answer = shop.send(request)
        sizes.append(len(answer.body))
        assert sizes[-1] <= request.expects
        return answer

    order = order_of(items=[burger(quantity=100, unit_price=1, notes="n" * 255)], total=100)
    walker = Walker(CLOVER.adapter, order, shop.merchant, Send(send))
    assert walker.forward().kind is Kind.ACCEPTED
    assert max(sizes) > ACKNOWLEDGEMENT + 16 * len(order.source)


def test_the_payment_is_of_the_orders_total_and_its_tip_is_the_staffs(shop: Shop) -> None:
    walker = shop.walker(order_of(tip=200))
    walker.forward()
    [made] = shop.staff.orders.values()
    [payment] = made["payments"]
    assert walker.facts["payment"] == payment["id"]
    assert len(payment["externalPaymentId"]) == 32
    expected = {"tender": {"id": "EXTERNAL"}, "amount": 1700, "tipAmount": 200}
    assert {name: payment[name] for name in expected} == expected


@pytest.mark.parametrize("step", ["", "orders", "payments"])
def test_a_merchant_without_a_tender_has_the_external_one(shop: Shop, step: str) -> None:
    """Without any, nothing is made; one that is disabled meanwhile undoes the order."""
    shop.merchant = shop.merchant.model_copy(update={"pos": {"merchant_id": "M1"}})
    tenders = shop.clover.shop.tenders
    if step == "orders":
        tenders["EXTERNAL"]["enabled"] = False
    elif step == "payments":
        shop.before["POST", "atomic_order/orders"] = lambda: tenders["EXTERNAL"].update(
            enabled=False
        )
    outcome = shop.submit(order_of())
    if not step:
        assert_kitchen_has(shop, order_of())
        return
    assert (outcome.kind, code_of(outcome)) == (Kind.FAILED, "no_tender")
    assert_nothing_stands(shop)
    assert len(shop.facts) == (step == "payments")


def test_an_order_of_0_needs_no_tender(shop: Shop) -> None:
    shop.merchant = shop.merchant.model_copy(update={"pos": {"merchant_id": "M1"}})
    shop.clover.shop.tenders.clear()
    assert shop.submit(order_of(**FREE)).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of(**FREE))


def test_a_tip_without_a_payment_is_refused_by_name(shop: Shop) -> None:
    outcome = shop.submit(order_of(**FREE, tip=200))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "unsupported_field")
    assert message(outcome).startswith("tip: ")
    assert shop.send.requests == []


def test_an_accepted_order_is_shown_where_clover_sets_no_state(shop: Shop) -> None:
    shop.knobs.hides_stateless = True
    assert shop.submit(order_of()).kind is Kind.ACCEPTED
    assert shop.fact["is_shown"]


# On the way: any reply is lost, of any request, before or after Clover has done what was asked.

#: The requests of an order: methods and patterns of paths.
FORWARD = [
    ("POST", "atomic_order/checkouts"),
    ("POST", "atomic_order/orders"),
    ("GET", "orders"),
    ("POST", "orders/[^/]+/payments"),
    ("POST", "print_event"),
    ("GET", "print_event/[^/]+"),
    ("GET", "orders/[^/]+"),
]
WHAT = ["before", "after", "slow", "twice"]
#: Clover pays and prints each request that arrives: a repeated one is not found out before it is done.
LOSSES = [
    (method, path, what)
    for method, path in FORWARD
    for what in WHAT
    if what != "twice" or path not in ("orders/[^/]+/payments", "print_event")
]


@pytest.mark.parametrize("fields", [{}, {"tip": 200}, FREE], ids=["total", "tip", "total 0"])
@pytest.mark.parametrize(("method", "path", "what"), LOSSES)
def test_whatever_reply_is_lost_an_accepted_order_is_paid_and_on_paper_once(
    shop: Shop, method: str, path: str, what: str, fields: Body
) -> None:
    order, shop.knobs.prints_after = order_of(**fields), 10
    shop.meet(what, method, path)
    outcome = shop.delivered(order)
    if (what, path) == ("before", "print_event"):  # it may have been asked for
        assert (outcome.kind, code_of(outcome)) == (Kind.PENDING, "not_printed")
        assert_kitchen_has(shop, order, tickets=0)
        return
    assert outcome.kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)
    is_sent = order.total > 0 or "payments" not in path
    assert shop.way.troubles[0].times == (not is_sent)


@pytest.mark.parametrize("what", ["after", "slow", None])
def test_an_order_is_pending_until_its_ticket_is_out_and_never_printed_twice(
    shop: Shop, what: str | None
) -> None:
    """The device is offline."""
    shop.knobs.is_online = False
    if what is not None:
        shop.meet(what, "POST", "print_event")
    walker = shop.walker(order_of())
    outcome = shop.delivered(order_of(), walker)
    assert (outcome.kind, code_of(outcome)) == (Kind.PENDING, "not_printed")
    assert outcome.external_id == shop.fact["id"]
    assert_kitchen_has(shop, order_of(), tickets=0)
    shop.knobs.is_online = True
    assert walker.forward(asks=True).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())
    assert len(shop.staff.print_events) == 1


@pytest.mark.parametrize("seconds", [3, 45])
def test_an_order_is_accepted_once_a_slow_printer_has_printed(shop: Shop, seconds: float) -> None:
    shop.knobs.prints_after = seconds
    walker = shop.walker(order_of())
    assert walker.forward().kind is Kind.PENDING
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())


def test_an_order_that_arrives_twice_stands_once(shop: Shop) -> None:
    """A proxy may repeat a POST."""
    shop.meet("twice", "POST", "atomic_order/orders")
    assert shop.submit(order_of()).kind is Kind.ACCEPTED
    assert len(shop.facts) == 2
    assert_kitchen_has(shop, order_of())


@pytest.mark.parametrize("lost", ["before", "after"])
def test_an_order_that_lists_show_late_is_made_again_and_stands_once(shop: Shop, lost: str) -> None:
    """The double is found before the payment; then the reply to its deletion is lost."""
    shop.knobs.lists_after = 45
    shop.meet("after", "POST", "atomic_order/orders", times=2)
    shop.meet(lost, "DELETE")
    walker = shop.walker(order_of())
    for _ in range(2):
        assert walker.forward(asks=True).kind is Kind.IN_DOUBT
    shop.passes(60)
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert len(shop.facts) == 2
    assert_kitchen_has(shop, order_of())


@pytest.mark.parametrize("why", ["total", "payment"])
def test_an_order_that_arrives_twice_is_undone_twice(shop: Shop, why: str) -> None:
    shop.meet("twice", "POST", "atomic_order/orders")
    if why == "total":
        shop.before["POST", "atomic_order/orders"] = lambda: shop.clover.shop.add_tax(9)
    else:
        shop.refuses["payments"] = 400
    assert shop.submit(order_of()).kind is Kind.REJECTED
    assert len(shop.facts) == 2
    assert_nothing_stands(shop)


@pytest.mark.parametrize("how", ["paid", "edited", "printed"])
@pytest.mark.parametrize("is_undone", [False, True])
def test_a_double_that_the_shop_has_begun_with_is_left_to_an_operator(
    shop: Shop, how: str, is_undone: bool
) -> None:
    def begin() -> None:
        [first, _] = shop.staff.orders
        if how == "edited":
            shop.passes(11)
            shop.staff.edit(first, note="table 5")
        elif how == "printed":
            shop.staff._print(shop.staff.order(first))
        else:
            shop.staff.pay(shop.staff.order(first), {"id": "P", "amount": 1700})

    shop.meet("twice", "POST", "atomic_order/orders")
    shop.before["GET", "/orders"] = begin
    if is_undone:
        shop.before["POST", "atomic_order/orders"] = lambda: shop.clover.shop.add_tax(9)
    outcome = shop.submit(order_of())
    assert (outcome.kind, outcome.for_operator) == (Kind.IN_DOUBT, True)
    assert all(each in message(outcome) for each in shop.staff.orders)
    assert len(shop.standing) == 2


# Totals


def test_an_order_that_clover_prices_otherwise_is_never_made(shop: Shop) -> None:
    shop.clover.shop.add_tax(9)
    outcome = shop.submit(order_of())
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert "1853" in message(outcome)
    assert "1700" in message(outcome)
    assert shop.facts == []


def test_an_item_that_clover_sells_at_another_price_is_no_surprise_to_the_guest(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    shop.knobs.own_prices = True
    outcome = shop.submit(order_of(items=[burger(unit_price=800)], total=800))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert shop.facts == []


@pytest.mark.parametrize("what", ["before", "after", "slow"])
@pytest.mark.parametrize(
    ("method", "path"), [FORWARD[0], FORWARD[1], ("GET", "orders/[^/]+"), ("DELETE", ".*")]
)
def test_an_order_whose_total_has_changed_since_the_preview_is_deleted_and_rejected(
    shop: Shop, method: str, path: str, what: str
) -> None:
    shop.before["POST", "atomic_order/orders"] = lambda: shop.clover.shop.add_tax(9)
    shop.meet(what, method, path)
    outcome = shop.delivered(order_of())
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert_nothing_stands(shop)
    assert shop.way.troubles[0].times == 0


@pytest.mark.parametrize("how", ["edited", "printed"])
def test_an_order_at_another_total_that_the_shop_has_begun_with_stays(shop: Shop, how: str) -> None:
    def begin() -> None:
        [known_as] = shop.staff.orders
        if how == "edited":
            shop.passes(11)
            shop.staff.edit(known_as, note="table 5")
        else:
            shop.staff._print(shop.staff.order(known_as))

    shop.before["POST", "atomic_order/orders"] = lambda: shop.clover.shop.add_tax(9)
    shop.before["GET", "O000000000001"] = begin
    assert shop.submit(order_of()).kind is Kind.REJECTED
    assert [each["total"] for each in shop.standing] == [1853]
    assert shop.fact["payments"] == []


def test_an_order_in_another_currency_is_deleted_and_rejected(shop: Shop) -> None:
    """A preview names none."""
    outcome = shop.submit(order_of(currency="USD"))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "price_mismatch")
    assert_nothing_stands(shop)


# Payments


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Kind.REJECTED), (403, Kind.FAILED), (404, Kind.FAILED)]
)
def test_an_order_whose_payment_is_refused_is_undone(shop: Shop, status: int, kind: Kind) -> None:
    shop.refuses["payments"] = status
    outcome = shop.submit(order_of())
    assert outcome.kind is kind
    assert status != 400 or code_of(outcome) == "payment_required"
    assert len(shop.facts) == 1
    assert_nothing_stands(shop)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Kind.RETRY), (429, Kind.RETRY), (500, Kind.IN_DOUBT), (409, Kind.IN_DOUBT)],
)
def test_an_order_whose_payment_is_not_recorded_yet_is_paid_later(
    shop: Shop, status: int, kind: Kind
) -> None:
    shop.refuses["payments"] = status
    walker = shop.walker(order_of())
    assert walker.forward().kind is kind
    shop.refuses.clear()
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())


@pytest.mark.parametrize("amount", [1700, 1699])
def test_an_order_that_the_shop_took_money_for_is_not_paid_again(shop: Shop, amount: int) -> None:
    shop.before["GET", "/orders"] = lambda: shop.staff.pay(
        shop.staff.order("O000000000001"), {"id": "P", "amount": amount}
    )
    outcome = shop.submit(order_of())
    assert shop.fact["payments"] == [amount]
    is_paid = amount == 1700
    assert (outcome.kind is Kind.ACCEPTED, outcome.for_operator) == (is_paid, not is_paid)
    assert len(shop.fact["tickets"]) == is_paid


@pytest.mark.parametrize("how", ["failed", "voided"])
def test_a_payment_that_took_no_money_is_not_taken_for_one(shop: Shop, how: str) -> None:
    """It is found as ours, and paid again; meanwhile the order may be undone."""
    shop.knobs.payment_result = "FAIL" if how == "failed" else "SUCCESS"
    if how == "voided":
        shop.meet("after", "POST", "orders/[^/]+/payments")
    walker = shop.walker(order_of())
    assert walker.forward().kind is Kind.IN_DOUBT
    if how == "voided":
        shop.staff.void("O000000000001")
    assert shop.fact["payments"] == []
    shop.knobs.payment_result = "SUCCESS"
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())


def test_an_order_whose_payment_took_no_money_is_deleted_when_cancelled(shop: Shop) -> None:
    shop.knobs.payment_result = "FAIL"
    walker = shop.walker(order_of())
    assert walker.forward().kind is Kind.IN_DOUBT
    assert walker.cancel().kind is Kind.CANCELLED
    assert_nothing_stands(shop)


@pytest.mark.parametrize("result", ["AUTH", "INITIATED"])
def test_a_payment_that_may_take_money_is_left_to_an_operator(shop: Shop, result: str) -> None:
    payment = {"id": "P", "amount": 1700, "result": result}
    shop.before["GET", "/orders"] = lambda: shop.staff.order("O000000000001")["payments"].append(
        payment
    )
    walker = shop.walker(order_of())
    outcome = walker.forward()
    assert (outcome.kind, outcome.for_operator) == (Kind.IN_DOUBT, True)
    assert walker.cancel().kind is Kind.REJECTED
    assert (shop.fact["payments"], shop.fact["tickets"]) == ([], [])


@pytest.mark.parametrize("known_as", [None, "P" * 3000, 7])
def test_a_payment_whose_id_is_none_is_in_doubt(shop: Shop, known_as: Any) -> None:
    """The shop's, at the till; an id is kept with the order."""
    shop.before["GET", "/orders"] = lambda: shop.staff.pay(
        shop.staff.order("O000000000001"), {"id": known_as, "amount": 1700}
    )
    walker = shop.walker(order_of())
    outcome = walker.forward()
    assert (outcome.kind, message(outcome)) == (Kind.IN_DOUBT, "a payment without an id")
    assert "payment" not in walker.facts
    assert (shop.fact["payments"], shop.fact["tickets"]) == ([1700], [])


@pytest.mark.parametrize("state", ["locked", "PAID"])
def test_a_locked_order_without_a_payment_to_see_is_not_paid_again(shop: Shop, state: str) -> None:
    shop.meet("after", "POST", "orders/[^/]+/payments")
    shop.knobs.hides_payments, shop.knobs.spelling = True, {"locked": state}
    walker = shop.walker(order_of())
    walker.forward()
    outcome = shop.delivered(order_of(), walker)
    assert outcome.kind is Kind.IN_DOUBT
    assert "no payment is shown" in message(outcome)
    assert shop.fact["payments"] == [1700]
    shop.knobs.hides_payments = False
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())


# Tickets


@pytest.mark.parametrize("total", [1700, 0])
@pytest.mark.parametrize("how", [400, 403, "fails"])
def test_an_order_that_is_not_printed_is_deleted_unless_it_is_paid(
    shop: Shop, how: Any, total: int
) -> None:
    """A paid one is left to an operator."""
    if how == "fails":
        shop.knobs.printer_fails = True
    else:
        shop.refuses["print_event"] = how
    outcome = shop.submit(order_of(**({} if total else FREE)))
    assert outcome.kind is (Kind.FAILED if how == 403 and not total else Kind.REJECTED)
    if total:
        assert "refund and delete it at Clover" in message(outcome)
        assert_kitchen_has(shop, order_of(), tickets=0)
    else:
        assert_nothing_stands(shop)


@pytest.mark.parametrize("fields", [{}, FREE], ids=["total", "total 0"])
def test_an_order_that_staff_have_printed_is_not_printed_again(shop: Shop, fields: Body) -> None:
    order = order_of(**fields)
    shop.before["GET", "O000000000001"] = lambda: shop.staff._print(
        shop.staff.order("O000000000001")
    )
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)
    assert shop.staff.print_events == {}


def test_an_order_that_staff_have_printed_in_part_is_left_to_an_operator(shop: Shop) -> None:
    def print_one() -> None:
        shop.staff.order("O000000000001")["lineItems"][0]["printed"] = True

    shop.before["GET", "O000000000001"] = print_one
    order = order_of(items=[burger(quantity=2)], total=1700)
    walker = shop.walker(order)
    outcome = walker.forward()
    assert (outcome.kind, outcome.for_operator) == (Kind.IN_DOUBT, True)
    assert "print the rest" in message(outcome)
    assert shop.delivered(order, walker).kind is Kind.PENDING
    assert shop.staff.print_events == {}
    shop.staff._print(shop.staff.order("O000000000001"))
    assert shop.delivered(order, walker).kind is Kind.ACCEPTED


@pytest.mark.parametrize("has_tender", [False, True])
def test_an_order_takes_no_more_requests_than_its_limit_counts(
    shop: Shop, has_tender: bool
) -> None:
    """The longest way: the ticket is not out at the first look."""
    if not has_tender:
        pos = {"merchant_id": "M1", "closed_as": "REJECTED"}
        shop.merchant = shop.merchant.model_copy(update={"pos": pos})
    shop.knobs.prints_after = 10
    assert shop.delivered(order_of()).kind is Kind.ACCEPTED
    assert len(shop.send.requests) == CLOVER.adapter.limits.requests - 4 * has_tender


@pytest.mark.parametrize(("status", "tickets"), [(401, 1), (429, 1), (500, 0)])
def test_a_print_event_is_asked_for_again_only_if_it_was_certainly_not_taken(
    shop: Shop, status: int, tickets: int
) -> None:
    shop.refuses["print_event"] = status
    walker = shop.walker(order_of())
    walker.forward()
    shop.refuses.clear()
    outcome = shop.delivered(order_of(), walker)
    assert outcome.kind is (Kind.ACCEPTED if tickets else Kind.PENDING)
    assert_kitchen_has(shop, order_of(), tickets)


# Texts


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("number", [10, 60])
def test_all_toppings_that_are_paid_for_are_in_the_kitchen_or_the_order_is_refused(
    shop: Shop, number: int, cuts: bool
) -> None:
    shop.knobs.cuts_texts = cuts
    toppings = [{"name": f"topping {each}", "unit_price": 10} for each in range(number)]
    order = order_of(items=[burger(*toppings, notes="well done")], total=850 + 10 * number)
    outcome = shop.submit(order)
    if outcome.kind is Kind.REJECTED:
        assert (code_of(outcome), shop.facts) == ("text_too_long", [])
        return
    [line] = shop.fact["tickets"][0]["lines"]
    assert all(each["name"] in line["note"] for each in toppings)
    assert line["note"].endswith("well done")


@pytest.mark.parametrize("size", [127, 128, 255])
def test_an_items_name_is_whole_or_the_order_is_refused(shop: Shop, size: int) -> None:
    shop.knobs.cuts_texts = True
    outcome = shop.submit(order_of(items=[burger(name="x" * (size - 1) + "!")], total=850))
    assert (outcome.kind is Kind.ACCEPTED) is (size == 127)
    lines = [line for fact in shop.facts for each in fact["tickets"] for line in each["lines"]]
    assert [line["name"][-1] for line in lines] == ["!"] * (size == 127)


def test_inventory_modifiers_reach_the_ticket_at_our_prices(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    cheese = {"sku": "cheese", "name": "cheese", "quantity": 2, "unit_price": 70}
    order = order_of(items=[burger(cheese)], total=990)
    assert shop.submit(order).kind is Kind.ACCEPTED
    [line] = shop.fact["tickets"][0]["lines"]
    assert (shop.fact["total"], line["modifiers"]) == (990, ["2 x cheese"])


COURIER = {"name": "Bo's Bikes", "phone": "+12125550199", "reference": "C-7"}
LATER = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)


def coke(**fields: Any) -> Body:
    """A modifier with modifiers, which come to 25 with its own price of 10."""
    lime = {"name": "lime", "quantity": 3, "unit_price": 4}
    peeled = {"name": "peeled", "unit_price": 1, "notes": "thin"}
    below = [{"name": "no ice"}, {**lime, "modifiers": [peeled]}]
    return {"name": "Coke", "unit_price": 10, "notes": "cold", "modifiers": below, **fields}


COKE = "Coke: no ice, 3 x lime (peeled (thin)), cold"


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"order_type": "pickup"}, "pickup"),
        (
            {"order_type": "dine_in", "dine_in": {"table": "7", "guests": 2}},
            "dine_in table 7 2 gue",
        ),
        ({"order_type": "curbside", "fulfillment": "curbside 4"}, "curbside curbside 4"),
        (
            {"delivery": {"address": ADDRESS, "instructions": "ring", "courier": COURIER}},
            "delivery 1 Main St, 02215 Boston MA, US ring courier Bo's Bikes +12125550199 C-7",
        ),
        (
            {"delivery": {"contactless": True}, "fulfillment": "delivery", "notes": "hot"},
            "delivery contactless hot",
        ),
        ({"utensils": True, "prep_minutes": 20}, "takes 20 minutes with utensils"),
        ({"customer": {**ADA, "email": "ada@example.com"}}, "ada@example.com"),
        pytest.param(
            {"scheduled_for": LATER.isoformat()},
            f"for {LATER:%Y-%m-%d %H:%M} +0000",
            id="scheduled_for",  # each test process has a clock of its own
        ),
    ],
)
def test_the_note_has_what_clover_has_no_field_for(shop: Shop, fields: Body, note: str) -> None:
    pos = {**shop.merchant.pos, "scheduled_as": "NOTE"}
    shop.merchant = shop.merchant.model_copy(update={"pos": pos})
    order = order_of(**{"customer": ADA, **fields})
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)
    [ticket] = shop.fact["tickets"]
    assert ticket["note"].split(" ", 2)[2].startswith(f"Ada +12125550123 {note}")


def test_the_time_in_a_note_is_by_the_locations_clock(shop: Shop) -> None:
    """A backend's times are UTC's, and a kitchen reads its own clock."""
    pos = {**shop.merchant.pos, "scheduled_as": "NOTE", "time_zone": "America/New_York"}
    shop.merchant = shop.merchant.model_copy(update={"pos": pos})
    order = order_of(scheduled_for="2026-07-01T01:30:00Z", placed_at="2026-06-30T20:00:00Z")
    assert shop.submit(order).kind is Kind.ACCEPTED
    [ticket] = shop.fact["tickets"]
    assert ticket["note"].endswith(" for 2026-06-30 21:30")


@pytest.mark.parametrize(
    ("type_", "made"), [("delivery", "DELIVERY"), ("dine_in", "PICKUP"), (None, "PICKUP")]
)
def test_an_orders_type_is_the_merchants_for_it(shop: Shop, type_: str | None, made: str) -> None:
    pos = {**shop.merchant.pos, "order_type": "PICKUP", "delivery_order_type": "DELIVERY"}
    shop.merchant = shop.merchant.model_copy(update={"pos": pos})
    way = {"delivery": {"courier": COURIER}} if type_ == "delivery" else {}
    assert shop.submit(order_of(order_type=type_, **way)).kind is Kind.ACCEPTED
    [order] = shop.staff.orders.values()
    assert order["orderType"] == {"id": made}


def test_fees_are_lines_and_discounts_are_of_pieces_or_of_the_order(shop: Shop) -> None:
    shop.clover.shop.add_tax(10)
    items = [burger(ref="1", quantity=3), burger(ref="2")]
    discounts = [
        {"name": "Of three", "amount": 100, "items": ["1"]},
        {"name": "Of all", "amount": 200},
        {"name": "Of two", "amount": 851, "items": ["1", "2"]},
        {"name": "Not the shop's", "amount": 500, "funded_by": "platform"},
    ]
    fees = [{"kind": "bag", "name": "Bag", "amount": 151}]
    taxes = [{"name": "VAT", "amount": 240}]
    order = order_of(items=items, discounts=discounts, fees=fees, taxes=taxes, total=2640)
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)
    [made] = shop.staff.orders.values()
    shares = [
        [(each["name"], each["amount"]) for each in line["discounts"]] for line in made["lineItems"]
    ]
    assert shares == [
        [("Of three", -34), ("Of two", -284)],
        [("Of three", -33), ("Of two", -284)],
        [("Of three", -33), ("Of two", -283)],
        [],
        [],
    ]
    assert [(each["name"], each["amount"]) for each in made["discounts"]] == [("Of all", -200)]
    assert made["lineItems"][-1]["name"] == "Bag"


def test_taxes_that_a_platform_remits_are_left_out(shop: Shop) -> None:
    shop.clover.shop.add_tax(10)
    order = order_of(taxes=[{"name": "VAT", "amount": 170, "remitted_by": "platform"}])
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)


@pytest.mark.parametrize("is_known", [False, True])
def test_modifiers_of_modifiers_are_in_the_lines_note_and_price(shop: Shop, is_known: bool) -> None:
    shop.merchant = shop.merchant.with_catalog({**CATALOG, "coke": "CHEESE"} if is_known else {})
    order = order_of(items=[burger(coke(sku="coke", quantity=2), notes="hot")], total=900)
    assert shop.submit(order).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order)
    [line] = shop.fact["tickets"][0]["lines"]
    assert line["note"] == f"2 x {COKE}; hot"
    assert line["modifiers"] == ["2 x Coke"] * is_known


def test_the_payment_says_how_the_guest_has_paid(shop: Shop) -> None:
    payment = {"status": "paid", "method": "card", "source": "Shop", "reference": "P-1"}
    assert shop.submit(order_of(payment=payment)).kind is Kind.ACCEPTED
    [made] = shop.staff.orders.values()
    assert [each["note"] for each in made["payments"]] == ["card P-1 Shop"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scheduled_for": LATER.isoformat()}, "scheduled_for: Clover makes each order at once"),
        ({"payment": {"status": "unpaid"}}, "payment.status is unpaid"),
        ({"dine_in": {"table": "7"}, "fulfillment": "pickup"}, "dine_in: the order's fulfillment"),
        ({"delivery": {"zone": 3}}, "this POS's API has no place for delivery.zone (a number)"),
        (
            {
                "taxes": [
                    {"name": "VAT", "amount": 70},
                    {"name": "State", "amount": 10, "remitted_by": "platform"},
                ],
                "total": 1770,
            },
            "taxes[].remitted_by: Clover adds all",
        ),
    ],
)
def test_what_clover_has_no_place_for_is_refused_by_name(
    shop: Shop, fields: Body, said: str
) -> None:
    outcome = shop.submit(order_of(**fields))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "unsupported_field")
    assert message(outcome).startswith(said)
    assert shop.facts == []


@pytest.mark.parametrize("depth", [1, 2])
def test_a_modifier_with_a_price_and_no_name_is_refused_by_name(shop: Shop, depth: int) -> None:
    below: Body = {"name": "", "unit_price": 10}
    topping = {"name": "x", "modifiers": [below]} if depth == 2 else below
    outcome = shop.submit(order_of(items=[burger(topping)], total=860))
    assert outcome.kind is Kind.REJECTED
    assert message(outcome).endswith("has a price, and neither a name nor a sku")
    assert shop.facts == []


# Look-ups


def made(shop: Shop, order: Order) -> Order:
    """The order, whose creation was not answered."""
    shop.meet("after", "POST", "atomic_order/orders")
    assert shop.submit(order).kind is Kind.IN_DOUBT
    return order


@pytest.mark.parametrize("tax", [0, 9, 25])
def test_an_order_whose_note_was_lost_is_never_unknown(shop: Shop, tax: int) -> None:
    shop.knobs.loses_note, shop.knobs.takes_reference = True, False
    shop.before["POST", "atomic_order/orders"] = lambda: shop.clover.shop.add_tax(tax)
    known = shop.look_up(made(shop, order_of()))
    assert known is not None
    assert known.kind is Kind.IN_DOUBT
    assert len(shop.standing) == 1


@pytest.mark.parametrize("takes_reference", [True, False])
def test_an_order_whose_note_staff_have_replaced_is_never_unknown(
    shop: Shop, takes_reference: bool
) -> None:
    shop.knobs.takes_reference = takes_reference
    order = made(shop, order_of())
    shop.staff.edit(shop.fact["id"], note="[table 5] no hurry")
    known = shop.look_up(order)
    assert known is not None
    assert known.kind is (Kind.ACCEPTED if takes_reference else Kind.IN_DOUBT)


@pytest.mark.parametrize(
    "spelling", [{"EUR": "eur"}, {"open": "OPEN"}, {"open": "Paid", "EUR": "Eur"}]
)
def test_an_order_is_known_in_whatever_spelling(shop: Shop, spelling: dict[str, str]) -> None:
    shop.knobs.spelling = spelling
    known = shop.look_up(made(shop, order_of()))
    assert known is not None
    assert known.kind is Kind.ACCEPTED


def test_an_order_is_found_among_many_by_one_request(shop: Shop) -> None:
    order = order_of()
    shop.submit(order)
    for number in range(150):
        CLOVER.create(order_of(f"other/{number}"), shop.send)
        shop.passes(1)
    shop.send.requests.clear()
    known = shop.look_up(order)
    assert known is not None
    assert known.kind is Kind.ACCEPTED
    assert len(shop.send.requests) == 1


@pytest.mark.parametrize("number", [0, 1, 30])
def test_a_look_up_whose_filters_are_ignored_takes_no_other_order_for_ours(
    shop: Shop, number: int
) -> None:
    shop.knobs.ignored_filters = ("externalReferenceId", "createdTime", "deletedTime")
    order = made(shop, order_of()) if number else order_of()
    for each in range(number or 1):
        CLOVER.create(order_of(f"other/{each}"), shop.send)
        shop.passes(1)
    known = shop.look_up(order)
    assert (known is None) is (number == 0)
    assert known is None or known.kind is Kind.ACCEPTED


def test_an_order_that_staff_have_deleted_is_cancelled_and_not_unknown(shop: Shop) -> None:
    order = order_of()
    walker = shop.walker(order)
    accepted = walker.forward()
    shop.staff.delete(shop.fact["id"])
    for known_as in (None, accepted.external_id):
        known = shop.look_up(order.in_ledger(None, None, known_as))
        assert known is not None
        assert known.kind is Kind.CANCELLED
    shop.passes(1)  # for Clover's rate
    assert walker.cancel().kind is Kind.CANCELLED


@pytest.mark.parametrize(("method", "path"), FORWARD[2:])
def test_an_order_that_staff_delete_on_the_way_is_cancelled(
    shop: Shop, method: str, path: str
) -> None:
    shop.knobs.is_online = False
    shop.meet("before", method, path)
    walker = shop.walker(order_of())
    while (outcome := walker.forward(asks=True)).kind is Kind.RETRY:
        pass
    assert outcome.kind in (Kind.PENDING, Kind.IN_DOUBT)
    shop.staff.delete(shop.fact["id"])
    assert shop.delivered(order_of(), walker).kind is Kind.CANCELLED


@pytest.mark.parametrize("path", ["payments", "print_event"])
def test_an_order_that_staff_delete_before_a_request_is_cancelled(shop: Shop, path: str) -> None:
    shop.before["POST", path] = lambda: shop.staff.delete("O000000000001")
    assert shop.submit(order_of()).kind is Kind.CANCELLED
    assert shop.fact["tickets"] == []


# Access and rates


@pytest.mark.parametrize("act", ["ends", "revoked"])
def test_a_token_that_has_ended_makes_an_order_wait(shop: Shop, act: str) -> None:
    if act == "revoked":
        shop.clover.access.revoke()
    else:
        pair = shop.clover.access.pair()
        shop.send.headers["Authorization"] = f"Bearer {pair['access_token']}"
        shop.passes(pair["access_token_expiration"] - datetime.now(UTC).timestamp())
    outcome = shop.submit(order_of())
    assert (outcome.kind, code_of(outcome)) == (Kind.RETRY, "credential_refused")
    assert shop.facts == []


@pytest.mark.parametrize("others", range(6))
def test_a_rate_that_is_exceeded_makes_an_order_wait_as_long_as_clover_says(
    shop: Shop, others: int
) -> None:
    """The refused request is any of the order's."""
    shop.knobs.takes = 5
    for _ in range(others):
        shop.send(Request("GET", "https://pos.example.com/v3/merchants/M1/orders/NONE"))
    walker = shop.walker(order_of())
    outcome = walker.forward()
    assert outcome.kind in (Kind.RETRY, Kind.IN_DOUBT)
    assert outcome.retry_after == 1
    assert len(shop.facts) == (others < 4)
    assert shop.delivered(order_of(), walker).kind is Kind.ACCEPTED
    assert_kitchen_has(shop, order_of())


def test_an_item_that_is_sold_out_is_rejected_by_name(shop: Shop) -> None:
    shop.merchant = shop.merchant.with_catalog(CATALOG)
    shop.knobs.refuses_unavailable = True
    shop.clover.shop.set_available("BURGER", False)
    outcome = shop.submit(order_of(items=[burger()], total=850))
    assert (outcome.kind, code_of(outcome)) == (Kind.REJECTED, "item_unavailable")
    assert shop.facts == []


# Cancelled, by us or by the shop


def unpaid(shop: Shop, **fields: Any) -> Walker:
    """An order that is made, and not paid."""
    shop.refuses["payments" if fields.get("total", 1) else "print_event"] = 429
    walker = shop.walker(order_of(**fields))
    assert walker.forward().kind is Kind.RETRY
    return walker


@pytest.mark.parametrize("what", [None, *WHAT])
@pytest.mark.parametrize(("method", "path"), [("GET", "orders/[^/]+"), ("DELETE", ".*")])
@pytest.mark.parametrize("fields", [{}, FREE], ids=["total", "total 0"])
def test_an_order_is_cancelled_until_it_is_paid(
    shop: Shop, fields: Body, method: str, path: str, what: str | None
) -> None:
    walker = unpaid(shop, **fields)
    if what is not None:
        shop.meet(what, method, path)
    if walker.cancel().kind is Kind.IN_DOUBT:
        shop.passes(60)
    for _ in range(2):
        assert walker.cancel().kind is Kind.CANCELLED
    assert len(shop.facts) == 1
    assert_nothing_stands(shop)


@pytest.mark.parametrize("fields", [{}, {"tip": 200}, FREE], ids=["total", "tip", "total 0"])
def test_an_order_that_is_paid_or_on_paper_is_not_cancelled_and_stays(
    shop: Shop, fields: Body
) -> None:
    order = order_of(**fields)
    walker = shop.walker(order)
    walker.forward()
    outcome = walker.cancel()
    assert outcome.kind is Kind.REJECTED
    assert "delete it at Clover" in message(outcome)
    assert "DELETE" not in {each.method for each in shop.send.requests}
    assert_kitchen_has(shop, order)


@pytest.mark.parametrize("what", [None, "before", "after", "slow"])
def test_an_order_whose_ticket_may_still_come_out_is_not_cancelled(
    shop: Shop, what: str | None
) -> None:
    """An order of 0 has no payment that keeps the order."""
    shop.knobs.is_online = False
    if what is not None:
        shop.meet(what, "POST", "print_event")
    walker = shop.walker(order_of(**FREE))
    assert walker.forward().kind in (Kind.PENDING, Kind.IN_DOUBT)
    outcome = walker.cancel()
    assert outcome.kind is Kind.REJECTED
    assert "cannot be taken back" in message(outcome)
    shop.knobs.is_online = True
    assert_kitchen_has(shop, order_of(**FREE), tickets=what != "before")
    shop.staff.delete(shop.fact["id"])
    assert walker.cancel().kind is Kind.CANCELLED


def test_a_deletion_is_heard_by_webhook(shop: Shop) -> None:
    auth = {"type": "none", "webhook_signature_key": "auth-code"}
    record = {"id": "fast-1", "adapter": "clover", "pos": {"merchant_id": "M1"}, "auth": auth}
    merchant = Merchant.parse({"base_url": "https://pos.example.com", **record})
    webhooks = shop.clover.webhooks
    webhooks.url, webhooks.key = "https://orders.example.com/", "auth-code"
    accepted = shop.submit(order_of())
    shop.staff.delete(shop.fact["id"])
    heard = []
    for each in webhooks.take():
        headers = {name.lower(): value for name, value in each.headers.items()}
        request = CallbackRequest(each.url, headers, each.body, datetime.now(UTC).timestamp())
        heard += CLOVER.adapter.callbacks(request, merchant) or []  # type: ignore[attr-defined]
    assert [(each.meaning, each.external_id) for each in heard] == [
        (Kind.CANCELLED, accepted.external_id)
    ]


# Over a socket


def test_the_gateways_own_requests_are_taken_by_a_strict_clover() -> None:
    """Its User-Agent has a version; a tax that the merchant adds is found out."""
    transport = Transport(guard=Guard(allow_all=True))
    with VendorServer("clover") as server:
        record = {"id": "fast-1", "adapter": "clover", "base_url": server.url}
        merchant = Merchant.parse({**record, "pos": {"merchant_id": "M1", "order_type": "PICKUP"}})
        token = {"Authorization": "Bearer api-token"}
        send = Send(
            lambda request: transport.send(
                request.adding(token), key="fast-1", connections=1, seconds=PATIENCE
            )
        )
        kinds = []
        for order_id in ("first", "second"):
            kinds.append(Walker(CLOVER.adapter, order_of(order_id), merchant, send).forward().kind)
            server.act("add_tax", percent=9)
        assert kinds == [Kind.ACCEPTED, Kind.REJECTED]
        [fact] = server.facts()
        assert (fact["is_shown"], fact["payments"], len(fact["tickets"])) == (True, [1700], 1)
