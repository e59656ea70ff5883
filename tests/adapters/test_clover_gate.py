"""Clover behind a whole gateway: an order is made, paid and printed once, or undone, or left to an operator."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.outcome import CallResult, Kind
from pos_gateway.ledger.states import Action
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Request
from tests.adapters.clover_shop import Shop
from tests.gate import Gate

CREATION, PAYMENT, PRINTING = "atomic_order/orders", "orders/[^/]+/payments", "print_event"
FREE: dict[str, Any] = {
    "items": [{"sku": "water", "name": "Water", "quantity": 1, "unit_price": 0}],
    "total": 0,
}


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def gate(tmp_path: Path, shop: Shop) -> Gate:
    return shop.a_gate(tmp_path)


def taken(gate: Gate, order: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The events once the order is out of doubt, or an operator has it."""
    for _ in range(6):
        decision = gate.take(order)
        if not decision.messages:
            break
        gate.wait(30)
        gate.ledger.catch_up()
    return gate.recorded()


def test_an_order_is_previewed_made_paid_printed_and_accepted(gate: Gate, shop: Shop) -> None:
    assert taken(gate, gate.an_order()) == [("accepted", None)]
    known_as = shop.fact["id"]
    said = [f"{method} {path.partition('?')[0][17:]}" for method, path in gate.said]
    assert said == [
        "POST atomic_order/checkouts",
        "POST atomic_order/orders",
        "GET orders",
        f"POST orders/{known_as}/payments",
        f"GET orders/{known_as}",
        "POST print_event",
        f"GET orders/{known_as}",
    ]
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)


@pytest.mark.parametrize("what", ["before", "after"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", CREATION), ("GET", "orders"), ("POST", PAYMENT), ("GET", "orders/[^/]+")],
)
@pytest.mark.parametrize("fields", [{}, FREE], ids=["total", "total 0"])
def test_whatever_reply_is_lost_an_order_is_made_paid_and_printed_once(
    gate: Gate, shop: Shop, fields: dict[str, Any], method: str, path: str, what: str
) -> None:
    shop.meet(what, method, path)
    assert taken(gate, gate.an_order(seconds=3600, **fields)) == [("accepted", None)]
    [fact] = shop.standing
    assert fact["payments"] == ([] if fields else [1700])
    assert len(fact["tickets"]) == 1


@pytest.mark.parametrize("late", [12, 20, 30])
@pytest.mark.parametrize("path", ["/orders", "/payments", "/print_event"])
def test_a_request_that_clover_works_on_for_longer_than_the_time_limit_is_not_repeated(
    gate: Gate, shop: Shop, path: str, late: float
) -> None:
    """The lost request is carried out ``late`` seconds after it was sent."""
    due: Any = None
    given_up: list[Request] = []
    said: dict[str, Any] = {}

    def answer(request: Request) -> Any:
        nonlocal due
        if given_up and gate.clock.now() >= due:
            at_shop(given_up.pop())
        if due is None and request.method == "POST" and request.url.endswith(path):
            due = gate.clock.now() + timedelta(seconds=late)
            given_up.append(request)
            return NoValidReply("timeout", "no reply in time")
        return at_shop(request)

    at_shop, gate.pos = gate.pos, answer
    order = gate.an_order(seconds=3600)
    while (decision := gate.take(order, **said)).again is not None:
        said = dict(decision.again.headers)
        gate.wait(decision.again.delay)
    assert gate.recorded()[-1] == ("accepted", None)
    [fact] = shop.facts
    assert (fact["payments"], len(fact["tickets"]), given_up) == ([1700], 1, [])


def test_an_order_whose_worker_ends_before_the_print_event_is_printed(
    gate: Gate, shop: Shop
) -> None:
    """The look for a ticket of the shop's comes before: nothing of the event is in doubt."""

    def end() -> None:
        raise KeyboardInterrupt

    shop.before["POST", "/payments"] = lambda: shop.before.update({("GET", fact_id()): end})

    def fact_id() -> str:
        return str(shop.fact["id"])

    order = gate.an_order(seconds=3600)
    with pytest.raises(KeyboardInterrupt):
        gate.take(order)
    assert taken(gate, order) == [("accepted", None)]
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)


