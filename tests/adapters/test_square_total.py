"""Square behind a whole gateway: an order is paid at our total, or cancelled there and rejected."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pos_gateway.domain.outcome import CallResult, Kind, Reason
from pos_gateway.ledger.callback_rules import CallbackResult
from pos_gateway.ledger.states import Action
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Request
from tests.adapters.square_till import Till
from tests.gate import Gate

LOST = NoValidReply("timeout", "no reply in time")
CANCELLED, CREATED = "PUT", "POST"
DEARER = "the POS's total is 1853 EUR, the order's is 1700 EUR"


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
def gate(tmp_path: Path, till: Till) -> Gate:
    return till.a_gate(tmp_path)


@pytest.fixture
def at_our_price(till: Till) -> None:
    till.square.knobs.shop_tax = None


def taken(gate: Gate, order: dict[str, object]) -> Kind:
    return gate.take(order).outcome.kind


def test_an_order_at_another_price_is_cancelled_and_rejected_with_both_totals(
    gate: Gate, till: Till
) -> None:
    decision = gate.take(gate.an_order())
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert decision.outcome.reason == Reason("price_mismatch", DEARER)
    assert till.state == "CANCELED"


def test_an_order_at_our_price_is_paid_and_seen_and_accepted(tmp_path: Path) -> None:
    till = Till(tax=None)
    gate = till.a_gate(tmp_path)
    gate.take(gate.an_order())
    assert gate.recorded() == [("accepted", None)]
    known = f"/v2/orders/{till.order['id']}"
    assert gate.said == [("POST", "/v2/orders"), ("POST", "/v2/payments"), ("GET", known)]
    assert till.kept.is_paid


@pytest.mark.parametrize(
    "trouble",
    [
        lambda till: till.loses.append((CREATED, LOST)),
        lambda till: till.loses.append((CANCELLED, LOST)),
        lambda till: till.refuses.append((CANCELLED, LOST)),
        lambda till: till.refuses.append((CANCELLED, NotSent("refused", "no connection"))),
        lambda till: till.refuses.append((CANCELLED, (500, {}))),
        lambda till: till.refuses.append((CANCELLED, (429, {}))),
        lambda till: till.refuses.append((CANCELLED, (401, {}))),
        lambda till: till.refuses.append(("GET", (503, {}))),
    ],
)
@pytest.mark.parametrize("seconds", [15, 700])
def test_a_cancellation_that_fails_or_is_lost_is_done_later(
    gate: Gate, till: Till, trouble: Callable[[Till], None], seconds: float
) -> None:
    trouble(till)
    order = gate.an_order(seconds=3600)
    assert taken(gate, order) in (Kind.IN_DOUBT, Kind.RETRY)
    assert gate.recorded() == []
    gate.wait(seconds)
    assert gate.take(order).outcome.reason == Reason("price_mismatch", DEARER)
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert till.state == "CANCELED"


def test_an_order_that_square_has_changed_meanwhile_is_cancelled_all_the_same(
    gate: Gate, till: Till
) -> None:
    till.refuses.append((CANCELLED, (400, {"errors": [{"code": "VERSION_MISMATCH"}]})))
    gate.take(gate.an_order())
    assert (gate.recorded(), till.state) == ([("rejected", "price_mismatch")], "CANCELED")


def test_an_order_whose_cancellation_square_refuses_for_ever_is_in_doubt(
    gate: Gate, till: Till
) -> None:
    refusal = (400, {"errors": [{"code": "BAD_REQUEST", "detail": "no"}]})
    till.refuses += [(CANCELLED, refusal)] * 9
    order = gate.an_order(seconds=60)
    for _ in range(6):
        outcome = gate.take(order).outcome
        assert (outcome.kind, outcome.contact) == (Kind.IN_DOUBT, CallResult.ANSWERED)
        if outcome.for_operator:
            break
        gate.wait(14.5)
    assert gate.recorded() == [("in_doubt", "not_undone")]


@pytest.mark.parametrize(
    "begin",
    [lambda till: till.fulfil("RESERVED"), lambda till: till.change(state="COMPLETED")],
    ids=["reserved", "completed"],
)
@pytest.mark.parametrize("seconds", [15, 700], ids=["first reply again", "looked up"])
def test_an_order_that_the_shop_has_begun_with_is_left_to_an_operator(
    gate: Gate, till: Till, begin: Callable[[Till], None], seconds: float
) -> None:
    till.loses.append((CREATED, LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    begin(till)
    gate.wait(seconds)
    decision = gate.take(order)
    assert decision.outcome.for_operator
    words = (
        f"the POS has {till.order['id']}, of which create is not undone: the shop has begun with it"
    )
    assert decision.outcome.reason == Reason("not_undone", f"price_mismatch: {DEARER}; {words}")
    assert (gate.recorded(), decision.messages) == ([("in_doubt", "not_undone")], [])
    assert till.state != "CANCELED"


def test_an_accepted_order_that_the_shop_has_changed_is_cancelled_as_asked(
    gate: Gate, till: Till
) -> None:
    till.square.knobs.shop_tax = None
    gate.take(gate.an_order())
    till.change(total_money={"amount": 9, "currency": "EUR"})
    till.loses.append((CANCELLED, LOST))
    gate.take_cancel()
    gate.wait(15)
    gate.take_cancel()
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]


@pytest.mark.parametrize("state", ["CANCELED", "FAILED"])
def test_an_order_whose_fulfillment_the_shop_gave_up_is_cancelled(
    gate: Gate, till: Till, state: str
) -> None:
    till.square.knobs.shop_tax = None
    till.loses.append((CREATED, LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    till.fulfil(state)
    gate.wait(700)
    gate.take(order)
    assert gate.recorded() == [("cancelled", "other")]


def test_an_order_that_the_shop_took_money_for_is_not_cancelled(gate: Gate, till: Till) -> None:
    till.square.knobs.shop_tax = None
    gate.take(gate.an_order())
    [payment] = till.square.seller.payments.values()
    payment["source_type"] = "CARD"
    decision = gate.take_cancel()
    assert decision.outcome.kind is Kind.REJECTED
    assert decision.outcome.reason is not None
    assert "refund it there" in decision.outcome.reason.message
    assert till.order["fulfillments"][0]["state"] == "PROPOSED"


@pytest.mark.parametrize("trouble", ["loses", "refuses"], ids=["after", "before"])
@pytest.mark.parametrize("lost", ["POST orders", "POST payments", "GET"])
def test_an_order_is_made_and_paid_once_whatever_reply_is_lost(
    gate: Gate, till: Till, lost: str, trouble: str
) -> None:
    till.square.knobs.shop_tax = None
    getattr(till, trouble).append((lost, LOST))
    order = gate.an_order(seconds=3600)
    assert taken(gate, order) is Kind.IN_DOUBT
    gate.wait(15)
    assert taken(gate, order) is Kind.ACCEPTED
    assert gate.recorded() == [("accepted", None)]
    [fact] = till.square.facts()["orders"].values()
    assert (fact["shown"], fact["prints"], fact["payments"], fact["paid"]) == (True, 1, 1, 1700)


@pytest.mark.parametrize(
    ("trouble", "what"),
    [("loses", LOST), ("refuses", LOST), ("refuses", NotSent("refused", "no connection"))],
    ids=["after", "before", "not sent"],
)
@pytest.mark.parametrize("lost", ["GET", "PUT", "POST refunds"])
def test_an_order_is_cancelled_and_refunded_once_whatever_reply_is_lost(
    gate: Gate, till: Till, lost: str, trouble: str, what: Exception
) -> None:
    till.square.knobs.shop_tax = None
    gate.take(gate.an_order(seconds=3600))
    getattr(till, trouble).append((lost, what))
    for _ in range(2):
        gate.take_cancel(seconds=900)
        gate.wait(15)
    assert gate.recorded() == [("accepted", None), ("cancelled", None)]
    [fact] = till.square.facts()["orders"].values()
    assert (fact["cancelled"], fact["refunded"], len(till.square.seller.refunds)) == (True, 1700, 1)


def refunded(till: Till) -> int:
    """What is refunded of an order that is cancelled."""
    [fact] = till.square.facts()["orders"].values()
    assert fact["cancelled"]
    return int(fact["refunded"])


def cancelled_until_over(gate: Gate, seconds: float) -> None:
    """Deliver a cancel request until no retry follows."""
    request, said = gate.a_request(seconds=seconds), dict[str, object]()
    for _ in range(400):
        decision = gate.take(request, Action.CANCEL, **said)
        if decision.again is None:
            return
        said = dict(decision.again.headers)
        gate.wait(decision.again.delay)
    raise AssertionError("it is retried without end")


@pytest.mark.usefixtures("at_our_price")
@pytest.mark.parametrize(
    "trouble",
    [(500, {}), (429, {}), (401, {}), LOST, NotSent("refused", "no connection")],
    ids=["500", "429", "401", "lost", "not sent"],
)
@pytest.mark.parametrize("times", [5, 400], ids=["comes back", "stays away"])
def test_a_cancellation_that_is_half_done_at_its_deadline_is_told_as_one(
    gate: Gate, till: Till, trouble: object, times: int
) -> None:
    """The kitchen has stopped: it is never told as accepted, and says what is left."""
    gate.take(gate.an_order())
    till.refuses += [("POST refunds", trouble)] * times
    cancelled_until_over(gate, seconds=60)
    [_, (kind, code, words)] = gate.rows(
        "select type, reason_code, reason_message from events order by id"
    )
    is_back = times < 400
    assert (kind, code) == ("cancelled", None if is_back else "not_refunded")
    assert refunded(till) == 1700 * is_back
    [payment] = till.square.seller.payments
    assert is_back or f"payment {payment}" in words


@pytest.mark.usefixtures("at_our_price")
def test_a_cancellation_whose_first_call_is_lost_before_its_deadline_is_completed(
    gate: Gate, till: Till
) -> None:
    gate.take(gate.an_order())
    till.loses.append((CANCELLED, LOST))
    gate.take_cancel(seconds=20)
    gate.wait(60)
    gate.take_cancel(seconds=-40)
    assert (gate.recorded()[-1], refunded(till)) == (("cancelled", None), 1700)


# Square calls back: also because of our own change


@pytest.mark.usefixtures("at_our_price")
@pytest.mark.parametrize("is_open", [False, True], ids=["accepted", "payment in doubt"])
@pytest.mark.parametrize(
    "trouble",
    [
        lambda till: till.refuses.append(("POST refunds", (500, {}))),
        lambda till: till.refuses.append(("POST refunds", (429, {}))),
        lambda till: till.loses.append(("PUT", LOST)),
    ],
    ids=["500", "429", "lost"],
)
def test_a_cancellation_that_is_half_done_is_completed_though_square_calls_it_cancelled(
    gate: Gate, till: Till, trouble: Callable[[Till], None], is_open: bool
) -> None:
    """Square calls because of the first of our two calls: the refund is still to be recorded."""
    if is_open:
        till.loses.append(("POST payments", LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    gate.wait(60)
    trouble(till)
    gate.take_cancel(seconds=900)
    assert refunded(till) == 0
    assert till.calls_back() is CallbackResult.WAITING
    gate.wait(60)
    gate.take_cancel(seconds=900)
    assert gate.recorded()[-1:] == [("cancelled", None)]
    assert refunded(till) == 1700
    assert till.calls_back() is CallbackResult.KNOWN
    gate.take(order)
    assert len(gate.recorded()) == (1 if is_open else 2)


@pytest.mark.usefixtures("at_our_price")
def test_square_calls_while_the_refund_is_asked_for_which_it_refuses(
    gate: Gate, till: Till
) -> None:
    """The reason of the cancellation is recorded, by the callback or by the look-up."""
    gate.take(gate.an_order())
    refusal = (400, {"errors": [{"code": "REFUND_AMOUNT_INVALID", "detail": "no"}]})
    till.refuses.append(("POST refunds", refusal))
    called = []

    def pos(request: Request) -> object:
        if request.url.endswith("/refunds"):
            called.append(till.calls_back())
        return till(request)

    gate.pos = pos
    gate.take_cancel()
    assert called == [CallbackResult.WAITING]
    assert gate.recorded() == [("accepted", None), ("cancelled", "not_refunded")]


@pytest.mark.usefixtures("at_our_price")
@pytest.mark.parametrize("is_asked", [False, True], ids=["no request", "a request that waits"])
def test_an_accepted_order_that_the_shop_cancels_is_told_at_once(
    gate: Gate, till: Till, is_asked: bool
) -> None:
    gate.take(gate.an_order())
    if is_asked:  # nothing of it has come to Square
        gate.take(gate.a_request(), Action.CANCEL, may_call=False)
    till.fulfil("CANCELED")
    assert till.calls_back() is CallbackResult.APPLIED
    assert gate.recorded() == [("accepted", None), ("cancelled_by_pos", None)]


@pytest.mark.usefixtures("at_our_price")
@pytest.mark.parametrize("calls", [False, True], ids=["looked up", "Square calls"])
def test_a_payment_in_doubt_of_an_order_that_the_shop_cancels_is_refunded(
    gate: Gate, till: Till, calls: bool
) -> None:
    """The same end, whether Square is asked or calls."""
    till.loses.append(("POST payments", LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    till.fulfil("CANCELED")
    if calls:
        assert till.calls_back() is CallbackResult.WAITING
    gate.wait(60)
    gate.take(order)
    assert gate.recorded() == [("rejected", "other")]
    assert refunded(till) == 1700
    assert till.calls_back() is CallbackResult.KNOWN


def test_an_order_in_doubt_that_is_still_undone_is_told_as_why(gate: Gate, till: Till) -> None:
    """After order.in_doubt, too, Square's word of our own undo is no end."""
    till.refuses.append((CANCELLED, (500, {})))
    order = gate.an_order(seconds=100)
    said = dict[str, object]()
    for seconds in (200, 60):
        decision = gate.take(order, expired=bool(said), **said)
        assert decision.again is not None
        said = dict(decision.again.headers)
        gate.wait(seconds)
    assert [kind for kind, _ in gate.recorded()] == ["in_doubt"]
    till.loses.append((CANCELLED, LOST))
    gate.take(order, **said)
    assert till.state == "CANCELED"
    assert till.calls_back() is CallbackResult.WAITING
    gate.wait(60)
    gate.take(order, **said)
    assert gate.recorded()[1:] == [("rejected", "price_mismatch")]
