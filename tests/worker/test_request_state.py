"""The states of a request: their transitions, and what Celery shows in each."""

import re
from itertools import product
from pathlib import Path

import pytest
from celery.worker import state as celery

from pos_gateway.worker.request_state import (
    NEXT,
    IllegalTransition,
    RequestState,
    TrackedRequest,
)

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
IN_FLIGHT = (RequestState.IN_FLIGHT, RequestState.DECIDED, RequestState.COMMITTED)
RESERVED = (
    RequestState.WAITING,
    RequestState.EXPIRED,
    RequestState.TO_CANCEL,
    RequestState.RETRY_WAITING,
)


class Request(TrackedRequest):
    id = name = "order"

    def __init__(self, state: RequestState = RequestState.ARRIVED) -> None:
        super().__init__()
        self.state = state


@pytest.fixture(autouse=True)
def celery_knows_none() -> None:
    celery.reset_state()


@pytest.mark.parametrize(("before", "after"), [*product(RequestState, RequestState)])
def test_only_the_tables_transitions_are_allowed(before: RequestState, after: RequestState) -> None:
    request = Request(before)
    if after in NEXT[before]:
        request.enter(after)
        assert request.state is after
    else:
        with pytest.raises(IllegalTransition, match=f"from {before} to {after}"):
            request.enter(after)
        assert request.state is before


def test_every_state_is_reached_and_two_are_final() -> None:
    assert set().union(*NEXT.values()) == set(RequestState)
    ends = {state for state, after in NEXT.items() if not after}
    assert ends == {RequestState.ACKNOWLEDGED, RequestState.REQUEUED}


def test_acknowledging_follows_a_committed_outcome() -> None:
    """Or that of a copy, or a confirmed publish of its retry."""
    before = {state for state, after in NEXT.items() if RequestState.ACKNOWLEDGED in after}
    shares = {RequestState.JOINED, RequestState.JOINED_LATE}
    assert before == {RequestState.COMMITTED, RequestState.PARKING, *shares}


def test_the_drawing_has_the_same_transitions() -> None:
    section = ARCHITECTURE.read_text().partition("### The states of a request")[2]
    drawing = section.partition("stateDiagram-v2")[2].partition("```")[0]
    drawn = re.findall(r"^    (\w+) --> (\w+)$", drawing, re.MULTILINE)
    table = [(before, after) for before, all_after in NEXT.items() for after in all_after]
    assert sorted(drawn) == sorted(table)


def test_celery_shows_waiting_orders_as_reserved_and_attempted_ones_as_active() -> None:
    request = Request()
    for state in (*RESERVED[:2], *IN_FLIGHT, RequestState.ACKNOWLEDGED):
        request.enter(state)
        assert (request in celery.active_requests) is (state in IN_FLIGHT), state
        shown = state in RESERVED or state in IN_FLIGHT
        assert (request in celery.reserved_requests) is shown, state
    assert not celery.requests


def test_celery_shows_a_cancel_request_that_needs_its_pos_as_neither_until_it_waits() -> None:
    request = Request()
    for state in (RequestState.TO_CANCEL, RequestState.IN_FLIGHT, RequestState.DECIDED):
        request.enter(state)
        assert request in celery.reserved_requests, state
    request.need_pos()
    assert request not in celery.reserved_requests
    assert request not in celery.active_requests
    assert request.decision is None
    request.enter(RequestState.WAITING)
    assert request in celery.reserved_requests


def test_celery_shows_a_retry_that_waits_as_reserved_only() -> None:
    request = Request(RequestState.RETRY_DUE)
    celery.task_reserved(request)
    celery.task_accepted(request)
    request.enter(RequestState.RETRY_WAITING)
    assert request in celery.reserved_requests
    assert request not in celery.active_requests
    request.start_over()
    assert request not in celery.reserved_requests
