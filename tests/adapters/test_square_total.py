"""Square calculates totals itself: an order at another price is cancelled there, and rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Kind
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Request
from tests.adapters.vendors import SQUARE, body, square_made
from tests.gate import Gate

LOST = NoValidReply("timeout", "no reply in time")
CANCELLED, CREATED = "PUT", "POST"


class Till:
    """A Square that adds a tax to each order. It replays a key's first reply."""

    def __init__(self, tax: int = 153) -> None:
        self.tax = tax
        self.made: dict[str, Any] | None = None
        self.creates = 0
        #: What to answer in place of the reply to a method: once each, after it was done.
        self.loses: list[tuple[str, Any]] = []
        #: Replies to a method, which is not done.
        self.refuses: list[tuple[str, Any]] = []

    def __call__(self, request: Request) -> Any:
        method = "SEARCH" if request.is_search else request.method
        for answers in (self.refuses, self.loses):
            answer = next((each for each in answers if each[0] == method), None)
            if answer is not None:
                answers.remove(answer)
                if answers is self.loses:
                    self.handle(method, body(request))
                return answer[1]
        return self.handle(method, body(request) if request.body else {})

    def handle(self, method: str, sent: dict[str, Any]) -> Any:
        if method == "SEARCH":
            return 200, {"orders": [self.made] if self.made else []}
        if method == CREATED:
            if self.made is None:
                self.creates += 1
                self.made = square_made(sent["order"])
                self.made["total_money"]["amount"] += self.tax
                self.first = self.made
            return 200, {"order": self.first}
        assert self.made is not None
        if method == CANCELLED:
            if sent["order"]["version"] != self.made["version"]:
                return 400, {"errors": [{"code": "VERSION_MISMATCH"}]}
            self.change(state=sent["order"]["state"])
        return 200, {"order": self.made}

    def change(self, **fields: Any) -> None:
        """As a shop does."""
        assert self.made is not None
        self.made = {**self.made, **fields, "version": self.made["version"] + 1}

    @property
    def state(self) -> object:
        return self.made and self.made["state"]


@pytest.fixture
def till() -> Till:
    return Till()


@pytest.fixture
def gate(tmp_path: Path, till: Till) -> Gate:
    gate = Gate(tmp_path, till)
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "square"}
    MerchantStore(gate.database).put([Merchant.parse({**record, **SQUARE.record})])
    return gate


def taken(gate: Gate, order: dict[str, Any]) -> Kind:
    return gate.take(order).outcome.kind


def test_an_order_at_another_price_is_cancelled_and_rejected_with_both_totals(
    gate: Gate, till: Till
) -> None:
    decision = gate.take(gate.an_order())
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert decision.outcome.reason is not None
    assert "1853 EUR" in decision.outcome.reason.message
    assert "1700 EUR" in decision.outcome.reason.message
    assert (till.state, till.creates) == ("CANCELED", 1)


def test_an_order_at_our_price_is_accepted_with_no_more_requests(tmp_path: Path) -> None:
    gate = Gate(tmp_path, Till(tax=0))
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "square"}
    MerchantStore(gate.database).put([Merchant.parse({**record, **SQUARE.record})])
    gate.take(gate.an_order())
    assert (gate.recorded(), len(gate.said)) == ([("accepted", None)], 1)


@pytest.mark.parametrize(
    "trouble",
    [
        lambda till: till.loses.append((CREATED, LOST)),
        lambda till: till.loses.append((CANCELLED, LOST)),
        lambda till: till.refuses.append((CANCELLED, LOST)),
        lambda till: till.refuses.append((CANCELLED, NotSent("refused", "no connection"))),
        lambda till: till.refuses.append((CANCELLED, (500, {}))),
        lambda till: till.refuses.append((CANCELLED, (429, {}))),
        lambda till: till.refuses.append((CANCELLED, (400, {"errors": [{"code": "X"}]}))),
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
    assert taken(gate, order) is Kind.IN_DOUBT
    assert gate.recorded() == []
    gate.wait(seconds)
    assert taken(gate, order) is Kind.REJECTED
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert (till.state, till.creates) == ("CANCELED", 1)


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
        gate.wait(14.5)
    assert gate.recorded() == [("in_doubt", "price_mismatch")]


@pytest.mark.parametrize(
    "change", [{"fulfillments": [{"uid": "F0", "state": "RESERVED"}]}, {"state": "COMPLETED"}]
)
@pytest.mark.parametrize("seconds", [15, 700], ids=["first reply again", "looked up"])
def test_an_order_that_the_shop_has_begun_with_is_left_to_an_operator(
    gate: Gate, till: Till, change: dict[str, Any], seconds: float
) -> None:
    till.loses.append((CREATED, LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    till.change(**change)
    gate.wait(seconds)
    decision = gate.take(order)
    assert decision.outcome.for_operator
    assert decision.outcome.external_id is None
    assert (gate.recorded(), decision.messages) == ([("in_doubt", "price_mismatch")], [])
    assert till.state == till.made["state"] != "CANCELED" if till.made else False


def test_an_accepted_order_that_the_shop_has_changed_is_cancelled_as_asked(
    gate: Gate, till: Till
) -> None:
    till.tax = 0
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
    till.tax = 0
    till.loses.append((CREATED, LOST))
    order = gate.an_order(seconds=3600)
    gate.take(order)
    till.change(fulfillments=[{"uid": "F0", "state": state}])
    gate.wait(700)
    gate.take(order)
    assert gate.recorded() == [("cancelled", "other")]


def test_a_paid_order_is_not_cancelled_and_the_reason_says_what_to_do(
    gate: Gate, till: Till
) -> None:
    till.tax = 0
    gate.take(gate.an_order())
    till.change(tenders=[{"id": "T"}])
    till.refuses.append((CANCELLED, (400, {"errors": [{"code": "BAD_REQUEST"}]})))
    decision = gate.take_cancel()
    assert decision.outcome.kind is Kind.REJECTED
    assert decision.outcome.reason is not None
    assert "refund it there" in decision.outcome.reason.message
    assert "BAD_REQUEST" in decision.outcome.reason.message
