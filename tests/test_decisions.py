"""What follows from an outcome: plain data, judged without a broker."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pos_gateway.broker.message import Message
from pos_gateway.gateway import Gateway
from pos_gateway.order import Order
from pos_gateway.outcome import Kind, Outcome, Reason
from pos_gateway.settings import Settings
from pos_gateway.tasks import deliver
from tests.orders import an_order


class Answering:
    """A delivery that has one answer."""

    def __init__(self, outcome: Outcome | Exception) -> None:
        self._outcome = outcome

    def attempt(self, order: Order, _history: object, _patience: object = None) -> Outcome:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def following(
    outcome: Outcome | Exception, *, headers: dict[str, Any] | None = None, seconds: float = 3600
) -> list[Message]:
    gate = Gateway(Settings(database_url="sqlite://"))
    gate.delivery = Answering(outcome)  # type: ignore[assignment]
    record = an_order("o1", "m", seconds=seconds)
    messages, _ = deliver(gate, record, headers=headers or {}, routing_key="orders")
    return messages


def kinds(messages: list[Message]) -> list[str]:
    return [message.routing_key if not message.delay else "again" for message in messages]


REASON = Reason("why", "because")


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (Kind.ACCEPTED, ["order.accepted"]),
        (Kind.REJECTED, ["order.rejected"]),
        (Kind.CANCELLED, ["order.cancelled"]),
        (Kind.FAILED, ["orders.dead", "order.failed"]),
        (Kind.EXPIRED, ["orders.dead", "order.expired"]),
        (Kind.PENDING, ["order.pending", "again"]),
        (Kind.RETRY, ["again"]),
        (Kind.IN_DOUBT, ["again"]),
    ],
)
def test_each_outcome_has_what_follows(kind: Kind, then: list[str]) -> None:
    assert kinds(following(Outcome(kind, REASON))) == then


@pytest.mark.parametrize("header", ["x-in-doubt", "x-pending"])
@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.EXPIRED])
def test_an_order_that_the_pos_may_have_never_ends_as_if_it_had_not(
    kind: Kind, header: str
) -> None:
    messages = following(Outcome(kind, REASON), headers={header: True, "x-attempts": 2})
    assert kinds(messages) == ["orders.dead", "order.in_doubt"]


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (Kind.RETRY, "order.expired"),
        (Kind.IN_DOUBT, "order.in_doubt"),
    ],
)
def test_when_later_would_be_too_late_it_ends_now(kind: Kind, then: str) -> None:
    messages = following(Outcome(kind, REASON), seconds=0.5)
    assert kinds(messages) == ["orders.dead", then]
    assert messages[0].headers["x-reason-code"] == "why"


def test_pending_is_told_once_and_then_only_asked_about() -> None:
    first = following(Outcome(Kind.PENDING))
    again = following(Outcome(Kind.PENDING), headers=dict(first[-1].headers))
    assert kinds(again) == ["again"]
    assert again[0].headers["x-attempts"] == 2


def test_the_history_travels_with_the_order() -> None:
    [message] = following(Outcome(Kind.IN_DOUBT), headers={"x-attempts": 3})
    assert (message.headers["x-attempts"], message.headers["x-in-doubt"]) == (4, True)
    [message] = following(Outcome(Kind.RETRY), headers=dict(message.headers))
    assert (message.headers["x-attempts"], message.headers["x-in-doubt"]) == (5, True)


@pytest.mark.parametrize("attempts", ["7", -1, None, 2.5, []])
def test_a_history_that_makes_no_sense_counts_as_none(attempts: object) -> None:
    [message] = following(Outcome(Kind.RETRY), headers={"x-attempts": attempts})
    assert message.headers["x-attempts"] == 1


def test_the_merchants_wish_to_be_left_alone_is_granted() -> None:
    for _ in range(50):
        [message] = following(Outcome(Kind.RETRY, retry_after=64))
        assert message.delay >= 64


def test_a_mistake_of_ours_sets_the_order_aside_and_says_so() -> None:
    dead, event = following(ZeroDivisionError("oops"))
    assert dead.headers["x-reason-code"] == "internal_error"
    told = json.loads(event.body)
    assert (told["type"], told["attempts"]) == ("order.failed", 1)
    assert told["reason"]["message"] == "ZeroDivisionError"  # its words may be the order's


def test_the_same_outcome_told_twice_is_the_same_event() -> None:
    [first] = following(Outcome(Kind.ACCEPTED))
    [second] = following(Outcome(Kind.ACCEPTED))
    assert first.message_id == second.message_id
    [other] = following(Outcome(Kind.REJECTED))
    assert other.message_id != first.message_id


def test_the_time_of_an_event_is_written_with_its_offset() -> None:
    [event] = following(Outcome(Kind.ACCEPTED))
    occurred = datetime.fromisoformat(json.loads(event.body)["occurred_at"])
    assert abs(occurred - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_reason_names_the_fields_that_are_wrong_and_not_what_stands_there() -> None:
    gate = Gateway(Settings(database_url="sqlite://"))
    record = an_order("o1", "m", customer={"phone": 4915550142857}, total=float("nan"))
    (dead, event), _ = deliver(gate, record, headers={}, routing_key="orders")
    assert "customer.phone" in dead.headers["x-reason"]
    assert "4915550142857" not in dead.headers["x-reason"]
    told = json.loads(event.body, parse_constant=pytest.fail)  # NaN is not JSON
    assert told["order"]["total"] == "NaN"
