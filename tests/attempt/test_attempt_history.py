"""What a worker records of its attempts, for operators."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.attempt import decision
from pos_gateway.ledger.attempts import RecordedAttempt
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Key
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import NotSent, NoValidReply
from tests.gate import Gate

ACCEPTED = (201, {"status": "accepted", "id": "pos-1"})


def attempts(gate: Gate, action: Action = Action.SUBMIT) -> list[RecordedAttempt]:
    return OrderAdmin(gate.database, Payloads(Vault())).attempts(Key("m", "o1", action))


def figures(found: list[RecordedAttempt]) -> list[tuple[Any, ...]]:
    return [(each.did, each.came, each.outcome, each.reason_code) for each in found]


def test_each_retry_says_what_came(tmp_path: Path) -> None:
    answers = [(429, {}), NotSent("connect", "cannot connect"), ACCEPTED]
    gate = Gate(tmp_path, lambda _: answers.pop(0))
    order = gate.an_order()
    for _ in range(3):
        gate.take(order)
        gate.wait(10)
    found = attempts(gate)
    assert figures(found) == [
        ("send", 429, "retry", "http_429"),
        ("send", "connect", "retry", "connect"),
        ("send", 201, "accepted", None),
    ]
    assert all(gate.ledger.lease.is_ours(each.worker or "") for each in found)
    began = gate.hand.now().timestamp() - 30
    for number, each in enumerate(found):
        assert 0 <= (each.seconds or 0) < 10
        assert each.claim is not None and each.connect == 0
        assert each.waited is None  # the message's arrival is not known here
        assert abs(each.at - began - 10 * number) < 10


def test_an_order_in_doubt_is_looked_up(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    order = gate.an_order(seconds=60)
    gate.take(order)
    gate.wait(61)
    gate.take(order)
    gate.pos = lambda _: (200, {"status": "accepted", "id": "pos-1"})
    gate.take(order)
    assert [method for method, _ in gate.said] == ["POST", "GET", "GET"]
    assert figures(attempts(gate)) == [
        ("send", "timeout", "in_doubt", "timeout"),
        ("look_up", "timeout", "in_doubt", "timeout"),
        ("look_up", 200, "accepted", None),
    ]


def test_a_failed_look_up_after_a_reply_is_what_came(tmp_path: Path) -> None:
    """An order that is looked up and then sent has two exchanges."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    order = gate.an_order(seconds=7200)
    gate.take(order)
    gate.wait(1000)  # the POS may have forgotten the key
    gate.pos = lambda request: (404, {}) if request.method == "GET" else NotSent("dns", "no name")
    gate.take(order)
    assert [method for method, _ in gate.said] == ["POST", "GET", "POST"]
    assert figures(attempts(gate))[1:] == [("send", "dns", "retry", "dns")]


def test_a_cancel_request_is_recorded_in_its_own_row(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    gate.pos = lambda _: (409, {"error": {"code": "in_the_oven", "message": ""}})
    gate.take_cancel()
    assert figures(attempts(gate)) == [("send", 201, "accepted", None)]
    [refused] = attempts(gate, Action.CANCEL)
    assert (refused.did, refused.came, refused.outcome) == ("send", 409, "rejected")
    assert refused.reason_code == "not_cancelled"


def test_a_cancel_request_before_its_order_calls_no_pos(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take_cancel()
    [done] = attempts(gate, Action.CANCEL)
    assert (done.did, done.seconds, done.came, done.outcome) == (None, None, None, "cancelled")
    assert attempts(gate) == []


def test_what_is_no_attempt_is_not_recorded(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED, paused=True)
    order = gate.an_order(seconds=60)
    gate.take(order)
    gate.wait(61)
    gate.take(order)
    assert gate.row_state() == "expired"
    assert attempts(gate) == []


def test_a_bug_is_recorded(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ZeroDivisionError())
    gate.take(gate.an_order())
    assert figures(attempts(gate)) == [("send", None, "in_doubt", "internal_error")]


@pytest.mark.parametrize("action", Action)
def test_a_bug_after_the_call_is_recorded_with_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    name, record = "on_submission", gate.an_order()
    if action is Action.CANCEL:
        gate.take(record)
        name, record = "on_cancellation", gate.a_request()
    decide, failures = getattr(decision, name), [ZeroDivisionError()]

    def fail_once(*what: Any) -> Any:
        if failures:
            raise failures.pop()
        return decide(*what)

    monkeypatch.setattr(decision, name, fail_once)
    gate.take(record, action)
    assert figures(attempts(gate, action)) == [("send", 201, "in_doubt", "internal_error")]
    assert attempts(gate, action)[0].seconds is not None
