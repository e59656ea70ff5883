"""A message that cannot be read, of an order that the ledger knows: one end, by the ledger's order."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock

import pytest
from sqlalchemy import text

from pos_gateway.administration.extend import Extension
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import unparsed
from pos_gateway.attempt.decision import Decision
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain import order as orders
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen, Vault
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.worker.dead_lettering import DeadLettering
from tests.gate import Gate

ENDS = {"accepted", "rejected", "cancelled", "expired", "failed"}
MANY = [
    {
        "sku": "a",
        "name": "A",
        "quantity": 1,
        "unit_price": 1700,
        "modifiers": [{"name": "x"} for _ in range(200)],
    }
]


class Pos:
    """Keeps one order; may be deaf, so that its replies are lost, or not there."""

    def __init__(self, state: str) -> None:
        self.status: str | None = None
        self.state = state

    def __call__(self, request: Any) -> Any:
        if self.state == "new":
            return NotSent("refused", "no connection")
        if request.method == "POST":
            self.status = self.status or "pending"
        if self.state == "in_doubt":
            return NoValidReply("timeout", "no reply")
        if self.status is None:
            return 404, {}
        made = request.method == "POST" and self.status == "pending"
        return (202 if made else 200), {"id": "p1", "status": self.status}

    def recover(self) -> None:
        self.state, self.status = "well", "accepted"


def too_large(gate: Gate, order: Any) -> Decision:
    """A worker takes the message, and finds it too long to parse."""
    source = json.dumps(order).encode()
    message = wire.submit_message("o1", source, routing_key="orders")
    why = Reason.of("too_large", "the message has 1 byte too many")
    content = unparsed(message, wire.named_in(message.body), why)
    decided = gate.spine.attempt(Attempt(content, RawMessage(message.body)))
    assert decided is not None
    return decided


def quarantined(gate: Gate, order: Any) -> Mock:
    """The same at a synchronous worker's parent."""
    message = Mock(
        body=wire.body_of(json.dumps(order).encode()),
        headers={"task": wire.SUBMIT_ORDER, "id": "o1"},
        delivery_info={"routing_key": "orders"},
        properties={},
        content_type="application/json",
    )
    DeadLettering(gate, (), is_green=False)(message, "too_large", "it has 1 byte too many")
    return message


def ended(gate: Gate) -> list[str]:
    return [kind for kind, _ in gate.recorded() if kind in ENDS]


@pytest.mark.parametrize("state", ["new", "pending", "in_doubt"])
def test_an_invalid_second_request_ends_no_order(tmp_path: Path, state: str) -> None:
    gate = Gate(tmp_path, pos := Pos(state))
    order = gate.an_order()
    gate.take(order)
    assert gate.row_state() == state
    invalid = gate.take({**order, "items": []})
    assert invalid.again is None
    assert gate.dead() == ["invalid_order"]
    assert (gate.row_state(), ended(gate)) == (state, [])
    pos.recover()
    gate.wait(60)
    gate.take(order)
    assert ended(gate) == ["accepted"]


@pytest.mark.parametrize("state", ["new", "pending", "in_doubt"])
def test_an_order_whose_message_has_become_too_large_goes_on_from_the_ledger(
    tmp_path: Path, state: str
) -> None:
    """It came again, to a worker with another POS_GATEWAY_MAX_ORDER_BYTES."""
    gate = Gate(tmp_path, pos := Pos(state))
    order = gate.an_order()
    gate.take(order)
    again = too_large(gate, order).again
    assert again is not None
    assert gate.dead() == []
    assert again.headers[wire.ATTEMPTS] > 0, "a worker takes it whatever its size"
    pos.recover()
    gate.wait(60)
    record, _ = wire.read(again.body)
    gate.take(record, **again.headers)
    assert ended(gate) == ["accepted"]


def test_an_order_with_more_time_knows_its_message_again(tmp_path: Path) -> None:
    gate = Gate(tmp_path, pos := Pos("new"))
    order = gate.an_order()
    gate.take(order)
    admin = OrderAdmin(gate.database, Payloads(Vault()))
    seen = admin.one(Key(order["merchant_id"], "o1"))
    assert seen is not None
    Extension(admin, "kim", gate.clock).extend(seen, gate.clock.now() + timedelta(hours=9))
    again = too_large(gate, order).again
    assert again is not None
    assert gate.dead() == []
    pos.recover()
    gate.wait(60)
    record, _ = wire.read(again.body)
    gate.take(record, **again.headers)
    assert ended(gate) == ["accepted"]


@pytest.mark.parametrize("is_large", [False, True])
def test_a_database_that_fails_while_an_unreadable_message_has_its_order_leaves_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """The claim is durable then, and nothing else would ever release it while this worker lives."""
    unreadable_for_now(tmp_path, monkeypatch, _away, is_large=is_large)


def _away(_: Key) -> bytes:
    raise LedgerUnavailable("the database is away")


@pytest.mark.parametrize("is_large", [False, True])
def test_an_order_that_only_another_worker_has_the_key_of_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    decided = unreadable_for_now(tmp_path, monkeypatch, _no_key, is_large=is_large)
    assert (decided.outcome.kind, decided.outcome.reason.code) == (Kind.RETRY, "secret_key")


