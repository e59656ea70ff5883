"""A cancel request whose POS did not answer, or refused, beside an order that is not terminal."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.broker import wire
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.transport.errors import NoValidReply
from tests.gate import Gate

NO_REPLY = NoValidReply("timeout", "no reply")
REFUSED: tuple[int, Any] = (409, {"error": {"code": "not_now", "message": "ask later"}})


class KeyedPos:
    """Answers a key with its first reply, whatever the order's state, and cancels an order once."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.created_as = "accepted"
        self.creates = 0
        #: It forgets cancelled orders.
        self.forgets = False
        #: It does what it is asked to, and the reply is lost.
        self.is_deaf = False
        self.is_away = False
        self.refuses = False
        self.refusal = REFUSED

    def __call__(self, request: Any) -> Any:
        if self.is_away:
            return NO_REPLY
        reply = self._reply(request)
        return NO_REPLY if self.is_deaf else reply

    def _reply(self, request: Any) -> Any:
        if request.method == "GET":
            return (404, {}) if self.status is None else self._shown(self.status)
        if not request.url.endswith("/cancel"):
            if self.status is None:
                self.status, self.creates = self.created_as, self.creates + 1
            return self._shown(self.created_as)
        if self.status is None:
            return 404, {}
        if self.refuses or self.status == "cancelled":
            return self.refusal
        self.status = None if self.forgets else "cancelled"
        return self._shown("cancelled")

    @staticmethod
    def _shown(status: str) -> Any:
        return (202 if status == "pending" else 200), {"id": "pos-1", "status": status}


def until_terminal(gate: Gate, record: dict[str, Any], action: Action = Action.SUBMIT) -> None:
    """Deliver a message until it is not retried any more."""
    for tries in range(200):
        again = gate.take(record, action, **{wire.ATTEMPTS: tries}).again
        if again is None:
            return
        gate.wait(again.delay)
    raise AssertionError("it is retried without end")


@pytest.fixture
def pos() -> KeyedPos:
    return KeyedPos()


@pytest.fixture
def gate(tmp_path: Path, pos: KeyedPos) -> Gate:
    return Gate(tmp_path, pos)


def in_doubt(gate: Gate, pos: KeyedPos) -> dict[str, Any]:
    """An order that its POS created, without a reply."""
    order = gate.an_order(seconds=7200)
    pos.is_deaf = True
    gate.take(order)
    gate.wait(40)
    return order


def cancelled_without_a_reply(gate: Gate, pos: KeyedPos) -> dict[str, Any]:
    """A cancel request that the POS carried out, without a reply."""
    request = gate.a_request(seconds=60)
    gate.take(request, Action.CANCEL)
    gate.wait(3)
    return request


def test_a_refusal_to_cancel_a_second_time_is_looked_up_beside_an_open_order(
    gate: Gate, pos: KeyedPos
) -> None:
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_deaf = False
    gate.take(request, Action.CANCEL)
    gate.take(order)
    assert (gate.recorded(), pos.status) == ([("cancelled", None)], "cancelled")


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps it", "forgets it"])
@pytest.mark.parametrize("guarantee", [Guarantee.KEYED, Guarantee.QUERYABLE])
def test_an_order_whose_cancellation_is_in_doubt_is_not_sent_again(
    gate: Gate,
    pos: KeyedPos,
    monkeypatch: pytest.MonkeyPatch,
    guarantee: Guarantee,
    forgets: bool,
) -> None:
    gate.promise(guarantee)
    pos.forgets = forgets
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_away = True
    gate.wait(60)  # past the request's deadline
    assert gate.take(request, Action.CANCEL).again is not None
    gate.take(order)
    pos.is_away = pos.is_deaf = False
    gate.take(order)  # while the request is open, the order is only looked up
    until_terminal(gate, request, Action.CANCEL)
    until_terminal(gate, order)
    assert (gate.recorded(), pos.creates) == ([("cancelled", None)], 1)


