"""What follows from an outcome: plain data, judged without a broker."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pos_gateway.broker.message import Message
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
from pos_gateway.processing.cancellation import CancelAttempt
from pos_gateway.processing.decision import (
    LAST_ATTEMPT,
    Decision,
    MessageContext,
    on_cancellation,
    on_no_order,
    on_no_request,
    on_submission,
)
from pos_gateway.processing.delivery import HELD_FOR, Attempt, held
from pos_gateway.processing.gateway import Gateway
from pos_gateway.settings import Settings
from pos_gateway.worker.tasks import deliver
from tests.gate import Gate
from tests.orders import an_order


def order_at(seconds: float) -> tuple[Order, datetime]:
    """An order, and the moment when it has so many seconds left."""
    order = Order.parse(an_order("o1", "m"))
    return order, order.deliver_by - timedelta(seconds=seconds)


def decided(
    outcome: Outcome, *, tries: int = 0, seconds: float = 3600, sending: bool = True, **past: Any
) -> Decision:
    """What follows from the outcome of an order with this past."""
    order, now = order_at(seconds)
    claim = Claim(Key("m", "o1"), "worker", 1, 1, AttemptHistory(**past), sending)
    return on_submission(
        order, Attempt(outcome, claim, called=True), MessageContext("orders", tries, now)
    )


def following(outcome: Outcome, **circumstances: Any) -> Sequence[Message]:
    return decided(outcome, **circumstances).messages


def written(decision: Decision) -> Entry:
    [(_, entry)] = decision.entries
    return entry


def told(decision: Decision) -> str | None:
    """What the event says that is written with it."""
    event = written(decision).event
    return event and event.kind


def event_id(decision: Decision) -> str:
    event = written(decision).event
    assert event is not None
    return event.id


@pytest.mark.parametrize(
    ("tries", "left", "least", "most"),
    [
        (0, 3600, 0, 2.5),  # at once at first
        (5, 3600, 20, 64),
        (20, 3600, 100, 300),  # 10,000 of them: 67 messages a second, and not 330
        (20, -1800, 100, 300),
        (20, -3500, 20, 64),  # none is given up before its time
        (20, 130, 20, 64),  # ... and in time for its deliver_by
        (20, -130, 20, 64),
    ],
)
def test_an_order_that_its_pos_does_not_decide_about_is_asked_for_ever_more_rarely(
    tries: int, left: float, least: float, most: float
) -> None:
    decisions = [
        decided(Outcome(Kind.PENDING), tries=tries, seconds=left, pending=True, told="pending")
        for _ in range(500)
    ]
    delays = [message.delay for each in decisions for message in each.messages]
    assert len(delays) == 500
    assert least < sum(delays) / 500 < most
    assert max(delays) <= 1.5 * most  # the broker's delays are rounded up
    if left > 0:
        assert {told(each) for each in decisions} == {None}  # nobody is told of a doubt before


class Crashing:
    """A part that raises."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def submit(self, *_: object, **__: object) -> Attempt:
        raise self._error

    get = submit


def kinds(messages: Sequence[Message]) -> list[str]:
    return [message.routing_key if not message.delay else "again" for message in messages]


REASON = Reason("why", "because")


def test_an_old_message_does_not_end_an_order_that_an_operator_has_given_new_time() -> None:
    """It becomes one with the new time, and what is known of the order stays."""
    order, now = order_at(-60)
    newer = order.until(now + timedelta(minutes=30))
    claim = Claim(Key("m", "o1"), "worker", 2, 1, AttemptHistory(attempts=3), sending=False)
    attempt = Attempt(held(), claim, newer=newer)
    decision = on_submission(order, attempt, MessageContext("orders", 4, now))
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
def test_each_outcome_has_what_follows(kind: Kind, then: list[str]) -> None:
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
    assert (written(decision).state, told(decision)) == (state, tells)
    assert written(decision).attempts == 3


@pytest.mark.parametrize("past", [{"doubt_since": 1.0}, {"pending": True}])
@pytest.mark.parametrize("kind", [Kind.FAILED, Kind.RETRY, Kind.IN_DOUBT])
def test_an_order_that_the_pos_may_have_never_ends_as_if_it_had_not(
    kind: Kind, past: dict[str, Any]
) -> None:
    decision = decided(Outcome(kind, REASON), **past)
    assert kinds(decision.messages) == ["again"]
    assert decision.messages[0].headers["x-resolve"] is False
    late = decided(Outcome(kind, REASON), seconds=-1, **past)
    assert kinds(late.messages) == ["again"]
    assert late.messages[0].headers["x-resolve"] is True
    assert (written(late).state, told(late)) == (State.IN_DOUBT, "in_doubt")


