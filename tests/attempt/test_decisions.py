"""Decisions that follow from an outcome: plain data, tested without a broker."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.content import UnreadMessage, read
from pos_gateway.attempt.decision import (
    LAST_ATTEMPT,
    Decision,
    on_cancellation,
    on_submission,
    on_unread,
)
from pos_gateway.attempt.doubt import LOOK_AGAIN_AFTER, leased_elsewhere
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.states import (
    RESOLVE_FOR,
    Action,
    AttemptHistory,
    Claim,
    Ended,
    Entry,
    Key,
    State,
)
from pos_gateway.settings import Settings
from tests.gate import Gate, deliver
from tests.orders import an_order, received


def order_at(seconds: float) -> tuple[Order, datetime]:
    """An order, and the moment when it has this many seconds left."""
    order = Order.parse(an_order("o1", "m"))
    return order, order.deliver_by - timedelta(seconds=seconds)


def decided(
    outcome: Outcome, *, tries: int = 0, seconds: float = 3600, sending: bool = True, **history: Any
) -> Decision:
    """The decision on an outcome of an order with this attempt history."""
    order, now = order_at(seconds)
    claim = Claim(Key("m", "o1"), "worker", 1, 1, AttemptHistory(**history), sending)
    return after(order, now, outcome, tries=tries, claims=[claim], called=True)


def after(order: Order, now: datetime, outcome: Outcome, tries: int = 0, **facts: Any) -> Decision:
    """The decision on an attempt with these facts."""
    message = RawMessage(b"", tries=tries)
    return on_submission(Attempt(order, message, outcome=outcome, **facts), now)


def following(outcome: Outcome, **circumstances: Any) -> Sequence[Message]:
    return decided(outcome, **circumstances).messages


def written(decision: Decision) -> Entry:
    [(_, entry)] = decision.entries
    return entry


def recorded_event(decision: Decision) -> str | None:
    """The event that is written with it."""
    event = written(decision).event
    return event and event.kind


def event_id(decision: Decision) -> str:
    event = written(decision).event
    assert event is not None
    return event.id


@pytest.mark.parametrize(
    ("tries", "left", "least", "most"),
    [
        (0, 3600, 0, 2.5),  # at first at once
        (5, 3600, 20, 64),
        (20, 3600, 100, 300),  # 10,000 of them: 67 messages a second, and not 330
        (20, -1800, 100, 300),
        (20, -3500, 20, 64),  # retried until its deadline
        (20, 130, 20, 64),  # and before its deliver_by
        (20, -130, 20, 64),
    ],
)
def test_a_pending_order_is_looked_up_with_increasing_delays(
    tries: int, left: float, least: float, most: float
) -> None:
    decisions = [
        decided(
            Outcome(Kind.PENDING), tries=tries, seconds=left, pending=True, last_event="pending"
        )
        for _ in range(500)
    ]
    delays = [message.delay for each in decisions for message in each.messages]
    assert len(delays) == 500
    assert least < sum(delays) / 500 < most
    assert max(delays) <= 1.5 * most  # the broker's delays are rounded up
    if left > 0:
        assert {recorded_event(each) for each in decisions} == {
            None
        }  # no event while it is in doubt


class Crashing:
    """A collaborator that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, *_: object, **__: object) -> Any:
        raise self._error


def kinds(messages: Sequence[Message]) -> list[str]:
    return [message.routing_key if not message.delay else "again" for message in messages]


REASON = Reason("why", "because")


def test_an_old_message_does_not_expire_an_order_whose_deadline_was_extended() -> None:
    """It is republished with the new deadline, and the order's attempt history stays."""
    order, now = order_at(-60)
    newer = order.until(now + timedelta(minutes=30))
    claim = Claim(Key("m", "o1"), "worker", 2, 1, AttemptHistory(attempts=3), sending=False)
    decision = after(order, now, leased_elsewhere(), 4, claims=[claim], newer=newer)
    assert kinds(decision.messages) == ["again"]
    [[again], _, _] = json.loads(decision.messages[0].body)
    assert datetime.fromisoformat(again["deliver_by"]) == newer.deliver_by
    assert decision.messages[0].headers["x-resolve"] is False
    entry = written(decision)
    assert (entry.state, entry.attempts, entry.event) == (State.NEW, 3, None)