def test_an_unanswered_cancellation_leaves_its_order_in_doubt(gate: Gate, pos: KeyedPos) -> None:
    pos.forgets = True
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_away = True
    until_terminal(gate, request, Action.CANCEL)
    assert gate.row_state(action="cancel") == "expired"
    assert gate.recorded() == [("in_doubt", "cancel_in_doubt")]
    pos.is_away = pos.is_deaf = False
    until_terminal(gate, order)
    assert (gate.recorded()[1:], pos.creates) == ([("expired", "expired")], 1)


def test_a_later_request_knows_that_the_pos_may_have_cancelled_the_order(
    gate: Gate, pos: KeyedPos
) -> None:
    in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_away = True
    until_terminal(gate, request, Action.CANCEL)
    pos.is_away = pos.is_deaf = False
    gate.take_cancel(seconds=600)  # which the POS would refuse
    assert gate.recorded()[1:] == [("cancelled", None)]


def test_an_order_left_in_doubt_has_one_event(gate: Gate, pos: KeyedPos) -> None:
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_away = True
    gate.wait(7300)
    gate.take(order)  # past its deadline
    assert gate.recorded() == [("in_doubt", "timeout")]
    until_terminal(gate, request, Action.CANCEL)
    assert gate.recorded() == [("in_doubt", "timeout")]
    assert gate.row_state() == "in_doubt"


@pytest.mark.parametrize("refusal", [REFUSED, (403, {})], ids=["refused", "forbidden"])
@pytest.mark.parametrize("keeps", [False, True], ids=["cancels it", "keeps it"])
def test_a_cancel_request_is_retried_while_the_pos_is_undecided(
    gate: Gate, pos: KeyedPos, keeps: bool, refusal: tuple[int, Any]
) -> None:
    pos.created_as, pos.refuses, pos.refusal = "pending", True, refusal
    order, request = gate.an_order(seconds=3600), gate.a_request(seconds=900)
    gate.take(order)
    assert gate.take(request, Action.CANCEL).again is not None
    pos.status, pos.refuses = "accepted", keeps
    gate.wait(5)
    gate.take(order)
    gate.take(request, Action.CANCEL)
    end = ("accepted", "not_cancelled") if keeps else ("cancelled", None)
    assert gate.recorded() == [("pending", None), ("accepted", None), end]


def test_an_order_in_doubt_does_not_wait_for_a_refused_request(gate: Gate, pos: KeyedPos) -> None:
    order = in_doubt(gate, pos)
    pos.is_deaf, pos.refuses = False, True
    request = gate.a_request(seconds=900)
    assert gate.take(request, Action.CANCEL).again is not None
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    gate.take(request, Action.CANCEL)
    assert gate.recorded()[1:] == [("accepted", "not_cancelled")]


def test_a_lost_request_in_doubt_stops_its_order_only_until_the_look_up(
    gate: Gate, pos: KeyedPos
) -> None:
    order = in_doubt(gate, pos)
    cancelled_without_a_reply(gate, pos)
    pos.is_away = True
    gate.wait(60 + RESOLVE_FOR - 10)
    reason = gate.take(order).outcome.reason
    assert reason is not None
    pos.is_away = pos.is_deaf = False
    pos.status = "accepted"  # it was not carried out
    gate.wait(20)
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]


def accepted_without_a_reply(gate: Gate, pos: KeyedPos) -> dict[str, Any]:
    """A cancel request without a reply for an accepted order, which is not cancelled yet."""
    gate.take(gate.an_order(seconds=7200))
    request = gate.a_request(seconds=600)
    pos.is_away = True
    gate.take(request, Action.CANCEL)
    gate.wait(2)
    pos.is_away = False
    return request


def test_a_refusal_while_an_earlier_request_may_still_run_is_not_terminal(
    gate: Gate, pos: KeyedPos
) -> None:
    request = accepted_without_a_reply(gate, pos)
    pos.refuses = True
    assert gate.take(request, Action.CANCEL).again is not None
    pos.status = "cancelled"  # by the first request
    gate.wait(5)
    gate.take(request, Action.CANCEL)
    assert gate.recorded()[1:] == [("cancelled", None)]


def test_a_second_refusal_of_a_pos_without_look_up_decides_nothing(
    gate: Gate, pos: KeyedPos
) -> None:
    request = accepted_without_a_reply(gate, pos)
    gate.promise(Guarantee.BLIND)
    pos.refuses = True
    gate.take(request, Action.CANCEL)
    [(message,)] = gate.rows(
        "select reason_message from events where reason_code = 'not_cancelled'"
    )
    assert message.startswith("cancel_in_doubt")


