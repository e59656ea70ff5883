"""An order's events, whatever messages had its id before: no event is suppressed."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import unparsed
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.states import Action
from pos_gateway.transport.errors import NotSent, NoValidReply
from tests.gate import Gate, deliver
from tests.orders import received

ACCEPTED = (200, {"status": "accepted", "id": "pos-1"})


def test_an_order_that_fails_after_an_invalid_one_with_its_id_has_an_event(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (403, {}))
    gate.take(gate.an_order(total=8.5))
    gate.take(gate.an_order(total=8.5, currency="euro"))  # corrected, and invalid in another way
    gate.take(gate.an_order())
    assert gate.recorded() == [
        ("failed", "invalid_order"),
        ("failed", "invalid_order"),
        ("failed", "http_403"),
    ]


def test_an_order_that_is_too_large_twice_has_two_events(tmp_path: Path) -> None:
    """The backend made it smaller, and not small enough; a redelivered message has one event."""
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    named = {"order_id": "o1", "merchant_id": "m"}
    for body in (b"x" * 90_000, b"x" * 80_000, b"x" * 80_000, b"y" * 80_000):
        too_large = Reason.of("too_large", f"{len(body)} bytes")
        content = unparsed(Message("orders", "orders", body, "o1"), named, too_large)
        assert gate.spine.attempt(Attempt(content, RawMessage(body)), timeout=1)
    assert gate.recorded() == [("failed", "too_large")] * 3


def test_a_redelivered_invalid_order_has_one_event(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    bad = gate.an_order(total=float("nan"))
    for _ in range(3):
        gate.take(bad)
    assert gate.recorded() == [("failed", "invalid_order")]


def test_an_order_that_is_accepted_after_an_invalid_one_with_its_id_has_an_event(
    tmp_path: Path,
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order(total=8.5))
    gate.take(gate.an_order())
    assert gate.recorded() == [("failed", "invalid_order"), ("accepted", None)]


def test_an_exception_before_the_claim_has_one_event_and_its_replay_another_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, lambda _: (403, {}))
    with monkeypatch.context() as patch:
        patch.setattr(gate.directory, "get", lambda _: 1 / 0)
        gate.take(gate.an_order())
        gate.take(gate.an_order())
    assert gate.recorded() == [("failed", "internal_error")]
    with gate.database.begin() as connection:  # as ``dead replay`` does
        connection.exec_driver_sql("update orders set state = 'new', told = null, reopened = 1")
    gate.take(gate.an_order())
    assert gate.recorded() == [("failed", "internal_error"), ("failed", "http_403")]


def test_an_order_whose_event_was_in_doubt_has_no_pending_event(tmp_path: Path) -> None:
    """So an order has no event twice in a generation, and the last event holds."""
    answers: list[Any] = [NoValidReply("timeout", "no reply"), (202, {"status": "pending"})]
    gate = Gate(tmp_path, lambda _: answers.pop(0))
    order = gate.an_order(seconds=1)
    # Whatever the jitter, the next attempt would be too late: it ends in doubt.
    gate.take(order, **{"x-attempts": 20})
    gate.take(order)  # its copy is delivered at once
    assert gate.recorded() == [("in_doubt", "timeout")]
    assert gate.row_state() == "in_doubt"


@pytest.mark.parametrize("left", [60, 0.5, -60], ids=["long before", "at its end", "late"])
def test_an_old_message_does_not_end_an_order_whose_deadline_was_extended(
    tmp_path: Path, left: float
) -> None:
    """Its message has the old deadline, and a failed attempt ends an order that is past it."""
    gate = Gate(tmp_path, lambda _: NoValidReply("timeout", "no reply"))
    order = gate.an_order(seconds=600)
    gate.take(order)
    with gate.database.begin() as connection:  # as ``orders resolve --not-sent --for`` does
        connection.exec_driver_sql(
            "update orders set state = 'new', doubt_since = null, settling = null, told = null, "
            "reopened = 1, epoch = epoch + 1, deliver_by = deliver_by + 3600"
        )
    gate.pos = lambda _: NotSent("refused", "no listener")
    gate.wait(600 - left)
    decided = gate.take(order, **{"x-attempts": 20})
    assert gate.recorded() == []
    assert decided.again is not None
    record, _ = wire.read(decided.again.body)
    gate.take(record)
    assert (gate.row_state(), gate.recorded()) == ("new", [])
    gate.pos = lambda _: ACCEPTED
    gate.take(record)
    assert gate.recorded() == [("accepted", None)]


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (600, "the merchant's POS is not called before deliver_by"),
        (0.01, "deliver_by has passed"),  # the clocks are not that exact
        (-1, "deliver_by has passed"),
    ],
)
def test_an_order_that_expires_early_says_why(tmp_path: Path, left: float, why: str) -> None:
    """Admission expires it where its merchant's breaker stays open past its deadline."""
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    message = received(gate.an_order(seconds=700))
    gate.wait(700 - left)
    decided = deliver(gate, message, expired=True)
    assert decided.outcome.reason == Reason("expired", why)


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (600, "the merchant's POS is not called before deliver_by"),
        (-1, "deliver_by has passed"),
    ],
)
def test_a_cancel_request_that_expires_early_says_why(
    tmp_path: Path, left: float, why: str
) -> None:
    gate = Gate(tmp_path, lambda _: ACCEPTED)
    gate.take(gate.an_order())
    decided = deliver(gate, received(gate.a_request(seconds=left)), Action.CANCEL, expired=True)
    assert decided.outcome.reason == Reason("cancel_expired", why)