@pytest.mark.parametrize(
    ("kind", "then"),
    [
        (Kind.ACCEPTED, []),
        (Kind.REJECTED, []),
        (Kind.CANCELLED, []),
        (Kind.FAILED, ["orders.dead"]),
        (Kind.EXPIRED, ["orders.dead"]),
        (Kind.PENDING, ["again"]),
        (Kind.RETRY, ["again"]),
        (Kind.IN_DOUBT, ["again"]),
    ],
)
def test_each_outcome_has_its_messages(kind: Kind, then: list[str]) -> None:
    assert kinds(following(Outcome(kind, REASON))) == then


@pytest.mark.parametrize(
    ("kind", "state", "tells"),
    [
        (Kind.ACCEPTED, State.ACCEPTED, "accepted"),
        (Kind.REJECTED, State.REJECTED, "rejected"),
        (Kind.CANCELLED, State.CANCELLED, "cancelled"),
        (Kind.FAILED, State.FAILED, "failed"),
        (Kind.EXPIRED, State.EXPIRED, "expired"),
        (Kind.PENDING, State.PENDING, "pending"),
        (Kind.RETRY, State.NEW, None),
        (Kind.IN_DOUBT, State.IN_DOUBT, None),
    ],
)
def test_each_outcome_is_written_with_its_event(
    kind: Kind, state: State, tells: str | None
) -> None:
    decision = decided(Outcome(kind, REASON), attempts=2)
    assert (written(decision).state, recorded_event(decision)) == (state, tells)
    assert written(decision).attempts == 3


@pytest.mark.parametrize("history", [{"doubt_since": 1.0}, {"pending": True}])
@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.RETRY, Kind.IN_DOUBT])
def test_an_order_in_doubt_never_ends_as_not_sent(kind: Kind, history: dict[str, Any]) -> None:
    decision = decided(Outcome(kind, REASON), **history)
    assert kinds(decision.messages) == ["again"]
    assert decision.messages[0].headers["x-resolve"] is False
    late = decided(Outcome(kind, REASON), seconds=-1, **history)
    assert kinds(late.messages) == ["again"]
    assert late.messages[0].headers["x-resolve"] is True
    assert (written(late).state, recorded_event(late)) == (State.IN_DOUBT, "in_doubt")


@pytest.mark.parametrize("seconds", [600, -1])
def test_a_retry_says_that_the_pos_may_have_the_order(seconds: float) -> None:
    """Also where an attempt did nothing, and its message alone knows."""
    [in_doubt] = decided(Outcome(Kind.RETRY, REASON), seconds=seconds, doubt_since=1.0).messages
    assert wire.is_look_up(in_doubt.headers)
    [refused] = decided(Outcome(Kind.RETRY, REASON)).messages
    assert not wire.is_look_up(refused.headers)


def test_an_order_in_doubt_has_one_event() -> None:
    decision = decided(
        Outcome(Kind.RETRY, REASON), seconds=-1, doubt_since=1.0, last_event="in_doubt"
    )
    assert kinds(decision.messages) == ["again"]
    assert recorded_event(decision) is None


def test_an_order_whose_event_is_in_doubt_is_listed_so_until_it_is_decided() -> None:
    """Also an order that the POS has had the whole time without deciding."""
    again = decided(Outcome(Kind.PENDING), seconds=-1, pending=True, last_event="in_doubt")
    assert kinds(again.messages) == ["again"]
    assert recorded_event(again) is None
    assert (written(again).state, written(again).pending) == (State.IN_DOUBT, True)


def test_an_order_that_its_pos_acknowledges_is_not_in_doubt() -> None:
    """No operator needs to decide on it."""
    entry = written(decided(Outcome(Kind.PENDING), doubt_since=1.0))
    assert (entry.state, entry.doubt_since) == (State.PENDING, None)


def test_an_order_in_doubt_for_an_hour_needs_an_operator() -> None:
    decision = decided(Outcome(Kind.RETRY, REASON), seconds=-RESOLVE_FOR, doubt_since=1.0)
    assert kinds(decision.messages) == []
    assert (written(decision).state, recorded_event(decision)) == (State.IN_DOUBT, "in_doubt")