@pytest.mark.parametrize("what", ["before", "after"])
def test_an_order_is_printed_once_or_left_to_an_operator_where_that_is_not_known(
    gate: Gate, shop: Shop, what: str
) -> None:
    """Whether the event is there cannot be asked: a second one would print the order twice."""
    shop.knobs.prints_after = 40
    shop.meet(what, "POST", PRINTING)
    order = gate.an_order(seconds=3600)
    gate.take(order)
    for _ in range(6):
        gate.wait(20)
        decision = gate.take(order)
    if what == "after":
        assert gate.recorded() == [("pending", "not_printed"), ("accepted", None)]
        assert len(shop.fact["tickets"]) == 1
        return
    assert decision.outcome.contact is CallResult.ANSWERED
    assert gate.recorded() == [("pending", "not_printed")]
    gate.wait(3600 + 3590)
    gate.take(order)
    assert gate.recorded()[-1] == ("in_doubt", "not_printed")
    assert (shop.fact["payments"], shop.fact["tickets"]) == ([1700], [])


def test_an_order_whose_device_is_offline_is_pending_until_the_ticket_is_out(
    gate: Gate, shop: Shop
) -> None:
    shop.knobs.is_online = False
    order = gate.an_order(seconds=3600)
    assert gate.take(order).outcome.kind is Kind.PENDING
    assert gate.row_state() == "pending"
    gate.wait(60)
    gate.take(order)
    assert gate.recorded() == [("pending", "not_printed")]
    gate.take_cancel()  # refused
    assert gate.row_state() == "pending", "nothing of it is in doubt"
    shop.knobs.is_online = True
    gate.wait(60)
    gate.take(order)
    assert gate.recorded() == [("pending", "not_printed"), ("accepted", None)]
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)


@pytest.mark.parametrize("what", ["before", "after", 429])
def test_an_order_that_was_printed_before_its_deadline_is_accepted_after_it(
    gate: Gate, shop: Shop, what: str | int
) -> None:
    """The look at the ticket after its print event is not answered in time: it is looked up before any undo."""
    order = gate.an_order(seconds=40)

    def answer(request: Request) -> Any:
        reply = at_shop(request)
        if (
            request.method == "GET"
            and shop.facts
            and shop.fact["tickets"]
            and gate.hand.seconds < 40
        ):
            return (429, {}) if what == 429 else failure
        return reply

    at_shop, gate.pos = gate.pos, answer
    failure = NotSent("refused", "no") if what == "before" else NoValidReply("reset", "lost")
    decision = gate.take(order)
    assert (gate.recorded(), gate.row_state()) == ([], "in_doubt")
    gate.wait(45)
    assert decision.again is not None
    gate.take(order, **dict(decision.again.headers))
    assert (gate.recorded(), len(shop.fact["tickets"])) == ([("accepted", None)], 1)


@pytest.mark.parametrize("how", ["refused", "failed", "failed later"])
def test_a_paid_order_that_is_not_printed_is_left_to_an_operator(
    gate: Gate, shop: Shop, how: str
) -> None:
    shop.knobs.printer_fails = how == "failed"
    shop.knobs.is_online = how != "failed later"
    if how == "refused":
        shop.refuses[PRINTING] = 400
    order = gate.an_order(seconds=3600)
    decision = gate.take(order)
    if how == "failed later":  # the event's id is kept with the pending order
        shop.knobs.printer_fails = shop.knobs.is_online = True
        gate.wait(60)
        decision = gate.take(order)
    assert decision.outcome.for_operator
    assert gate.recorded()[-1] == ("in_doubt", "not_undone")
    assert decision.outcome.reason is not None
    assert f"the POS has {shop.fact['id']}" in decision.outcome.reason.message
    assert "refund and delete it at Clover" in decision.outcome.reason.message
    assert (shop.fact["payments"], shop.fact["is_deleted"]) == ([1700], False)


