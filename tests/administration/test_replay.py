"""Which orders are replayed, and which with new time."""

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.administration.refusal import Refusal
from pos_gateway.administration.replay import Replay, _require_replayable
from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import AdminError
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune_orders
from pos_gateway.ledger.states import State
from pos_gateway.runtime.vault import Vault
from tests.administration.test_extend import OPEN
from tests.gate import Gate

DAY = 86_400.0


def test_an_order_that_is_being_undone_is_replayed_without_new_time_alone() -> None:
    """Its letter may be its only message."""
    order = OrderStanding(**{**OPEN, "state": State.PENDING, "reopened": 0, "step": "0 -pay"})
    _require_replayable(order, has_new_time=False)
    with pytest.raises(AdminError, match="is being undone"):
        _require_replayable(order, has_new_time=True)


def letter_of(message: Message) -> DeadLetter:
    """The letter in ``orders.dead``."""
    properties = {"message_id": message.message_id}
    said: Any = SimpleNamespace(
        body=message.body,
        headers=dict(message.headers),
        properties=properties,
        delivery_tag=1,
        channel=None,
    )
    return DeadLetter.of(said)


def replayed(gate: Gate, letter: DeadLetter, minutes: int = 30) -> Refusal | list[Message]:
    """Why a replay with new time, or without, is refused; or the messages on the queue."""
    published: list[Message] = []
    replay = Replay(
        OrderAdmin(gate.database, Payloads(Vault()), gate.hand),
        publish=published.append,
        acknowledge=lambda _: None,
        operator="kim",
        split=Split(),
        until=gate.clock.now() + timedelta(minutes=minutes) if minutes else None,
        largest=1_000_000,
        dry_run=False,
        clock=gate.hand,
    )
    return replay.replay(letter) or published


def test_an_order_is_not_sent_again_by_a_letter_that_outlives_its_row(tmp_path: Path) -> None:
    """A worker, or a replay, was killed just before it acknowledged: the order has two letters."""
    gate = Gate(tmp_path, lambda _request: (201, {"id": "7", "status": "accepted"}))
    record = gate.an_order(seconds=10)
    gate.wait(20)
    gate.take(record, expired=True)
    gate.take(record, expired=True)
    first, second = (letter_of(each) for each in gate.stored if each.routing_key == "orders.dead")
    done = replayed(gate, first)
    assert isinstance(done, list)
    [[again], _, _] = json.loads(done[0].body)
    gate.take(again)
    assert (gate.row_state(), len(gate.said)) == ("accepted", 1)
    refusal = replayed(gate, second)
    assert isinstance(refusal, Refusal)
    assert "it is accepted" in refusal.why

    gate.wait(61 * DAY)
    list(prune_orders(gate.database, gate.clock.now().timestamp() - 30 * DAY))
    assert gate.row_state() is None
    refusal = replayed(gate, second)
    assert isinstance(refusal, Refusal), "the POS would make it a second time"
    assert "needs another order_id" in refusal.why


def test_an_old_order_is_not_cancelled_by_a_letter_that_outlives_its_row(tmp_path: Path) -> None:
    """The request would count as one that came before its order."""
    gate = Gate(tmp_path, lambda _request: (201, {"id": "7", "status": "accepted"}))
    gate.take(gate.an_order())
    body = wire.body_of(json.dumps(gate.a_request()).encode())
    dead = wire.asking(wire.CANCEL_ORDER, "o1", body, "orders", {})
    assert isinstance(replayed(gate, letter_of(dead)), list)
    gate.wait(61 * DAY)
    list(prune_orders(gate.database, gate.clock.now().timestamp() - 30 * DAY))
    refusal = replayed(gate, letter_of(dead))
    assert isinstance(refusal, Refusal)
    assert "discard the letter" in refusal.why


def test_an_order_without_a_row_is_replayed_while_the_ledger_would_know_it(tmp_path: Path) -> None:
    """No worker has claimed it: the broker has dead-lettered it."""
    gate = Gate(tmp_path, lambda _request: (201, {"id": "7", "status": "accepted"}))
    record = gate.an_order(seconds=10)
    gate.wait(20)
    gate.take(record, expired=True)
    [letter] = [letter_of(each) for each in gate.stored if each.routing_key == "orders.dead"]
    with gate.database.begin() as connection:
        connection.exec_driver_sql("delete from orders")
    gate.wait(29 * DAY)
    assert isinstance(replayed(gate, letter), list)
    gate.wait(DAY)
    assert isinstance(replayed(gate, letter), Refusal)
    assert isinstance(replayed(gate, letter, minutes=0), list), "the order ends as expired"