def test_that_an_order_is_in_doubt_is_told_once() -> None:
    decision = decided(Outcome(Kind.RETRY, REASON), seconds=-1, doubt_since=1.0, told="in_doubt")
    assert kinds(decision.messages) == ["again"]
    assert told(decision) is None


def test_an_order_that_was_told_as_in_doubt_is_listed_as_such_until_it_is_decided() -> None:
    """Also one that the POS has had all the time, and has not decided on."""
    again = decided(Outcome(Kind.PENDING), seconds=-1, pending=True, told="in_doubt")
    assert kinds(again.messages) == ["again"]
    assert told(again) is None
    assert (written(again).state, written(again).pending) == (State.IN_DOUBT, True)


def test_an_order_that_its_pos_says_it_has_is_in_doubt_no_more() -> None:
    """No operator is asked about it, who may have asked the merchant before it was there."""
    entry = written(decided(Outcome(Kind.PENDING), doubt_since=1.0))
    assert (entry.state, entry.doubt_since) == (State.PENDING, None)


def test_after_an_hour_of_doubt_an_operator_has_to_look() -> None:
    decision = decided(Outcome(Kind.RETRY, REASON), seconds=-RESOLVE_FOR, doubt_since=1.0)
    assert kinds(decision.messages) == []
    assert (written(decision).state, told(decision)) == (State.IN_DOUBT, "in_doubt")


def test_a_pos_that_cannot_be_asked_leaves_it_to_an_operator_at_once() -> None:
    decision = decided(Outcome(Kind.IN_DOUBT, REASON, for_operator=True))
    assert kinds(decision.messages) == []
    assert (written(decision).state, told(decision)) == (State.IN_DOUBT, "in_doubt")


@pytest.mark.parametrize("kind", [Kind.RETRY, Kind.EXPIRED])
def test_when_later_would_be_too_late_it_ends_now(kind: Kind) -> None:
    decision = decided(Outcome(kind, REASON), seconds=0.5)
    assert kinds(decision.messages) == ["orders.dead"]
    assert decision.messages[0].headers["x-reason-code"] == "why"
    assert told(decision) == "expired"


@pytest.mark.parametrize("past", [{}, {"doubt_since": 1.0}], ids=["not sent", "in doubt"])
@pytest.mark.parametrize("seconds", [899, 600, 130, 60, 32])
def test_however_long_a_pos_asks_to_be_left_alone_an_order_is_tried_once_more_in_its_time(
    past: dict[str, Any], seconds: float
) -> None:
    """Else a single 503 would end it long before anybody needs to give it up."""
    asked = Outcome(Kind.IN_DOUBT if past else Kind.RETRY, REASON, retry_after=900.0)
    decision = decided(asked, seconds=seconds, **past)
    [again] = decision.messages
    assert told(decision) is None
    assert again.headers["x-resolve"] is False
    assert again.delay == seconds - LAST_ATTEMPT
    last = decided(asked, seconds=LAST_ATTEMPT, **past)
    assert told(last) == ("in_doubt" if past else "expired")


def test_nor_is_an_order_in_doubt_left_to_an_operator_before_its_hour_is_over() -> None:
    asked = Outcome(Kind.IN_DOUBT, REASON, retry_after=900.0)
    [again] = decided(asked, seconds=300 - RESOLVE_FOR, doubt_since=1.0).messages
    assert again.headers["x-resolve"] is True
    assert again.delay == 300 - LAST_ATTEMPT
    assert not decided(asked, seconds=LAST_ATTEMPT - RESOLVE_FOR, doubt_since=1.0).messages


def test_a_wait_that_ends_in_time_is_as_long_as_it_is() -> None:
    asked = Outcome(Kind.RETRY, REASON, retry_after=64.0)
    for seconds in (100, 3600):
        [again] = following(asked, seconds=seconds)
        assert again.delay >= 64


def test_an_order_for_an_operator_that_comes_again_is_told_of_once() -> None:
    for_operator = Outcome(Kind.IN_DOUBT, REASON, for_operator=True)
    first, again = (
        decided(for_operator, sending=False, doubt_since=1.0, told=before)
        for before in (None, "in_doubt")
    )
    assert [told(each) for each in (first, again)] == ["in_doubt", None]
    assert not again.messages


