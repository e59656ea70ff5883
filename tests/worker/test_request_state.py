"""The states of a request: their transitions, and what Celery shows in each."""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery.worker import state as celery

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.states import Action
from pos_gateway.worker.request import NEXT, IllegalTransition, OrderRequest, RequestState
from tests.worker.test_dispatcher import CONSUMER

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
AGAIN = Message("orders", "orders", b"", "order")
RETRY = Decision(Outcome(Kind.RETRY), messages=[AGAIN])
NEEDS_POS = Decision(Outcome(Kind.RETRY), needs_pos=True)


def a_request(state: RequestState = RequestState.ARRIVED) -> OrderRequest:
    message = SimpleNamespace(
        headers={"id": "order"},
        body=b"",
        delivery_info={"routing_key": "orders"},
        ack_log_error=Mock(),
    )
    task = SimpleNamespace(name="order", action=Action.SUBMIT)
    request = OrderRequest(message, [[], {}, {}], task, CONSUMER, 0.0)
    request.state = state
    return request


@pytest.fixture(autouse=True)
def celery_knows_none() -> None:
    celery.reset_state()


@pytest.mark.parametrize("after", RequestState)
@pytest.mark.parametrize("before", RequestState)
def test_only_the_tables_transitions_are_allowed(before: RequestState, after: RequestState) -> None:
    request = a_request(before)
    if after in NEXT[before]:
        request.enter(after)
        assert request.state is after
    else:
        with pytest.raises(IllegalTransition, match=before):
            request.enter(after)
        assert request.state is before


def test_every_state_is_reached_and_two_are_final() -> None:
    assert set().union(*NEXT.values()) == set(RequestState)
    ends = {state for state, after in NEXT.items() if not after}
    assert ends == {RequestState.ACKNOWLEDGED, RequestState.REQUEUED}


def test_acknowledging_follows_a_committed_outcome() -> None:
    """Or that of a copy, or a confirmed publish of its retry."""
    before = {state for state, after in NEXT.items() if RequestState.ACKNOWLEDGED in after}
    assert before == {RequestState.COMMITTED, RequestState.PARKING, RequestState.JOINED}


def test_the_drawing_has_the_same_transitions() -> None:
    section = ARCHITECTURE.read_text().partition("### The states of a request")[2]
    drawing = section.partition("stateDiagram-v2")[2].partition("```")[0]
    drawn = re.findall(r"^    (\w+) --> (\w+)$", drawing, re.MULTILINE)
    table = [(before, after) for before, all_after in NEXT.items() for after in all_after]
    assert sorted(drawn) == sorted(table)


def test_celery_shows_waiting_orders_as_reserved_and_attempted_ones_as_active() -> None:
    request = a_request()
    for step in ("waiting", "in_flight", "committed", "acknowledged"):
        request.enter(RequestState(step))
        assert (request in celery.reserved_requests) is (step != "acknowledged"), step
        is_active = step not in ("waiting", "acknowledged")
        assert (request in celery.active_requests) is is_active, step
    assert not celery.requests


def test_celery_shows_a_cancel_request_that_needs_its_pos_as_neither_until_it_waits() -> None:
    request = a_request()
    for step in ("waiting", "in_flight"):
        request.enter(RequestState(step))
        assert request in celery.reserved_requests, step
    request.decision = NEEDS_POS
    request.start_over()
    assert request not in celery.reserved_requests
    assert request not in celery.active_requests
    assert (request.needs_pos, request.decision) == (True, None)
    request.enter(RequestState.WAITING)
    assert request in celery.reserved_requests


def test_a_cancel_request_needs_its_pos_for_one_attempt() -> None:
    request = a_request(RequestState.IN_FLIGHT)
    request.decision = NEEDS_POS
    request.start_over()
    request.enter(RequestState.IN_FLIGHT)
    request.decision, request.again = RETRY, AGAIN
    request.enter(RequestState.RETRY_WAITING)
    assert request.needs_pos
    request.start_over()
    assert (request.needs_pos, request.decision, request.again) == (False, None, None)


def test_celery_shows_a_retry_that_waits_as_reserved_only() -> None:
    request = a_request(RequestState.IN_FLIGHT)
    celery.task_reserved(request)
    celery.task_accepted(request)
    request.enter(RequestState.RETRY_WAITING)
    assert request in celery.reserved_requests
    assert request not in celery.active_requests
    request.start_over()
    assert request not in celery.reserved_requests