def unreadable_for_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Key], bytes], *, is_large: bool
) -> Decision:
    """What follows while the ledger's order is read like this; it goes on by its own message."""
    gate = Gate(folder, pos := Pos("new"))
    order = gate.an_order()
    gate.take(order)
    with monkeypatch.context() as now:
        now.setattr(gate.ledger, "order", read)
        decided = too_large(gate, order) if is_large else gate.take({**order, "items": []})
    assert decided.again is not None
    assert ended(gate) == []
    pos.recover()
    gate.wait(60)
    gate.take(order)
    assert ended(gate) == ["accepted"]
    return decided


def test_an_order_that_no_worker_has_the_key_of_ends_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, Pos("new"))
    order = gate.an_order()
    gate.take(order)
    monkeypatch.setattr(gate.ledger, "order", _no_key)
    gate.wait(3 * 3600)
    assert too_large(gate, order).again is None
    assert len(ended(gate)) == 1


def _no_key(_: Key) -> bytes:
    raise CannotOpen("sealed with a key that is not in POS_GATEWAY_SECRET_KEY")


def test_another_message_that_is_too_large_does_not_multiply_the_order(tmp_path: Path) -> None:
    gate = Gate(tmp_path, Pos("pending"))
    order = gate.an_order()
    gate.take(order)
    decided = too_large(gate, {**order, "notes": "another"})
    assert decided.again is None
    assert gate.dead() == ["too_large"]
    assert ended(gate) == []


def allow_fewer_modifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later release may."""
    monkeypatch.setattr(orders, "MODIFIERS", 100)
    monkeypatch.setattr(orders, "_FEW_MODIFIERS", 0)


def test_an_order_that_no_worker_can_read_any_more_is_for_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release refuses what this one took, and the POS has the order."""
    gate = Gate(tmp_path, Pos("pending"))
    order = gate.an_order(items=MANY)
    gate.take(order)
    allow_fewer_modifiers(monkeypatch)
    gate.take(order)
    assert gate.recorded()[-1] == ("in_doubt", "invalid_order")
    [listed] = OrderAdmin(gate.database, Payloads(Vault())).orders()
    assert listed.is_in_doubt
    assert gate.dead() == ["invalid_order"]
    gate.take(order)
    assert [kind for kind, _ in gate.recorded()] == ["pending", "in_doubt"], "told once"


def test_an_order_that_was_never_sent_and_cannot_be_read_any_more_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, Pos("new"))
    order = gate.an_order(items=MANY)
    gate.take(order)
    allow_fewer_modifiers(monkeypatch)
    gate.take(order)
    gate.take(order)
    assert (gate.row_state(), ended(gate)) == ("failed", ["failed"])


def test_an_invalid_request_after_the_end_changes_nothing(tmp_path: Path) -> None:
    gate = Gate(tmp_path, pos := Pos("well"))
    pos.status = "accepted"
    order = gate.an_order()
    gate.take(order)
    gate.take({**order, "items": []})
    assert ended(gate) == ["accepted"]
    assert gate.dead() == ["invalid_order"]


def test_the_event_of_a_message_that_is_too_large_again_is_published_again(tmp_path: Path) -> None:
    gate = Gate(tmp_path, Pos("well"))
    order = gate.an_order()
    too_large(gate, order)
    gate.publish_events()
    too_large(gate, order)
    [told] = gate.repeated()
    assert (told["type"], told["position"]) == ("order.failed", 1)
    assert gate.dead() == ["too_large", "too_large"]


def test_an_order_that_is_leased_elsewhere_is_looked_at_again(tmp_path: Path) -> None:
    gate = Gate(tmp_path, Pos("pending"))
    order = gate.an_order()
    claim = gate.ledger.claim(Key("m", "o1"), send=False)
    again = gate.take({**order, "items": []}).again
    assert isinstance(again, Message)
    assert gate.dead() == []
    gate.ledger.abandon(claim, sent=False)  # type: ignore[arg-type]


def test_a_synchronous_workers_parent_leaves_no_claim_that_counts_as_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has no beat: its lease would expire as that of a worker that the order has killed."""
    gate = Gate(tmp_path, Pos("new"))
    order = gate.an_order()
    gate.take(order)
    monkeypatch.setattr(gate.ledger, "order", Mock(side_effect=LedgerUnavailable("it is away")))
    quarantined(gate, order).ack_log_error.assert_called_once()
    assert gate.rows("select state, owner from orders") == [("new", None)]
    assert gate.rows("select id from workers") == []


def test_a_message_whose_order_another_worker_takes_meanwhile_comes_again(tmp_path: Path) -> None:
    """It was not dead-lettered, and the order's next message was not published."""
    gate = Gate(tmp_path, Pos("new"))
    order = gate.an_order()
    gate.take(order)
    read = gate.ledger.order

    def taken(key: Key) -> bytes | None:
        with gate.database.begin() as connection:
            connection.execute(text("update orders set epoch = epoch + 1"))
        return read(key)

    gate.ledger.order = taken  # type: ignore[method-assign]
    stored = list(gate.stored)
    message = quarantined(gate, order)
    assert gate.stored == stored
    message.ack_log_error.assert_not_called()
    message.reject_log_error.assert_called_once_with(ANY, (), requeue=True)