def test_when_it_makes_sense_to_look_again_is_not_a_question_of_how_often_one_has_looked() -> None:
    outcome = Outcome(Kind.IN_DOUBT, REASON, look_again=2.0)
    delays = [following(outcome, tries=tries)[0].delay for tries in range(20)]
    assert set(delays) == {3}  # whole seconds, with some jitter


def test_an_order_in_doubt_that_its_pos_says_is_pending_is_in_doubt_no_more() -> None:
    """Else a POS that forgets it would be believed at once: it had its time before."""
    entry = written(decided(Outcome(Kind.PENDING), doubt_since=5.0))
    assert (entry.state, entry.doubt_since, entry.pending) == (State.PENDING, None, True)


def test_pending_is_told_once_and_then_only_asked_about() -> None:
    first = decided(Outcome(Kind.PENDING))
    assert written(first).pending
    again = decided(Outcome(Kind.PENDING), tries=1, pending=True, told="pending")
    assert kinds(again.messages) == ["again"]
    assert again.messages[0].headers["x-attempts"] == 2
    assert written(again).pending


def test_doubt_is_from_when_the_pos_was_last_sent_it() -> None:
    entry = written(decided(Outcome(Kind.IN_DOUBT)))
    assert entry.doubt_since == entry.at
    asked = decided(Outcome(Kind.IN_DOUBT), sending=False, doubt_since=5.0)
    assert written(asked).doubt_since == 5.0
    sent_again = written(decided(Outcome(Kind.IN_DOUBT), doubt_since=5.0))
    assert sent_again.doubt_since == sent_again.at
    refused = decided(Outcome(Kind.RETRY), doubt_since=5.0)
    assert written(refused).doubt_since == 5.0


def test_an_end_leaves_no_doubt() -> None:
    entry = written(decided(Outcome(Kind.ACCEPTED), doubt_since=5.0, pending=True))
    assert (entry.doubt_since, entry.pending) == (None, False)


@pytest.mark.parametrize("attempts", ["7", -1, None, 2.5, []])
def test_a_history_that_makes_no_sense_counts_as_none(attempts: object) -> None:
    gate = Gateway(Settings(database_url="sqlite://"))
    gate.delivery = Crashing(LedgerUnavailable("away"))  # type: ignore[assignment]
    decision = deliver(
        gate, an_order("o1", "m"), headers={"x-attempts": attempts}, routing_key="orders"
    )
    assert decision.messages[0].headers["x-attempts"] == 1


@pytest.mark.parametrize("seconds", [3600, 1.5])
def test_while_the_database_is_away_an_order_comes_again_and_nothing_is_told(
    seconds: float,
) -> None:
    order, now = order_at(seconds)
    attempt = Attempt(Outcome(Kind.RETRY, Reason("database", "away")))
    decision = on_submission(order, attempt, MessageContext("orders", 0, now))
    assert kinds(decision.messages) == ["again"]
    assert not decision.entries


def test_an_order_that_has_ended_is_told_of_as_it_ended() -> None:
    order, now = order_at(60)
    ended = Ended(State.REJECTED, 1.0, REASON, "x1", AttemptHistory(attempts=3, told="rejected"))
    decision = on_submission(
        order, Attempt(ended.outcome, ended=ended), MessageContext("orders", 0, now)
    )
    assert decision.outcome.kind is Kind.REJECTED
    assert not (decision.entries or decision.messages)


@pytest.mark.parametrize("state", [State.FAILED, State.EXPIRED])
def test_what_was_set_aside_is_set_aside_again(state: State) -> None:
    """Whoever wrote its end may have died before that."""
    order, now = order_at(60)
    ended = Ended(state, 1.0, REASON, None, AttemptHistory(attempts=1, told=state.value))
    attempt = Attempt(ended.outcome, ended=ended)
    messages = on_submission(order, attempt, MessageContext("orders", 0, now)).messages
    assert kinds(messages) == ["orders.dead"]


def test_what_an_operator_has_reopened_ends_in_another_event() -> None:
    first = event_id(decided(Outcome(Kind.ACCEPTED)))
    second = event_id(decided(Outcome(Kind.ACCEPTED), reopened=1))
    assert first != second


def test_the_merchants_wish_to_be_left_alone_is_granted() -> None:
    for _ in range(50):
        [message] = following(Outcome(Kind.RETRY, retry_after=64))
        assert message.delay >= 64


