"""Exceptions at every step of an attempt leave no order claimed or wrongly recorded as failed."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.attempt import decision
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.traced import traced
from pos_gateway.broker import wire
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.vault import CannotOpen
from pos_gateway.telemetry.tracing import Span, of_this_program
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.worker import tasks
from tests.gate import Gate
from tests.orders import received

ACCEPTED = (200, {"status": "accepted", "id": "pos-1"})
NO_REPLY = NoValidReply("timeout", "no reply")
#: The steps of an attempt, by their component.
STEPS: dict[str, Callable[[Gate], tuple[Any, str]]] = {
    "directory": lambda gate: (gate.directory, "get"),
    "claim": lambda gate: (gate.ledger, "claim"),
    "sending": lambda gate: (gate.ledger, "sending"),
    "kept order": lambda gate: (gate.ledger, "order"),
    "limit": lambda gate: (gate.caller, "time_limit"),
    "call": lambda gate: (gate.caller, "call"),
    "adapter": lambda gate: (gate.adapters["rest"], "submit"),
    "cancelling adapter": lambda gate: (gate.adapters["rest"], "cancel"),
    "secrets": lambda gate: (gate.caller.authenticator, "redacted"),
    "fence": lambda gate: (gate.ledger, "holds"),
    "decision": lambda _: (decision, "on_submission"),
    "cancelling decision": lambda _: (decision, "on_cancellation"),
    "unread message's decision": lambda _: (decision, "on_unread"),
    "hydration": lambda _: (decision, "dehydrated"),
    "span": lambda _: (Span, "says"),
    "end of the span": lambda _: (Span, "failed"),
    "outcome": lambda gate: (gate.ledger, "finish"),
}


def trace_attempts(gate: Gate) -> None:
    """As a gateway with tracing does."""
    spine = gate.spine
    spine._decided = traced(spine._decide, of_this_program(), gate.directory)


def planted(patch: pytest.MonkeyPatch, gate: Gate, step: str, error: Exception) -> None:
    """From now on this step raises."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    owner, name = STEPS[step](gate)
    patch.setattr(owner, name, fail)


def attempted(gate: Gate, record: dict[str, Any], action: Action = Action.SUBMIT) -> bool:
    """Whether the message was acknowledged; if not it is redelivered."""
    try:
        attempt: Attempt[Any] = Attempt(None, received(record), action)
        return gate.spine.attempt(attempt, timeout=1) is not None
    except ZeroDivisionError:
        return False


@pytest.mark.parametrize("reply", [ACCEPTED, NO_REPLY], ids=["accepted", "no reply"])
@pytest.mark.parametrize("is_known", [False, True], ids=["fresh", "in doubt"])
@pytest.mark.parametrize("step", STEPS)
def test_an_order_ends_after_an_exception_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_known: bool, reply: Any
) -> None:
    """And is never recorded as failed once the POS may have it."""
    gate = Gate(tmp_path, lambda _: reply)
    trace_attempts(gate)
    order = gate.an_order()
    if is_known:
        gate.pos = lambda _: NO_REPLY
        gate.take(order)
        gate.pos = lambda _: reply
    with monkeypatch.context() as patch:
        planted(patch, gate, step, ZeroDivisionError("the order's words"))
        is_settled = attempted(gate, order)
    may_be_there = bool(gate.said)
    assert gate.row_state() not in ("claimed", "sending") or not is_settled
    if may_be_there:
        assert "failed" not in dict(gate.recorded())
    elif is_settled and gate.row_state() != "accepted":
        assert gate.recorded() == [("failed", "internal_error")]
        assert gate.dead() == ["internal_error"]
        return
    # Its message is redelivered, and the gateway's next version completes it.
    gate.pos = lambda _: ACCEPTED
    gate.take(order)
    assert gate.row_state() == "accepted"
    assert gate.recorded() == [("accepted", None)]


@pytest.mark.parametrize("step", ["decision", "outcome"])
def test_an_order_that_was_sent_and_whose_outcome_is_lost_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.promise(Guarantee.QUERYABLE)
    order = gate.an_order()
    with monkeypatch.context() as patch:
        planted(patch, gate, step, ZeroDivisionError())
        assert not attempted(gate, order)
    gate.take(order)
    assert [method for method, _ in gate.said] == ["POST", "GET"]
    assert gate.recorded() == [("accepted", None)]


@pytest.mark.parametrize("step", STEPS)
def test_an_invalid_message_leaves_no_order_claimed_after_an_exception_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    gate = Gate(tmp_path, lambda _: NO_REPLY)
    trace_attempts(gate)
    order = gate.an_order()
    gate.take(order)
    with monkeypatch.context() as patch:
        planted(patch, gate, step, ZeroDivisionError("the order's words"))
        is_settled = attempted(gate, {**order, "items": []})
    assert gate.dead() == ["invalid_order"] * is_settled
    assert gate.row_state() == "in_doubt" or not is_settled
    gate.pos = lambda _: ACCEPTED
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]


