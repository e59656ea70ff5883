"""Repeated cancel requests: which are terminal, and which are attempted again."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from pos_gateway.ledger.states import Action, Claim, Ended, State
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event

Workers = Callable[..., Worker]
CANCEL = replace(KEY, action=Action.CANCEL)


def ended(one: Worker, state: State) -> None:
    one.finish(claimed(one.claim(CANCEL, send=False, deliver_by=DAY + 60)), without_event(state))


@pytest.mark.parametrize("state", [each for each in State if each.is_final])
def test_an_expired_or_failed_request_with_a_later_deadline_is_attempted_again(
    worker: Workers, rows: Rows, state: State
) -> None:
    one = worker()
    ended(one, state)
    assert isinstance(one.claim(CANCEL, send=False, deliver_by=DAY + 60), Ended)
    again = one.claim(CANCEL, send=False, deliver_by=DAY + 61)
    if state not in (State.EXPIRED, State.FAILED):
        assert isinstance(again, Ended)
        return
    history = claimed(again).history
    assert (history.reopened, history.last_event, history.deliver_by) == (1, None, DAY + 61)
    row = rows.order(CANCEL)
    assert (row.state, row.reopened, row.deliver_by) == ("claimed", 1, DAY + 61)


def test_a_request_is_attempted_once_more_after_its_order_was_reopened(
    worker: Workers, rows: Rows, engine: Engine
) -> None:
    one = worker()
    one.finish(claimed(one.claim(KEY, send=True)), without_event(State.FAILED))
    ended(one, State.REJECTED)
    assert isinstance(one.claim(CANCEL, send=False, deliver_by=DAY + 60), Ended)
    with engine.begin() as connection:  # twice, as operators do
        text = "update orders set reopened = 2, state = 'new' where action = 'submit'"
        connection.exec_driver_sql(text)
    ended(one, State.REJECTED)
    assert isinstance(one.claim(CANCEL, send=False, deliver_by=DAY + 60), Ended)
    assert (rows.order(CANCEL).generation, rows.order(CANCEL).reopened) == (2, 1)


def test_a_first_request_is_for_the_current_generation(
    worker: Workers, rows: Rows, engine: Engine
) -> None:
    one = worker()
    one.finish(claimed(one.claim(KEY, send=True)), without_event())
    with engine.begin() as connection:
        connection.exec_driver_sql("update orders set reopened = 3")
    ended(one, State.CANCELLED)
    assert rows.order(CANCEL).generation == 3
    assert isinstance(one.claim(CANCEL, send=False, deliver_by=DAY + 60), Ended)


def test_two_open_requests_share_the_later_deadline(worker: Workers, rows: Rows) -> None:
    one = worker()
    one.finish(claimed(one.claim(KEY, send=True)), without_event())
    for seconds, until in ((60, 60), (600, 600), (60, 600)):
        claim = claimed(one.claim(CANCEL, send=False, deliver_by=DAY + seconds))
        one.finish(claim, without_event())
        assert rows.order(CANCEL).deliver_by == DAY + until
    one.clock.advance(120)
    assert claimed(one.claim(KEY, send=True)).history.cancelling


def test_an_order_keeps_its_first_deadline(worker: Workers, rows: Rows) -> None:
    """Its own deadline is not that of a later message."""
    one = worker()
    for seconds in (60, 600, 6):
        claim = claimed(one.claim(KEY, send=True, deliver_by=DAY + seconds))
        one.finish(claim, without_event())
    assert rows.order().deliver_by == DAY + 60
    one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    assert not isinstance(one.claim(KEY, send=True, deliver_by=DAY + 6000), Claim)
