"""What is pruned of terminal orders, and how much at a time."""

import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, insert, select

from pos_gateway.database.schema import audit
from pos_gateway.ledger.pruning import TOMBSTONE, UNSEEN, present, prune_orders
from pos_gateway.ledger.states import FINAL, Action, Key, State
from tests.ledger.lab import DAY, Rows, Worker, claimed, without_event


def test_orders_are_pruned_in_bounded_batches_and_open_ones_never(
    engine: Engine, rows: Rows, worker: Callable[..., Worker]
) -> None:
    one = worker()
    for number, state in enumerate([*State] * 3):
        key = Key("m", f"o{number:02}")
        claim = claimed(one.claim(key, send=True, deliver_by=DAY, order=b"{}"))
        if not state.is_leased:
            one.finish(claim, without_event(state))
    counts = list(prune_orders(engine, DAY + 10, batch=2))
    assert all(sum(each) <= 2 for each in counts)
    assert (sum(e for e, _ in counts), sum(r for _, r in counts)) == (3 * len(FINAL), 0)
    for row in rows.orders():
        assert (row.payload is None) is State(row.state).is_final
    counts = list(prune_orders(engine, DAY + 10 + TOMBSTONE, batch=2))
    assert sum(r for _, r in counts) == 3 * len(FINAL)
    left = [State(row.state) for row in rows.orders()]
    assert len(left) == 3 * (len(State) - len(FINAL))
    assert not any(state.is_final for state in left)


def test_a_fast_clock_ages_no_order(engine: Engine) -> None:
    """SQLite has no other clock."""
    ahead, now = time.time() + 90 * 86_400, time.time()
    seen = present(engine, ahead)
    assert seen == ahead if engine.dialect.name == "sqlite" else abs(seen - now) < 3600
    assert present(engine, now - 7200) == now - 7200


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_cancel_request_without_a_message_does_not_keep_its_order(
    engine: Engine, rows: Rows, worker: Callable[..., Worker], is_leased: bool
) -> None:
    one, cancel = worker(), Key("m", "o1", Action.CANCEL)
    claim = claimed(one.claim(Key("m", "o1"), send=True, deliver_by=DAY, order=b"{}"))
    one.finish(claim, without_event(State.ACCEPTED))
    wish = claimed(one.claim(cancel, send=False, deliver_by=DAY + 100))
    if not is_leased:
        one.finish(wish, without_event(State.NEW))
    list(prune_orders(engine, DAY + 50))
    assert all(row.payload for row in rows.orders() if row.action == "submit")
    list(prune_orders(engine, DAY + 101))
    assert [row.payload for row in rows.orders()] == [None, None]
    list(prune_orders(engine, DAY + 101 + TOMBSTONE))
    assert rows.orders() == []


def test_an_order_that_was_cancelled_and_never_arrived_stays_cancelled_for_a_year(
    engine: Engine, rows: Rows, worker: Callable[..., Worker]
) -> None:
    one, cancel = worker(), Key("m", "o1", Action.CANCEL)
    for key, until in ((Key("m", "o1"), None), (cancel, DAY)):
        claim = claimed(one.claim(key, send=False, deliver_by=until))
        one.finish(claim, without_event(State.CANCELLED))
    list(prune_orders(engine, DAY + 10 + TOMBSTONE))
    assert len(rows.orders()) == 2
    list(prune_orders(engine, DAY + 10 + TOMBSTONE + UNSEEN))
    assert rows.orders() == []


def test_what_programs_did_is_pruned_from_the_audit_and_what_people_did_stays(
    engine: Engine,
) -> None:
    row = {"operator": "x", "merchant_id": "m", "order_id": "o", "details": ""}
    done = (
        "orders.cancel",
        "events.reveal",
        "orders.reveal",
        "callback.accepted",
        "callbacks",
        "resolve",
    )
    with engine.begin() as connection:
        lines = [{**row, "what": what, "at": at} for at in (DAY, DAY + 9) for what in done]
        connection.execute(insert(audit), lines)
    list(prune_orders(engine, DAY + 1, batch=1))
    with engine.connect() as connection:
        left = connection.execute(select(audit.c.what, audit.c.at).order_by(audit.c.id)).all()
    assert [what for what, at in left if at == DAY] == ["orders.reveal", "callbacks", "resolve"]
    assert [what for what, at in left if at != DAY] == list(done)
