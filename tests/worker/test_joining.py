"""Messages for an order that is in flight in the same worker: only a copy shares its outcome.

A whole gateway is behind the dispatcher; the test hands in the answers of merchants and broker.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import pytest
from celery.concurrency.gevent import TaskPool
from gevent.event import Event

from pos_gateway.administration.replay import Replay
from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.broker import wire
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.message import Message
from pos_gateway.domain.split import Split
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import Action
from pos_gateway.runtime.clock import SYSTEM_CLOCK
from pos_gateway.worker.dispatcher import Dispatcher
from pos_gateway.worker.request import OrderRequest
from testkit.patience import PATIENCE
from tests.gate import Gate

#: Seconds after which a wait fails.
SOON = PATIENCE
ACCEPTED = (201, {"status": "accepted", "id": "pos-1"})
REFUSED = (403, {})


class Line:
    """A worker's dispatcher, and what it reports to the broker."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder, self._answer, clock=SYSTEM_CLOCK)  # type: ignore[arg-type]
        self.gate.directory.want = self.gate.directory.is_fresh = lambda _: True  # type: ignore[method-assign]
        self.gate.store = self.gate.commit._store = self._store  # type: ignore[method-assign]
        self.reply: Any = ACCEPTED
        self.merchant_answers, self.asked = Event(), Event()
        self.broker_confirms, self.stores = Event(), Event()
        self.merchant_answers.set()
        self.broker_confirms.set()
        pool = TaskPool(4)
        pool.start()
        self.dispatcher = Dispatcher(
            gate=self.gate,
            pool=pool,
            limits=AdmissionLimits(slots=4),
            dead_letter=Mock(),
        )
        self.dispatcher.start()
        gevent.sleep(0)

    def offer(self, record: dict[str, Any]) -> "Said":
        """Deliver a message with this order."""
        return self.offer_body(wire.body_of(json.dumps(record).encode()))

    def offer_body(self, body: bytes) -> "Said":
        """Deliver a message with this body."""
        said = Said()
        request = self.request(body, said)
        self.dispatcher.offer(request)
        gevent.sleep(0)
        return said

    @staticmethod
    def request(body: bytes, said: "Said") -> OrderRequest:
        message = SimpleNamespace(
            body=body,
            headers={"id": "x", "task": wire.SUBMIT_ORDER},
            delivery_info={"routing_key": "orders"},
            properties={},
            ack_log_error=lambda *_: said.say("acknowledged"),
            reject_log_error=lambda *_: said.say("requeued"),
        )
        task = SimpleNamespace(action=Action.SUBMIT, name=wire.SUBMIT_ORDER)
        consumer = SimpleNamespace(event_dispatcher=None, connection_errors=(), hostname="h")
        return OrderRequest(message, json.loads(body), task, consumer, 0.0)

    def replay(self) -> bytes:
        """Replay the last dead letter as an operator does; returns the published body."""
        dead = [each for each in self.gate.stored if each.routing_key == "orders.dead"][-1]
        published: list[Message] = []
        replaying = Replay(
            OrderAdmin(self.gate.database, self.gate.ledger._payloads),
            publish=published.append,
            acknowledge=lambda _: None,
            operator="kim",
            split=Split(),
            until=None,
            largest=2**18,
            dry_run=False,
        )
        letter = DeadLetter("o1", "o1", "m", "", "", None, dict(dead.headers), dead.body, 1, None)
        assert replaying.replay(letter) is None
        [message] = published
        return message.body

    def _answer(self, _request: Any) -> Any:
        self.asked.set()
        assert self.merchant_answers.wait(SOON)
        return self.reply

    def _store(self, messages: Any, *, timeout: float = 0) -> None:
        stored = list(messages)
        self.gate.stored.extend(stored)
        if stored:
            self.stores.set()
            assert self.broker_confirms.wait(SOON)


class Said:
    """How a message was settled with the broker."""

    def __init__(self) -> None:
        self.word = ""
        self._is_said = Event()

    def say(self, word: str) -> None:
        self.word = word
        self._is_said.set()

    def wait(self) -> str:
        assert self._is_said.wait(SOON)
        return self.word


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    ticker = line.dispatcher._ticker
    assert ticker is not None
    gevent.kill(ticker)


