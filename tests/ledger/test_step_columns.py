"""The columns of an order's step at the POS, which an attempt's claim reads."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, update

from pos_gateway.database.schema import orders
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.pruning import prune_orders
from pos_gateway.ledger.resealing import count_stale, reseal
from pos_gateway.ledger.states import Action, Entry, Key, State, StepMark
from pos_gateway.runtime.vault import Vault, new_key
from tests.ledger.lab import DAY, KEY, Rows, Worker, an_entry, claimed, without_event
from tests.ledger.test_callbacks import HERE, of

Workers = Callable[..., Worker]

FACTS = '{"id": "K-77", "version": 3}'
PENDING = without_event(State.PENDING, pending=True)
CANCEL = Key(KEY.merchant_id, KEY.order_id, Action.CANCEL)


def in_step(engine: Engine, mark: StepMark, facts: str = FACTS) -> None:
    """Write the columns as a release with steps does."""
    with engine.begin() as connection:
        connection.execute(update(orders).values(step=str(mark), facts=facts))


def columns(rows: Rows, key: Key = KEY) -> tuple[Any, Any]:
    row = rows.order(key)
    return row.step, row.facts


def between_steps(worker: Workers, engine: Engine, mark: StepMark) -> Worker:
    """A worker whose attempt has left the order in this step."""
    one = worker()
    one.beat()
    claim = claimed(one.claim(KEY, send=True, endpoint=HERE, order=b"{}"))
    assert one.finish(claim, PENDING)
    in_step(engine, mark)
    return one


PAY = StepMark(0, "pay")
MARKS = {
    "0 pay": PAY,
    "12 pay": StepMark(12, "pay"),
    "0 -create": StepMark(0, "create", is_undo=True),
}


@pytest.mark.parametrize(("text", "mark"), MARKS.items())
def test_a_mark_is_read_as_it_is_written(text: str, mark: StepMark) -> None:
    assert str(mark) == text
    assert StepMark.parse(text, mark.reopened) == mark
    assert StepMark.parse(f"{text} and more", mark.reopened) == mark
    assert StepMark.parse(text, mark.reopened + 1) is None


@pytest.mark.parametrize("text", [None, "", " ", "0", "x", "pay", "x pay", "-1 pay"])
def test_a_text_that_no_release_writes_is_no_mark(text: str | None) -> None:
    """An error would end each beat of the worker that has left the order."""
    assert StepMark.parse(text, 0) is None


def test_the_longest_mark_fits_its_column() -> None:
    longest = str(StepMark(2**31 - 1, "x" * 24, is_undo=True))
    assert len(longest) <= orders.c.step.type.length


def test_a_first_attempt_has_neither_step_nor_facts(worker: Workers, rows: Rows) -> None:
    claim = claimed(worker().claim(KEY, send=True))
    assert (claim.history.step, claim.history.facts) == (None, None)
    assert columns(rows) == (None, None)


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_the_next_attempt_finds_step_and_facts(
    worker: Workers, engine: Engine, rows: Rows, is_taken_over: bool
) -> None:
    """Also one that takes the order over, and one whose worker leaves it as it was."""
    one = between_steps(worker, engine, PAY)
    if is_taken_over:
        claimed(one.claim(KEY, send=True))
        one.clock.advance(LEASE)
        one = worker(one.clock)
        one.beat()
        one.clock.advance(LEASE)
        one.beat()
    for _ in range(2):
        claim = claimed(one.claim(KEY, send=True))
        assert (claim.history.step, claim.history.facts) == (PAY, FACTS)
        assert one.finish(claim, PENDING)
    assert columns(rows) == (str(PAY), FACTS)


def test_a_step_before_a_reopening_of_an_earlier_release_is_none(
    worker: Workers, engine: Engine
) -> None:
    """Which changes the number, and leaves the column that it does not know."""
    one = between_steps(worker, engine, PAY)
    with engine.begin() as connection:
        connection.execute(update(orders).values(reopened=1))
    assert claimed(one.claim(KEY, send=True)).history.step is None


def changed(engine: Engine, entry: Entry, **how: Any) -> None:
    admin = OrderAdmin(engine, Payloads(Vault()))
    seen = admin.one(KEY)
    assert seen is not None
    admin.change(seen, entry, operator="kim", what="x", details="", **how)


@pytest.mark.parametrize(
    ("entry", "how", "left"),
    [
        (PENDING, {"deliver_by": DAY + 9}, (str(PAY), FACTS)),
        (an_entry(), {}, (None, FACTS)),  # for a later cancel request
        (without_event(), {"reopen": True}, (None, None)),
    ],
    ids=["extended", "resolved", "reopened"],
)
def test_an_operator_leaves_a_step_only_of_an_order_that_goes_on(
    worker: Workers, engine: Engine, rows: Rows, entry: Entry, how: Any, left: Any
) -> None:
    between_steps(worker, engine, PAY)
    changed(engine, entry, **how)
    assert columns(rows) == left


def test_an_order_that_its_pos_ends_is_in_no_step(
    worker: Workers, engine: Engine, rows: Rows
) -> None:
    between_steps(worker, engine, PAY)
    ledger = CallbackLedger(engine, Payloads(Vault()), dehydrated)
    ledger.apply([of(Kind.ACCEPTED)])
    ledger.close()
    assert rows.order().state == State.ACCEPTED
    assert columns(rows) == (None, FACTS)


def test_pruning_removes_facts(worker: Workers, engine: Engine, rows: Rows) -> None:
    """Of the order, and of its cancel request, in which the undone step stands."""
    one = worker()
    for key, state in ((KEY, State.ACCEPTED), (CANCEL, State.NEW)):
        claim = claimed(one.claim(key, send=False, deliver_by=DAY))
        assert one.finish(claim, without_event(state))
    in_step(engine, StepMark(0, "create", is_undo=True))
    assert sum(emptied for emptied, _ in prune_orders(engine, DAY + 10)) == 2
    assert [columns(rows, key) for key in (KEY, CANCEL)] == [(None, None)] * 2


def test_facts_are_sealed_anew(worker: Workers, engine: Engine, rows: Rows) -> None:
    between_steps(worker, engine, PAY)
    old, new = new_key(), new_key()
    both = Payloads(Vault(f"{new},{old}"))
    list(reseal(engine, both))
    for facts in (FACTS, Payloads(Vault(old)).seal(KEY, FACTS.encode())):
        in_step(engine, PAY, facts)
        assert count_stale(engine, both) == 1
        assert sum(each.sealed for each in reseal(engine, both)) == 1
        assert count_stale(engine, both) == 0
        assert Payloads(Vault(new)).open(KEY, rows.order().facts) == FACTS.encode()
