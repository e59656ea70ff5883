"""The states of a request: their transitions, and what Celery shows in each."""

import re
from pathlib import Path
from typing import Any

import pytest
from celery.worker import state as celery

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.worker.request import (
    NEXT,
    IllegalTransition,
    RequestState,
    TrackedRequest,
)

ARCHITECTURE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
AGAIN = Message("orders", "orders", b"", "order")
ACCEPTED = Decision(Outcome(Kind.ACCEPTED))
RETRY = Decision(Outcome(Kind.RETRY), messages=[AGAIN])
NEEDS_POS = Decision(Outcome(Kind.RETRY), needs_pos=True)
OTHERS = [state for state in RequestState if state is not RequestState.IN_FLIGHT]
#: What may follow a request: by its state, its decision, and the retry that this worker makes.
FOLLOW: list[tuple[tuple[Any, ...], set[Any]]] = [
    *(((state, known, None), {*NEXT[state]}) for state in OTHERS for known in (None, RETRY)),
    ((RequestState.IN_FLIGHT, None, None), {"decided", "requeued"}),
    ((RequestState.IN_FLIGHT, ACCEPTED, None), {"committed", "its retry", "requeued"}),
    ((RequestState.IN_FLIGHT, RETRY, AGAIN), {"retry_waiting", "requeued"}),
    ((RequestState.IN_FLIGHT, NEEDS_POS, None), {"arrived", "requeued"}),
]


class Request(TrackedRequest):
    id = name = "order"

    def __init__(self, *facts: Any) -> None:
        super().__init__()
        if facts:
            self.state, self.decision, self.again = facts

    def come_to(self, step: str) -> None:
        if step == "decided":
            self.decide(ACCEPTED)
        elif step == "its retry":
            self.retry_here(AGAIN)
        else:
            self.enter(RequestState(step))

    @property
    def facts(self) -> tuple[Any, ...]:
        return self.state, self.decision, self.again


@pytest.fixture(autouse=True)
def celery_knows_none() -> None:
    celery.reset_state()


@pytest.mark.parametrize("step", [*RequestState, "decided", "its retry"])
@pytest.mark.parametrize(("facts", "follow"), FOLLOW)
def test_only_the_tables_transitions_are_allowed(
    facts: tuple[Any, ...], follow: set[str], step: str
) -> None:
    request = Request(*facts)
    if step in follow:
        request.come_to(step)
    else:
        with pytest.raises(IllegalTransition, match=facts[0]):
            request.come_to(step)
    assert (request.facts == facts) is (step not in follow)


def test_every_state_is_reached_and_two_are_final() -> None:
    assert set().union(*NEXT.values()) == set(RequestState)
    attempts = [follow for (state, *_), follow in FOLLOW if state is RequestState.IN_FLIGHT]
    assert set().union(*attempts) - {"decided", "its retry"} == NEXT[RequestState.IN_FLIGHT]
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
    request = Request()
    for step in ("waiting", "in_flight", "decided", "committed", "acknowledged"):
        request.come_to(step)
        assert (request in celery.reserved_requests) is (step != "acknowledged"), step
        is_active = step not in ("waiting", "acknowledged")
        assert (request in celery.active_requests) is is_active, step
    assert not celery.requests


def test_celery_shows_a_cancel_request_that_needs_its_pos_as_neither_until_it_waits() -> None:
    request = Request()
    for step in ("waiting", "in_flight"):
        request.come_to(step)
        assert request in celery.reserved_requests, step
    request.decide(NEEDS_POS)
    request.start_over()
    assert request not in celery.reserved_requests
    assert request not in celery.active_requests
    assert (request.needs_pos, request.decision) == (True, None)
    request.enter(RequestState.WAITING)
    assert request in celery.reserved_requests


def test_a_cancel_request_needs_its_pos_for_one_attempt() -> None:
    request = Request(RequestState.IN_FLIGHT, NEEDS_POS, None)
    request.start_over()
    for step in ("in_flight", "decided", "its retry", "retry_waiting"):
        request.come_to(step)
        assert request.needs_pos, step
    request.start_over()
    assert (request.needs_pos, request.decision, request.again) == (False, None, None)


def test_celery_shows_a_retry_that_waits_as_reserved_only() -> None:
    request = Request(RequestState.IN_FLIGHT, RETRY, AGAIN)
    celery.task_reserved(request)
    celery.task_accepted(request)
    request.enter(RequestState.RETRY_WAITING)
    assert request in celery.reserved_requests
    assert request not in celery.active_requests
    request.start_over()
    assert request not in celery.reserved_requests