@pytest.mark.parametrize("sent", [False, True], ids=["waiting", "accepted"])
@pytest.mark.parametrize("step", STEPS)
def test_a_cancel_request_leaves_no_row_claimed_after_an_exception_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, sent: bool
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED if sent else (503, {}))
    trace_attempts(gate)
    gate.take(gate.an_order())
    assert gate.row_state() == ("accepted" if sent else "in_doubt")
    gate.pos = lambda _: (200, {"status": "cancelled", "id": "pos-1"})
    with monkeypatch.context() as patch:
        planted(patch, gate, step, ZeroDivisionError("the order's words"))
        is_settled = attempted(gate, gate.a_request(), Action.CANCEL)
    rows = (gate.row_state(), gate.row_state(action="cancel"))
    if is_settled:
        assert not {"claimed", "sending"} & set(rows), rows
    gate.take_cancel(seconds=120)  # a later request completes it
    assert gate.row_state(action="cancel") == "cancelled"
    assert gate.recorded()[-1] == ("cancelled", None)


def test_an_order_that_cannot_be_decrypted_is_cancelled_by_a_worker_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    gate.pos = lambda _: (200, {"status": "cancelled", "id": "pos-1"})

    def cannot(*_: Any) -> bytes:
        raise CannotOpen("sealed with a key that this worker has not")

    with monkeypatch.context() as patch:
        patch.setattr(Payloads, "open", cannot)
        decided = gate.take_cancel()
    assert (decided.outcome.kind, decided.again is not None) == ("retry", True)
    assert gate.row_state(action="cancel") == "new"
    gate.take_cancel()
    assert gate.recorded()[-1] == ("cancelled", None)


def test_the_deadline_of_an_order_that_cannot_be_decrypted_is_extended(tmp_path: Path) -> None:
    """The message has the order, and the row the deadline."""
    gate = Gate(tmp_path, lambda _: NO_REPLY)
    order = gate.an_order(seconds=60)
    gate.take(order)
    with gate.database.begin() as connection:
        connection.exec_driver_sql(
            "update orders set deliver_by = deliver_by + 3600, payload = 'x.y'"
        )
    gate.wait(120)
    decided = gate.take(order)
    assert decided.again is not None
    assert gate.recorded() == []
    assert gate.row_state() == "in_doubt"


def test_a_synchronous_worker_requeues_an_order_that_it_could_not_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery would drop it, and the backend would have no event."""
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    planted(monkeypatch, gate, "directory", ZeroDivisionError())
    planted(monkeypatch, gate, "claim", LedgerUnavailable("away"))
    monkeypatch.setattr(tasks.gateway, "current", lambda: gate)
    task = Celery(set_as_current=False).register_task(tasks.OrderTask())
    task.push_request(delivery_info={"routing_key": "orders"})
    with pytest.raises(Reject) as rejected:
        task.run(gate.an_order())
    assert rejected.value.requeue


def unreadable_catalog(gate: Gate) -> None:
    with gate.database.begin() as connection:
        connection.exec_driver_sql(
            "insert into catalogs (merchant_id, entries, updated_at) values ('m', '[]', 1.0)"
        )
    gate.directory._catalogs.outdated("m", inf)


@pytest.mark.parametrize("expired", [False, True], ids=["late", "expired"])
@pytest.mark.parametrize("is_known", [False, True], ids=["fresh", "in doubt"])
def test_an_order_of_an_unreadable_merchant_ends(
    tmp_path: Path, is_known: bool, expired: bool
) -> None:
    """An order that its POS may have is in doubt as long as any other, then needs an operator."""
    gate = Gate(tmp_path, lambda _: NO_REPLY)
    order = gate.an_order(seconds=60)
    if is_known:
        gate.take(order)
    unreadable_catalog(gate)
    decided = gate.take(order)
    # The record may be readable in time.
    assert (decided.outcome.kind, decided.entries) == ("retry", ())
    gate.wait(61)
    tries = 0
    while (again := gate.take(order, expired=expired, **{wire.ATTEMPTS: tries}).again) is not None:
        expired = again.headers[wire.RESOLVE] is not True
        tries += 1
        gate.wait(max(600, again.delay))
    assert [kind for kind, _ in gate.recorded()] == ["in_doubt" if is_known else "expired"]
    assert gate.row_state() == ("in_doubt" if is_known else "expired")
    assert bool(tries) is is_known
    assert tries < 10


def test_a_cancel_request_of_an_unreadable_merchant_ends(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    unreadable_catalog(gate)
    request, tries = gate.a_request(seconds=60), 0
    while (again := gate.take(request, Action.CANCEL, **{wire.ATTEMPTS: tries}).again) is not None:
        tries += 1
        gate.wait(again.delay)
    assert gate.recorded()[-1] == ("accepted", "not_cancelled")
    assert (gate.row_state(action="cancel"), 0 < tries < 20) == ("expired", True)


def test_an_expired_order_does_not_wait_for_its_merchants_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen that wait would keep all other orders of the worker from expiring."""
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    planted(monkeypatch, gate, "directory", AssertionError("it is not asked"))
    order = gate.an_order(seconds=60)
    gate.wait(61)
    gate.take(order, expired=True)
    assert gate.recorded() == [("expired", "expired")]
