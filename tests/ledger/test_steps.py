"""What the ledger keeps of an order's steps at its POS, whatever happens between two of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger import commits
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, Claim, State, StepMark
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event
from tests.ledger.test_failover import Standby, Standbys
from tests.ledger.test_unknown_commits import EVERYWHERE, break_at

Workers = Callable[..., Worker]
PAY, PRINT, UNPAY = StepMark(0, "pay"), StepMark(0, "print"), StepMark(0, "pay", is_undo=True)
HERE = "here"
REQUEST = replace(KEY, action=Action.CANCEL)


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "RETRY_AFTER", (0.0, 0.0))


@pytest.fixture
def standby(engine: Engine) -> Standbys:
    return lambda: Standby(engine)


@pytest.fixture
def one(worker: Workers) -> Worker:
    made = worker()
    made.beat()
    return made


def a_claim(one: Worker) -> Claim:
    return claimed(one.claim(KEY, send=True, deliver_by=DAY + 60, order=b"{}", endpoint=HERE))


def step(one: Worker, claim: Claim, mark: StepMark = PAY, progress: str = '{"a":1}') -> Claim:
    recorded = one.sending(claim, HERE, step=mark, progress=progress, external_id="K-1")
    assert recorded is not None
    return recorded


def doubt(since: float) -> Any:
    return without_event(State.IN_DOUBT, doubt_since=since, pending=True)


def test_a_step_is_durable_with_the_progress_before_it(one: Worker, rows: Rows) -> None:
    recorded = step(one, a_claim(one))
    row = rows.order()
    assert (row.state, row.step, row.facts, row.pending) == ("sending", "0 pay", '{"a":1}', True)
    assert (row.external_id, row.endpoint, row.doubt_since) == ("K-1", HERE, None)
    assert (recorded.sending, recorded.history.step, recorded.history.pending) == (True, PAY, True)
    assert one.progress(KEY, recorded.history) == b'{"a":1}'


def test_a_different_step_is_not_in_doubt_for_the_one_before(one: Worker, rows: Rows) -> None:
    """And the same one stays in doubt: its key may be forgotten before its next attempt."""
    assert one.finish(a_claim(one), without_event(State.IN_DOUBT, doubt_since=5.0))
    claim = step(one, a_claim(one))
    assert (rows.order().doubt_since, claim.history.doubt_since) == (None, None)
    assert one.finish(claim, doubt(7.0))
    assert rows.order().settling is not None
    again = step(one, a_claim(one))
    assert (rows.order().doubt_since, again.history.doubt_since) == (7.0, 7.0)
    later = step(one, again, PRINT)
    row = rows.order()
    assert (row.doubt_since, row.in_doubt_since, row.settling) == (None, None, None)
    assert later.history.doubt_since is None


def test_an_order_that_goes_on_keeps_its_step_and_one_that_ends_its_facts(
    one: Worker, rows: Rows
) -> None:
    claim = step(one, a_claim(one))
    assert one.finish(claim, without_event(State.PENDING, pending=True))
    assert (rows.order().step, rows.order().facts) == ("0 pay", '{"a":1}')
    claim = step(one, a_claim(one), PRINT, '{"a":2}')
    assert one.finish(claim, an_entry(progress='{"a":3}'))
    assert (rows.order().step, rows.order().facts) == (None, '{"a":3}')


@pytest.mark.parametrize(("mark", "sends"), [(PAY, False), (UNPAY, True)], ids=["forward", "undo"])
def test_no_further_step_is_sent_once_a_cancel_request_is_open(
    one: Worker, rows: Rows, mark: StepMark, sends: bool
) -> None:
    claim = a_claim(one)
    request = claimed(one.claim(REQUEST, send=False, deliver_by=DAY + 60))
    assert one.finish(request, without_event())
    recorded = step(one, claim, mark)
    assert (recorded.sending, recorded.history.cancelling) == (sends, not sends)
    row = rows.order()
    assert (row.state, row.step) == ("sending" if sends else "claimed", str(mark))
    assert one.finish(recorded, without_event(State.PENDING, pending=True)), "its claim holds"


def test_a_cancel_request_keeps_which_step_it_undoes(one: Worker, rows: Rows) -> None:
    assert one.finish(a_claim(one), an_entry())
    request = claimed(one.claim(REQUEST, send=False, deliver_by=DAY + 60))
    assert step(one, request, UNPAY).sending
    row = rows.order(REQUEST)
    assert (row.state, row.step, row.pending) == ("sending", "0 -pay", False)


def test_a_killed_worker_leaves_a_step_in_doubt_alone(worker: Workers, one: Worker) -> None:
    step(one, a_claim(one))
    two = worker(one.clock)
    two.beat()
    two.clock.advance(LEASE)
    two.beat()
    taken = claimed(two.claim(KEY, send=True))
    history = taken.history
    assert (history.in_doubt, history.step, history.facts) == (True, PAY, '{"a":1}')
    assert history.external_id == "K-1"
    assert one.sending(taken._replace(owner="other", epoch=1), HERE, step=PRINT) is None


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", sorted({name for name, _ in EVERYWHERE}))
def test_a_step_is_recorded_once_wherever_the_connection_breaks(
    one: Worker, rows: Rows, engine: Engine, statement: str, when: str
) -> None:
    breaking = break_at(one, statement, when)
    claim = step(one, step(one, a_claim(one)), PRINT, '{"a":2}')
    assert (rows.order().step, rows.order().facts) == ("0 print", '{"a":2}')
    assert one.finish(claim, an_entry())
    assert rows.order().state == "accepted"
    assert breaking.broke or statement in ("find", "leases", "take", "beat", "record")


def test_a_failover_that_loses_a_step_leaves_the_outcome_with_it(
    one: Worker, rows: Rows, standby: Standbys
) -> None:
    """Else its doubt would be the first step's, and the step be taken again."""
    claim = a_claim(one)
    before = standby()
    recorded = step(one, claim)
    before.promote(one)
    assert rows.order().step is None
    assert one.finish(recorded, doubt(7.0))
    assert (rows.order().step, rows.order().facts) == ("0 pay", '{"a":1}')


def test_a_failover_that_loses_the_order_leaves_both(
    one: Worker, rows: Rows, standby: Standbys
) -> None:
    before = standby()
    recorded = step(one, a_claim(one))
    before.promote(one)
    assert one.finish(recorded, doubt(7.0))
    row = rows.order()
    assert (row.step, row.facts, row.pending, row.doubt_since) == ("0 pay", '{"a":1}', True, 7.0)


def test_progress_is_sealed(worker: Workers, rows: Rows) -> None:
    one = worker()
    one._payloads = Payloads(Vault(new_key()))
    one.beat()
    claim = step(one, a_claim(one))
    assert '"a"' not in rows.order().facts
    assert one.progress(KEY, claim.history) == b'{"a":1}'
    assert one.finish(claim, an_entry(Kind.ACCEPTED, progress='{"a":2}'))
    assert '"a"' not in rows.order().facts
    assert Payloads(one._payloads.vault).open(KEY, rows.order().facts) == b'{"a":2}'


def test_a_lost_connections_statement_takes_no_step_back(one: Worker, rows: Rows) -> None:
    """PostgreSQL may run it late, when its repetition has succeeded and a later step is being sent."""
    claim = a_claim(one)
    step(one, step(one, claim), PRINT, '{"a":2}')
    one.sending(claim, HERE, step=PAY, progress='{"a":1}')  # as its lost connection has it
    assert (rows.order().step, rows.order().facts) == ("0 print", '{"a":2}')