def test_a_corrected_order_is_sent_while_the_invalid_one_is_being_dead_lettered(
    line: Line,
) -> None:
    """The backend has the invalid order's event before its dead letter is confirmed."""
    line.broker_confirms.clear()
    order = line.gate.an_order()
    invalid = line.offer({**order, "currency": "eur"})
    assert line.stores.wait(SOON)
    assert line.gate.recorded() == [("failed", "invalid_order")]
    mended = line.offer(order)
    line.broker_confirms.set()
    assert (invalid.wait(), mended.wait()) == ("acknowledged", "acknowledged")
    assert line.gate.recorded() == [("failed", "invalid_order"), ("accepted", None)]
    assert (line.gate.row_state(), line.gate.dead()) == ("accepted", ["invalid_order"])


def test_a_corrected_order_that_waits_behind_the_invalid_one_is_sent(line: Line) -> None:
    order = line.gate.an_order()
    messages = [line.offer({**order, "currency": "eur"}), line.offer(order)]
    assert [each.wait() for each in messages] == ["acknowledged", "acknowledged"]
    assert line.gate.recorded() == [("failed", "invalid_order"), ("accepted", None)]


def test_an_invalid_body_is_dead_lettered_while_an_order_with_its_id_is_in_flight(
    line: Line,
) -> None:
    line.merchant_answers.clear()
    order = line.gate.an_order()
    valid = line.offer(order)
    assert line.asked.wait(SOON)
    invalid = line.offer({**order, "currency": "eur"})
    line.merchant_answers.set()
    assert (valid.wait(), invalid.wait()) == ("acknowledged", "acknowledged")
    assert line.gate.dead() == ["invalid_order"]
    assert len(line.gate.said) == 1


def test_a_copy_shares_the_outcome_of_the_order_in_flight(line: Line) -> None:
    line.merchant_answers.clear()
    order = line.gate.an_order()
    messages = [line.offer(order), line.offer(order)]
    line.merchant_answers.set()
    assert [each.wait() for each in messages] == ["acknowledged", "acknowledged"]
    # Its outcome was not read from the ledger again.
    assert (len(line.gate.said), line.gate.stored) == (1, [])


def test_a_replay_is_sent_while_an_old_copy_is_being_dead_lettered(line: Line) -> None:
    """The copy read the order's outcome before the operator reopened it."""
    order = line.gate.an_order()
    line.reply = REFUSED
    assert line.offer(order).wait() == "acknowledged"
    line.broker_confirms.clear()
    line.stores.clear()
    copy = line.offer(order)
    assert line.stores.wait(SOON)
    line.reply = ACCEPTED
    replayed = line.offer_body(line.replay())
    line.broker_confirms.set()
    assert (copy.wait(), replayed.wait()) == ("acknowledged", "acknowledged")
    assert line.gate.row_state() == "accepted"


def test_a_replay_is_sent_before_its_dead_letter_is_confirmed(line: Line) -> None:
    order = line.gate.an_order()
    line.reply = REFUSED
    line.broker_confirms.clear()
    first = line.offer(order)
    assert line.stores.wait(SOON)
    assert line.gate.row_state() == "failed"
    line.reply = ACCEPTED
    replayed = line.offer_body(line.replay())
    line.broker_confirms.set()
    assert (first.wait(), replayed.wait()) == ("acknowledged", "acknowledged")
    assert line.gate.row_state() == "accepted"


def test_an_exception_after_the_decision_leaves_no_order_claimed(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = line.gate.an_order()
    line.reply = (429, {})
    with monkeypatch.context() as patch:
        patch.setattr(line.dispatcher._retries, "takes", Mock(side_effect=ZeroDivisionError))
        assert line.offer(order).wait() == "requeued"
    assert line.dispatcher.uncommitted == 0
    line.reply = ACCEPTED
    assert line.offer(order).wait() == "acknowledged"
    assert line.gate.recorded() == [("accepted", None)]


def test_orders_without_a_merchant_are_not_parked(line: Line) -> None:
    """Parked together they would become one bundle without a merchant, and one dead letter."""
    messages = []
    for number in range(3):
        record = {**line.gate.an_order(f"o{number}"), "merchant_id": ""}
        messages.append(said := Said())
        request = line.request(wire.body_of(json.dumps(record).encode()), said)
        line.dispatcher._park_soon(request)
    assert [each.wait() for each in messages] == ["acknowledged"] * 3
    assert line.gate.dead() == ["invalid_order"] * 3