def test_an_order_that_another_worker_has_is_looked_at_again_soon() -> None:
    """And its merchant has not asked to be left alone."""
    order, now = order_at(3600)
    decision = on_submission(order, Attempt(held()), MessageContext("orders", 20, now))
    assert HELD_FOR <= decision.messages[0].delay <= 2 * HELD_FOR
    assert decision.outcome.retry_after is None


@pytest.mark.parametrize("seconds", [3.0, 0.2, -60.0])
def test_an_order_that_could_not_be_tried_is_back_by_its_deadline(seconds: float) -> None:
    order, now = order_at(seconds)
    outcome = Outcome(Kind.RETRY, Reason("database", "it is away"))
    for _ in range(50):
        decision = on_submission(order, Attempt(outcome), MessageContext("orders", 20, now))
        assert decision.messages[0].delay <= max(1.0, seconds)


def test_a_mistake_of_ours_sets_the_order_aside_and_says_so(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda _: None)
    gate.directory = Crashing(ZeroDivisionError("oops"))  # type: ignore[assignment]
    gate.delivery._directory = gate.directory
    with capture_logs() as logs:
        decision = deliver(gate, gate.an_order(), headers={}, routing_key="orders")
    [dead] = decision.messages
    assert dead.headers["x-reason-code"] == "internal_error"
    assert "ZeroDivisionError" in str(logs)
    assert "oops" not in str(logs)
    entry = written(decision)
    assert (entry.state, told(decision)) == (State.FAILED, "failed")
    assert entry.reason is not None
    assert entry.reason.message == "ZeroDivisionError"  # its words may be the order's


def test_the_same_outcome_told_twice_is_the_same_event() -> None:
    first, second = (event_id(decided(Outcome(Kind.ACCEPTED))) for _ in range(2))
    assert first == second
    assert event_id(decided(Outcome(Kind.REJECTED))) != first


def test_whatever_is_published_of_an_order_says_which_trace_it_is_in() -> None:
    """Its messages the one that it came with, its events the attempt's."""
    cause, attempt = (TraceContext(f"00-{'a' * 32}-{each * 16}-01", "x=y") for each in "bc")
    order, now = order_at(3600)
    context = MessageContext("orders", 0, now, cause, attempt)
    claim = Claim(Key("m", "o1"), "worker", 1, 1, AttemptHistory(), sending=True)
    for kind in Kind:
        outcome = Outcome(kind, REASON, for_operator=kind is Kind.IN_DOUBT)
        decision = on_submission(order, Attempt(outcome, claim, called=True), context)
        event = written(decision).event
        assert event is None or event.trace == attempt
        assert event is not None or decision.messages
        for message in decision.messages:
            assert TraceContext.of(message.headers) == cause
    wish = CancelRequest.parse(
        {"order_id": "o1", "merchant_id": "m", "deliver_by": order.deliver_by}
    )
    cancel = replace(claim, key=replace(claim.key, action=Action.CANCEL))
    again = on_cancellation(wish, CancelAttempt(Outcome(Kind.RETRY, REASON), cancel), context)
    assert [TraceContext.of(message.headers) for message in again.messages] == [cause]
    first = CancelAttempt(Outcome(Kind.CANCELLED), cancel, claim)  # than the order
    [(_, ended)] = on_cancellation(wish, first, context).entries
    assert ended.event is not None and ended.event.trace == attempt
    for nothing in (on_no_order, on_no_request):
        decision = nothing({"order_id": "o1", "merchant_id": "m"}, REASON, context)
        assert [TraceContext.of(message.headers) for message in decision.messages] == [cause]
        told = decision.event_records[0].entry.event if decision.event_records else None
        assert told is None or told.trace == attempt


def test_the_reason_names_the_fields_that_are_wrong_and_not_what_stands_there() -> None:
    gate = Gateway(Settings(database_url="sqlite://"))
    record = an_order("o1", "m", customer={"phone": 4915550142857}, total=float("nan"))
    decision = deliver(gate, record, headers={}, routing_key="orders")
    [dead] = decision.messages
    assert "customer.phone" in dead.headers["x-reason"]
    assert "4915550142857" not in dead.headers["x-reason"]
    [telling] = decision.event_records
    assert telling.body is not None
    kept = json.loads(telling.body, parse_constant=pytest.fail)  # NaN is not JSON
    assert kept["total"] == "NaN"