def test_a_request_without_a_reply_is_sent_again_to_a_pos_without_look_up(
    gate: Gate, pos: KeyedPos
) -> None:
    """Only the POS's reply to a second one can say that the order is cancelled."""
    request = accepted_without_a_reply(gate, pos)
    gate.promise(Guarantee.BLIND)
    gate.take(request, Action.CANCEL)
    assert gate.recorded()[1:] == [("cancelled", None)]


def test_a_poison_request_in_doubt_leaves_its_order_in_doubt(
    gate: Gate, pos: KeyedPos, monkeypatch: pytest.MonkeyPatch
) -> None:
    pos.forgets = True
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_deaf = False
    poison = Outcome(Kind.FAILED, Reason.of("poison", "3 workers died of it"), for_operator=True)
    monkeypatch.setattr(gate.spine._cancel, "_ask", lambda *_, **__: poison)
    assert gate.take(request, Action.CANCEL).outcome.kind is Kind.FAILED
    assert (gate.recorded(), gate.row_state(action="cancel")) == (
        [("in_doubt", "poison")],
        "failed",
    )
    until_terminal(gate, order)
    assert pos.creates == 1


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("limit", [3.0, 5.0, 7.0, 10.0, 30.0])
def test_a_refusal_after_lost_replies_settles(
    tmp_path: Path, pos: KeyedPos, limit: float, lost: int
) -> None:
    gate = Gate(tmp_path, pos, request_timeout=limit)
    gate.take(gate.an_order(seconds=7200))
    request = gate.a_request(seconds=900)
    pos.is_away, pos.refuses = True, True
    for tries in range(lost):
        again = gate.take(request, Action.CANCEL, **{wire.ATTEMPTS: tries}).again
        assert again is not None
        gate.wait(again.delay)
    pos.is_away, before = False, len(gate.said)
    until_terminal(gate, request, Action.CANCEL)
    assert len(gate.said) - before <= 8
    [(message,)] = gate.rows(
        "select reason_message from events where reason_code = 'not_cancelled'"
    )
    assert message.startswith("not_now")


def test_an_order_is_not_sent_before_its_request_in_doubt_is_decided(
    gate: Gate, pos: KeyedPos
) -> None:
    gate.promise(Guarantee.QUERYABLE)
    pos.forgets = True
    order = in_doubt(gate, pos)
    request = cancelled_without_a_reply(gate, pos)
    pos.is_deaf = False
    gate.wait(RESOLVE_FOR + 100)  # no worker was there
    gate.take(order)
    assert pos.creates == 1
    gate.take(request, Action.CANCEL)
    until_terminal(gate, order)
    assert pos.creates == 1


def test_an_order_that_its_pos_may_be_about_to_make_is_not_cancelled_because_it_is_unknown(
    gate: Gate, pos: KeyedPos
) -> None:
    order = gate.an_order(seconds=7200)
    pos.is_away = True
    gate.take(order)
    pos.is_away = False
    decided = gate.take_cancel(seconds=600)
    assert (decided.outcome.kind, gate.recorded()) == (Kind.RETRY, [])
    assert decided.outcome.look_again is not None
    gate.wait(decided.outcome.look_again)
    gate.take_cancel(seconds=600)
    assert gate.recorded() == [("cancelled", None)]


def test_a_cancellation_that_was_only_looked_up_is_not_in_doubt(
    gate: Gate, pos: KeyedPos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its adapter asks for the order's version first, say."""
    gate.take(gate.an_order(seconds=7200))
    adapter = gate.adapters["rest"]
    cancel = adapter.cancel

    def cancel_after_a_look(order: Any, merchant: Any, send: Any) -> Outcome:
        adapter.look_up(order, merchant, send)
        return cancel(order, merchant, send)

    monkeypatch.setattr(adapter, "cancel", cancel_after_a_look)
    pos.is_away = True
    assert gate.take_cancel(seconds=600).outcome.kind is Kind.RETRY