def test_without_look_up_an_order_in_doubt_needs_an_operator_at_once() -> None:
    decision = decided(Outcome(Kind.IN_DOUBT, REASON, for_operator=True))
    assert kinds(decision.messages) == []
    assert (written(decision).state, recorded_event(decision)) == (State.IN_DOUBT, "in_doubt")


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.EXPIRED])
def test_an_order_ends_now_if_its_retry_would_be_too_late(kind: Kind) -> None:
    decision = decided(Outcome(kind, REASON), seconds=0.5)
    assert kinds(decision.messages) == ["orders.dead"]
    assert decision.messages[0].headers["x-reason-code"] == "why"
    assert recorded_event(decision) == "expired"


@pytest.mark.parametrize("history", [{}, {"doubt_since": 1.0}], ids=["not sent", "in doubt"])
@pytest.mark.parametrize("seconds", [899, 600, 130, 60, 32])
def test_an_order_is_retried_before_its_deadline_whatever_retry_after_says(
    history: dict[str, Any], seconds: float
) -> None:
    """Otherwise one 503 would end it long before its deadline."""
    asked = Outcome(Kind.IN_DOUBT if history else Kind.RETRY, REASON, retry_after=900.0)
    decision = decided(asked, seconds=seconds, **history)
    [again] = decision.messages
    assert recorded_event(decision) is None
    assert again.headers["x-resolve"] is False
    assert again.delay == seconds - LAST_ATTEMPT
    last = decided(asked, seconds=LAST_ATTEMPT, **history)
    assert recorded_event(last) == ("in_doubt" if history else "expired")


def test_retry_after_does_not_shorten_the_hour_of_doubt() -> None:
    asked = Outcome(Kind.IN_DOUBT, REASON, retry_after=900.0)
    [again] = decided(asked, seconds=300 - RESOLVE_FOR, doubt_since=1.0).messages
    assert again.headers["x-resolve"] is True
    assert again.delay == 300 - LAST_ATTEMPT
    assert not decided(asked, seconds=LAST_ATTEMPT - RESOLVE_FOR, doubt_since=1.0).messages


def test_a_delay_that_ends_in_time_is_unchanged() -> None:
    asked = Outcome(Kind.RETRY, REASON, retry_after=64.0)
    for seconds in (100, 3600):
        [again] = following(asked, seconds=seconds)
        assert again.delay >= 64


def test_a_redelivered_order_that_needs_an_operator_has_one_event() -> None:
    for_operator = Outcome(Kind.IN_DOUBT, REASON, for_operator=True)
    first, again = (
        decided(for_operator, sending=False, doubt_since=1.0, last_event=before)
        for before in (None, "in_doubt")
    )
    assert [recorded_event(each) for each in (first, again)] == ["in_doubt", None]
    assert not again.messages


def test_a_look_ups_delay_does_not_grow_with_its_attempts() -> None:
    outcome = Outcome(Kind.IN_DOUBT, REASON, look_again=2.0)
    delays = [following(outcome, tries=tries)[0].delay for tries in range(20)]
    assert set(delays) == {3}  # whole seconds, with some jitter


def test_a_pending_order_is_not_in_doubt() -> None:
    """Otherwise a POS that forgets it would be believed at once: its settling time was over."""
    entry = written(decided(Outcome(Kind.PENDING), doubt_since=5.0))
    assert (entry.state, entry.doubt_since, entry.pending) == (State.PENDING, None, True)


def test_a_pending_order_has_one_event_and_is_then_looked_up() -> None:
    first = decided(Outcome(Kind.PENDING))
    assert written(first).pending
    again = decided(Outcome(Kind.PENDING), tries=1, pending=True, last_event="pending")
    assert kinds(again.messages) == ["again"]
    assert again.messages[0].headers["x-attempts"] == 2
    assert written(again).pending