@pytest.mark.parametrize("status", [None, 429, 500])
@pytest.mark.parametrize("path", ["orders/[^/]+", f"{PRINTING}/[^/]+"])
def test_a_printer_that_fails_is_seen_whatever_look_at_its_event_is_not_answered(
    gate: Gate, shop: Shop, path: str, status: int | None
) -> None:
    """The event's id is kept with an order in doubt, too: without the id no look finds the failure."""
    shop.knobs.is_online = False
    shop.before["POST", PRINTING] = lambda: shop.meet("before", "GET", path, status=status)
    order = gate.an_order(seconds=3600)
    assert gate.take(order).outcome.kind is Kind.IN_DOUBT
    shop.knobs.printer_fails = shop.knobs.is_online = True
    gate.wait(60)
    decision = gate.take(order)
    assert decision.outcome.for_operator
    assert gate.recorded() == [("in_doubt", "not_undone")]
    assert decision.outcome.reason is not None
    assert "has failed at the printer" in decision.outcome.reason.message
    assert len(shop.staff.print_events) == 1


@pytest.mark.parametrize("what", ["before", "after"])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "orders/[^/]+"), ("GET", "orders"), ("DELETE", ".*")]
)
@pytest.mark.parametrize("why", ["total", "payment", "expired", "cancelled"])
def test_an_unpaid_order_is_undone_whatever_reply_is_lost(
    gate: Gate, shop: Shop, why: str, method: str, path: str, what: str
) -> None:
    order = gate.an_order(seconds=600)
    expected = ("rejected", "price_mismatch")
    if why == "total":
        shop.before["POST", CREATION] = lambda: shop.clover.shop.add_tax(9)
    else:
        shop.refuses["payments"] = 400 if why == "payment" else 429
        expected = ("rejected", "payment_required")
    if why in ("expired", "cancelled"):
        gate.take(order)
        expected = ("expired", "http_429") if why == "expired" else ("cancelled", None)
    shop.meet(what, method, path)
    if why == "cancelled":
        for _ in range(3):
            gate.take_cancel(seconds=600)
            gate.wait(30)
    elif why == "expired":
        gate.wait(601)
    events = gate.recorded() if why == "cancelled" else taken(gate, order)
    assert events[-1] == expected
    assert len(events) == 1 or events[:-1] == [("in_doubt", "reset")]  # past its deadline
    [fact] = shop.facts
    assert (fact["is_deleted"], fact["payments"], fact["tickets"]) == (True, [], [])


@pytest.mark.parametrize("fields", [{}, FREE], ids=["total", "total 0"])
def test_an_order_that_the_kitchen_has_is_not_cancelled(
    gate: Gate, shop: Shop, fields: dict[str, Any]
) -> None:
    gate.take(gate.an_order(**fields))
    decision = gate.take_cancel()
    assert gate.recorded() == [("accepted", None), ("accepted", "not_cancelled")]
    assert decision.outcome.reason is not None
    assert "delete it at Clover" in decision.outcome.reason.message
    assert len(shop.standing) == 1


@pytest.mark.parametrize("is_asked_for", [False, True])
def test_a_cancel_request_for_a_paid_order_that_is_not_printed_yet_leaves_the_order(
    gate: Gate, shop: Shop, is_asked_for: bool
) -> None:
    """It is refused once, and the order goes on."""
    if is_asked_for:
        shop.knobs.is_online = False
    else:
        shop.refuses[PRINTING] = 429
    order = gate.an_order(seconds=3600)
    gate.take(order)
    refused = gate.take_cancel(seconds=900)
    assert (refused.outcome.kind, refused.again) == (Kind.REJECTED, None)
    shop.refuses.clear()
    shop.knobs.is_online = True
    assert taken(gate, order)[-1][0] == "accepted"
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)


