"""Retries that wait in a worker, by themselves."""

from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import leased_elsewhere
from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.worker.retries import LONGEST, TIMES, Retries

RETRY = Outcome(Kind.RETRY, contact=CallResult.FAILED)


def a_message(delay: int) -> Message:
    return Message("orders", "orders", b"", "o1", delay=delay)


@pytest.mark.parametrize(
    ("outcome", "delays", "taken"),
    [
        (RETRY, [1], True),
        (RETRY, [LONGEST], True),
        (RETRY, [LONGEST + 1], False),
        (RETRY.after(CallResult.OVERLOADED), [2], True),
        (replace(RETRY, retry_after=1.0), [1], False),
        (leased_elsewhere(), [2], False),  # another worker may get it
        (Outcome(Kind.ACCEPTED, contact=CallResult.ANSWERED), [], False),
        (Outcome(Kind.FAILED, contact=CallResult.ANSWERED), [0], False),  # a dead letter
        (Outcome(Kind.IN_DOUBT, contact=CallResult.TIMED_OUT), [0, 3], True),
    ],
)
def test_a_retry_that_is_due_soon_waits_here_unless_the_merchant_asked_for_the_delay(
    outcome: Outcome, delays: list[int], taken: bool
) -> None:
    decision = Decision(outcome, messages=[a_message(delay) for delay in delays])
    assert Retries(1).takes(an_order(), decision) is taken


def test_other_messages_are_published() -> None:
    decision = Decision(RETRY, messages=[a_message(0), a_message(2)])
    assert decision.again == a_message(2)
    assert decision.without_again().messages == [a_message(0)]


def test_the_number_of_waiting_retries_is_bounded() -> None:
    retries, decision = Retries(2), Decision(RETRY, messages=[a_message(1)])
    retries.keep(an_order(), a_message(1), 0.0)
    assert retries.takes(an_order(), decision)
    retries.keep(an_order(), a_message(1), 0.0)
    assert not retries.takes(an_order(), decision)
    retries.due(1.0)
    assert retries.takes(an_order(), decision)


def test_a_delivery_has_a_bounded_number_of_retries_in_the_worker() -> None:
    retries, order = Retries(2), an_order()
    pending = Outcome(Kind.PENDING, contact=CallResult.ANSWERED)
    decision = Decision(pending, messages=[a_message(3)])
    for _ in range(TIMES):
        assert retries.takes(order, decision)
        retries.keep(order, a_message(3), 0.0)
        retries.due(3.0)
    assert not retries.takes(order, decision)


def test_each_retry_is_due_after_its_delay() -> None:
    retries, first, second, third = Retries(3), an_order(), an_order(), an_order()
    retries.keep(second, a_message(3), 10.0)
    retries.keep(first, a_message(1), 10.5)
    retries.keep(third, a_message(3), 10.0)
    assert retries.next_at == 11.5
    assert retries.due(11.4) == []
    assert retries.due(11.5) == [first]
    assert first.become.call_args[0][0] == a_message(1)
    assert retries.due(13.0) == [second, third]
    assert (len(retries), retries.next_at) == (0, inf)


def test_a_dropped_retry_leaves_its_message_unchanged() -> None:
    retries, order = Retries(1), an_order()
    retries.keep(order, a_message(1), 0.0)
    assert retries.drop() == [order]
    assert not order.become.called
    assert (len(retries), retries.drop()) == (0, [])


def an_order() -> Any:
    return Mock(spec=["become", "kept"], kept=0)