def test_doubt_starts_when_the_order_was_last_sent() -> None:
    entry = written(decided(Outcome(Kind.IN_DOUBT)))
    assert entry.doubt_since == entry.at
    asked = decided(Outcome(Kind.IN_DOUBT), sending=False, doubt_since=5.0)
    assert written(asked).doubt_since == 5.0
    sent_again = written(decided(Outcome(Kind.IN_DOUBT), doubt_since=5.0))
    assert sent_again.doubt_since == sent_again.at
    refused = decided(Outcome(Kind.RETRY), doubt_since=5.0)
    assert written(refused).doubt_since == 5.0


def test_a_terminal_order_is_not_in_doubt() -> None:
    entry = written(decided(Outcome(Kind.ACCEPTED), doubt_since=5.0, pending=True))
    assert (entry.doubt_since, entry.pending) == (None, False)


@pytest.mark.parametrize("attempts", ["7", -1, None, 2.5, []])
def test_an_invalid_attempt_count_counts_as_none(attempts: object) -> None:
    gate = Gateway(Settings(database_url="sqlite://"))
    gate.spine._submit.directory = Crashing(LedgerUnavailable("away"))  # type: ignore[assignment]
    decision = deliver(gate, received(an_order("o1", "m"), {"x-attempts": attempts}))
    assert decision.messages[0].headers["x-attempts"] == 1


@pytest.mark.parametrize("seconds", [3600, 1.5])
def test_while_the_database_is_unavailable_an_order_is_retried_without_an_event(
    seconds: float,
) -> None:
    order, now = order_at(seconds)
    decision = after(order, now, Outcome(Kind.RETRY, Reason("database", "away")))
    assert kinds(decision.messages) == ["again"]
    assert not decision.entries


def test_a_terminal_order_repeats_its_event() -> None:
    order, now = order_at(60)
    ended = Ended(
        State.REJECTED, 1.0, REASON, "x1", AttemptHistory(attempts=3, last_event="rejected")
    )
    decision = after(order, now, ended.outcome, ended=ended)
    assert decision.outcome.kind is Kind.REJECTED
    assert not (decision.entries or decision.messages)


@pytest.mark.parametrize("state", [State.FAILED, State.EXPIRED])
def test_a_redelivered_failed_order_is_dead_lettered_again(state: State) -> None:
    """The worker that wrote its outcome may have died before the dead letter."""
    order, now = order_at(60)
    ended = Ended(state, 1.0, REASON, None, AttemptHistory(attempts=1, last_event=state.value))
    messages = after(order, now, ended.outcome, ended=ended).messages
    assert kinds(messages) == ["orders.dead"]


def test_a_reopened_order_ends_in_another_event() -> None:
    first = event_id(decided(Outcome(Kind.ACCEPTED)))
    second = event_id(decided(Outcome(Kind.ACCEPTED), reopened=1))
    assert first != second


def test_retry_after_is_honoured() -> None:
    for _ in range(50):
        [message] = following(Outcome(Kind.RETRY, retry_after=64))
        assert message.delay >= 64


def test_an_order_leased_elsewhere_is_retried_soon() -> None:
    """And it opens no breaker of its merchant."""
    order, now = order_at(3600)
    decision = after(order, now, leased_elsewhere(), 20)
    assert LOOK_AGAIN_AFTER <= decision.messages[0].delay <= 2 * LOOK_AGAIN_AFTER
    assert decision.outcome.retry_after is None


@pytest.mark.parametrize("seconds", [3.0, 0.2, -60.0])
def test_an_order_that_was_not_attempted_is_retried_by_its_deadline(seconds: float) -> None:
    order, now = order_at(seconds)
    outcome = Outcome(Kind.RETRY, Reason("database", "it is away"))
    for _ in range(50):
        decision = after(order, now, outcome, 20)
        assert decision.messages[0].delay <= max(1.0, seconds)


def test_an_internal_error_dead_letters_the_order_and_is_logged(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: None)
    gate.directory = Crashing(ZeroDivisionError("oops"))  # type: ignore[assignment]
    gate.spine._submit.directory = gate.directory
    with capture_logs() as logs:
        decision = deliver(gate, received(gate.an_order()))
    [dead] = decision.messages
    assert dead.headers["x-reason-code"] == "internal_error"
    assert "ZeroDivisionError" in str(logs)
    assert "oops" not in str(logs)
    entry = written(decision)
    assert (entry.state, recorded_event(decision)) == (State.FAILED, "failed")
    assert entry.reason is not None
    assert entry.reason.message == "ZeroDivisionError"  # its message may quote the order