@pytest.mark.parametrize("path", ["/payments", "/print_event"])
def test_a_cancel_request_that_comes_while_an_order_is_paid_or_printed_leaves_the_order(
    gate: Gate, shop: Shop, path: str
) -> None:
    """The request waits for the order's attempt; refused then, it does not stop the next step."""
    order, request = gate.an_order(), gate.a_request(seconds=900)
    shop.before["POST", path] = lambda: gate.take(request, Action.CANCEL)
    decision = gate.take(order)
    gate.wait(2)
    assert gate.take(request, Action.CANCEL).again is None
    if decision.again is not None:
        gate.take(order)
    assert gate.recorded()[0] == ("accepted", None)
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)


@pytest.mark.parametrize("why", ["cancelled", "expired"])
@pytest.mark.parametrize("what", [None, "before", "after"])
def test_an_order_of_0_whose_ticket_may_still_come_out_is_not_deleted(
    gate: Gate, shop: Shop, what: str | None, why: str
) -> None:
    shop.knobs.is_online = False
    if what is not None:
        shop.meet(what, "POST", PRINTING)
    order = gate.an_order(seconds=600, **FREE)
    gate.take(order)
    if why == "cancelled":
        for _ in range(3):
            decision = gate.take_cancel(seconds=600)
            gate.wait(30)
        assert decision.outcome.kind is not Kind.CANCELLED
        gate.take(order)
    else:
        gate.wait(601)
        taken(gate, order)
    shop.knobs.is_online = True
    assert (shop.fact["is_deleted"], len(shop.fact["tickets"])) == (False, what != "before")
    assert {event for event, _ in gate.recorded()} <= {"pending", "in_doubt", "accepted"}


def test_a_paid_order_that_expires_before_its_ticket_is_asked_for_is_left_to_an_operator(
    gate: Gate, shop: Shop
) -> None:
    shop.refuses[PRINTING] = 429
    order = gate.an_order(seconds=600)
    gate.take(order)
    gate.wait(601)
    decision = gate.take(order)
    assert decision.outcome.for_operator
    assert gate.recorded() == [("in_doubt", "not_undone")]
    assert decision.outcome.reason is not None
    assert decision.outcome.reason.message.startswith("http_429: ")
    assert (shop.fact["payments"], shop.fact["tickets"]) == ([1700], [])


@pytest.mark.parametrize(
    ("paid", "why"),
    [
        (0, None),
        # An operator has to judge: the request ends at once, and not an hour after its deadline.
        (700, "invalid_reply: the order has a payment at Clover, of less than its total"),
        (1700, "other: it is paid, and Clover's API takes no payment back: refund and delete it"),
    ],
)
def test_an_order_that_the_release_before_had_accepted_is_cancelled_until_it_is_paid(
    gate: Gate, shop: Shop, paid: int, why: str | None
) -> None:
    """It was made in one call: there are no facts, no payment and no ticket."""
    gate.take(gate.an_order())
    with gate.database.begin() as connection:
        connection.exec_driver_sql("update orders set facts = null")
    [made] = shop.staff.orders.values()
    made.update(payments=[], state="open", paymentState="OPEN")
    made["lineItems"] = [{**each, "printed": False} for each in made["lineItems"]]
    del made["externalReferenceId"]
    if paid:
        shop.staff.pay(made, {"id": "P", "amount": paid})
    gate.take_cancel()
    end = ("accepted", "not_cancelled") if paid else ("cancelled", None)
    assert gate.recorded() == [("accepted", None), end]
    [_, (said,)] = gate.rows("select reason_message from events order by position")
    assert why is None or said.startswith(why)
    assert shop.fact["is_deleted"] is not bool(paid)


def test_an_order_in_doubt_that_the_release_before_made_is_paid_and_printed(
    gate: Gate, shop: Shop
) -> None:
    shop.meet("after", "POST", CREATION)
    order = gate.an_order(seconds=3600)
    gate.take(order)
    [made] = shop.staff.orders.values()
    del made["externalReferenceId"]
    assert taken(gate, order) == [("accepted", None)]
    assert (shop.fact["payments"], len(shop.fact["tickets"])) == ([1700], 1)
