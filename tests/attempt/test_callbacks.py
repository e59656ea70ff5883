"""A POS that calls back while a worker has its order: one end is told, and no letter is dead.

The callback is applied by another process, which is the HTTP server, between any two steps of the
attempt.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Claim, Key, State
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import NoValidReply
from tests.gate import Gate

KEY = Key("m", "o1")
#: What the POS answers to the create in whose course it calls back.
REPLIES: dict[str, Any] = {
    "accepted": (201, {"id": "1", "status": "accepted"}),
    "rejected": (422, {"error": {"code": "sold_out", "message": "none"}}),
    "pending": (202, {"id": "1", "status": "pending"}),
    "broken": (500, {}),
    "no credentials": (401, {}),
    "too much": (429, {}),
    "nothing": NoValidReply("timeout", "no reply in time"),
}


class CallingGate(Gate):
    """A gateway, and the server that its POS calls."""

    def __init__(self, folder: Path, pos: Callable[[Any], Any]) -> None:
        super().__init__(folder, pos)
        self._number = 0

    def called(self, meaning: Kind | Lifecycle) -> CallbackResult:
        """The POS calls."""
        self._number += 1
        merchant = self.directory.get("m")
        said = Callback(str(self._number), meaning, "o1", "1")
        received = Received("rest", "m", said, {"m": (endpoint(merchant, self.adapters["rest"]),)})
        ledger = CallbackLedger(self.database, Payloads(Vault()), dehydrated, self.clock)
        try:
            [applied] = ledger.apply([received])
        finally:
            ledger.close()
        return applied.result


def gate_of(folder: Path, reply: Any, *meanings: Kind | Lifecycle) -> CallingGate:
    """Its POS calls during the first request, and answers all like that."""
    left = list(meanings)

    def pos(_request: Any) -> Any:
        while left:
            assert gate.called(left.pop(0)) is CallbackResult.APPLIED
        return reply

    gate = CallingGate(folder, pos)
    return gate


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("kind", [Kind.ACCEPTED, Kind.REJECTED, Kind.CANCELLED])
def test_the_callback_is_the_end_whatever_the_attempt_says(
    tmp_path: Path, reply: str, kind: Kind
) -> None:
    gate = gate_of(tmp_path, REPLIES[reply], kind)
    record = gate.an_order()
    gate.take(record, settled=False)  # requeued
    assert gate.stored == [], "neither a retry nor a dead letter"
    decision = gate.take(record)
    assert decision.outcome.kind is kind
    assert gate.stored == [], "it is not published yet: it comes in its turn"
    assert gate.publish_events() == [kind]
    gate.take(record)
    [again] = gate.stored
    assert again.routing_key == f"order.{kind}"
    assert len(gate.said) == 1, "it is sent once"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_retry_of_an_order_that_a_callback_has_ended_calls_no_pos(
    tmp_path: Path, is_late: bool
) -> None:
    gate = gate_of(tmp_path, REPLIES["pending"])
    record = gate.an_order()
    gate.take(record)
    assert gate.called(Lifecycle.READY) is CallbackResult.APPLIED
    gate.wait(10_000 if is_late else 5)
    gate.stored.clear()
    gate.take(record, expired=is_late)
    assert gate.stored == []
    assert len(gate.said) == 1
    assert gate.publish_events() == ["pending", "accepted", "ready"]


def test_an_order_that_was_left_to_an_operator_is_ended(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, REPLIES["nothing"])
    record = gate.an_order(seconds=30)
    gate.take(record)
    for _ in range(5):  # until nothing is retried any more
        gate.wait(1300)
        gate.take(record)
    assert gate.called(Kind.ACCEPTED) is CallbackResult.APPLIED
    assert gate.publish_events() == ["in_doubt", "accepted"]


def test_a_cancel_request_finds_that_the_pos_has_cancelled(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, REPLIES["accepted"])
    gate.take(gate.an_order())

    def cancelling(request: Any) -> Any:
        if request.url.endswith("/cancel"):
            assert gate.called(Kind.CANCELLED) is CallbackResult.APPLIED
            return NoValidReply("timeout", "no reply in time")
        return 200, {"id": "1", "status": "cancelled"}

    gate.pos = cancelling
    request = gate.a_request()
    gate.take(request, Action.CANCEL, settled=False)
    assert gate.stored == []
    gate.take(request, Action.CANCEL)
    assert gate.publish_events() == ["accepted", "cancelled"]
    assert [path for _, path in gate.said] == ["/orders", "/orders/o1/cancel"]


def test_an_order_that_is_cancelled_while_it_is_looked_up_for_that_is_cancelled_once(
    tmp_path: Path,
) -> None:
    gate = gate_of(tmp_path, REPLIES["pending"])
    gate.take(gate.an_order())

    def cancelling(_request: Any) -> Any:
        gate.called(Kind.CANCELLED)
        return 200, {"id": "1", "status": "cancelled"}

    gate.pos = cancelling
    request = gate.a_request()
    gate.take(request, Action.CANCEL, settled=False)
    gate.take(request, Action.CANCEL)
    assert gate.publish_events() == ["pending", "cancelled"]
    row = gate.ledger.claim(replace(KEY, action=Action.CANCEL), send=False)
    assert getattr(row, "state", None) is State.CANCELLED


@pytest.mark.parametrize(
    "reply",
    [
        (409, {"error": {"code": "already_cancelled", "message": "it is cancelled"}}),
        (404, {"error": {"code": "unknown_order", "message": "it is gone"}}),
        (200, {"id": "1", "status": "cancelled"}),
    ],
)
def test_nothing_is_told_of_a_cancel_request_after_the_pos_has_cancelled(
    tmp_path: Path, reply: Any
) -> None:
    """Shop and customer cancel at the same time."""
    gate = gate_of(tmp_path, REPLIES["accepted"])
    gate.take(gate.an_order())
    assert gate.called(Kind.CANCELLED) is CallbackResult.APPLIED
    gate.pos = lambda _: reply
    request = gate.a_request()
    for _ in range(2):  # one that comes again repeats nothing, either
        gate.take(request, Action.CANCEL)
    assert gate.publish_events() == ["accepted", "cancelled_by_pos"]
    assert len(gate.said) == 1, "its POS is not asked"


def test_a_cancel_request_that_was_not_sent_ends_with_the_callback(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, REPLIES["accepted"])
    gate.take(gate.an_order())
    cancel = replace(KEY, action=Action.CANCEL)
    claim = gate.ledger.claim(cancel, send=False)
    assert isinstance(claim, Claim)
    assert gate.called(Kind.CANCELLED) is CallbackResult.APPLIED
    row = gate.ledger.claim(cancel, send=False)
    assert getattr(row, "state", None) is State.CANCELLED
    assert gate.publish_events() == ["accepted", "cancelled_by_pos"]