def test_the_same_outcome_recorded_twice_is_the_same_event() -> None:
    first, second = (event_id(decided(Outcome(Kind.ACCEPTED))) for _ in range(2))
    assert first == second
    assert event_id(decided(Outcome(Kind.REJECTED))) != first


def test_an_orders_messages_and_events_have_its_trace() -> None:
    """Its messages keep the incoming trace, its events have the attempt's."""
    cause, attempt = (TraceContext(f"00-{'a' * 32}-{each * 16}-01", "x=y") for each in "bc")
    order, now = order_at(3600)
    raw = RawMessage(b"", trace=cause)
    claim = Claim(Key("m", "o1"), "worker", 1, 1, AttemptHistory(), sending=True)
    for kind in Kind:
        outcome = Outcome(kind, REASON, for_operator=kind is Kind.IN_DOUBT)
        delivered = Attempt(order, raw, span=attempt, claims=[claim], called=True, outcome=outcome)
        decision = on_submission(delivered, now)
        event = written(decision).event
        assert event is None or event.trace == attempt
        assert event is not None or decision.messages
        for message in decision.messages:
            assert TraceContext.of(message.headers) == cause
    wish = CancelRequest.parse(
        {"order_id": "o1", "merchant_id": "m", "deliver_by": order.deliver_by}
    )
    cancel = Attempt(wish, raw, span=attempt, outcome=Outcome(Kind.RETRY, REASON))
    cancel.claims = [claim._replace(key=replace(claim.key, action=Action.CANCEL))]
    again = on_cancellation(cancel, now)
    assert [TraceContext.of(message.headers) for message in again.messages] == [cause]
    cancel.claims.append(claim)
    cancel.outcome = Outcome(Kind.CANCELLED)  # it came before the order
    [(_, ended), _] = on_cancellation(cancel, now).entries
    assert ended.event is not None and ended.event.trace == attempt
    invalid = raw._replace(body=wire.body_of(b'{"order_id": "o1", "merchant_id": "m"}'))
    for action in Action:
        content = read(invalid, action)
        assert isinstance(content, UnreadMessage)
        failed = Outcome(Kind.FAILED, content.reason)
        decision = on_unread(Attempt(content, invalid, span=attempt, outcome=failed), now)
        assert [TraceContext.of(message.headers) for message in decision.messages] == [cause]
        event = decision.event_records[0].entry.event if decision.event_records else None
        assert event is None or event.trace == attempt


def test_the_reason_names_invalid_fields_without_their_values(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: (500, {}))
    record = an_order("o1", "m", customer={"phone": 4915550142857}, total=float("nan"))
    decision = deliver(gate, received(record))
    [dead] = decision.messages
    assert "customer.phone" in dead.headers["x-reason"]
    assert "4915550142857" not in dead.headers["x-reason"]
    [telling] = decision.event_records
    assert telling.body is not None
    kept = json.loads(telling.body, parse_constant=pytest.fail)  # NaN is not JSON
    assert kept["total"] == "NaN"


def test_a_late_cancel_request_that_is_leased_elsewhere_comes_again_soon() -> None:
    """Only one in doubt has the time after its deadline."""
    order, now = order_at(-1)
    request = CancelRequest.parse(
        {"order_id": "o1", "merchant_id": "m", "deliver_by": order.deliver_by}
    )
    cancel = Attempt(request, RawMessage(b"", tries=20), outcome=leased_elsewhere())
    again = on_cancellation(cancel, now).again
    assert again is not None and again.delay == 1


def test_a_number_of_attempts_that_amqp_could_not_carry_is_not_counted_on(tmp_path: Path) -> None:
    """A producer's header: the retry could never be published, and the order would not end."""
    gate = Gate(tmp_path, lambda _: (503, {}))
    again = gate.take(gate.an_order(), **{wire.ATTEMPTS: 2**63 - 1}).again
    assert again is not None and again.headers[wire.ATTEMPTS] <= 2**31 + 1
