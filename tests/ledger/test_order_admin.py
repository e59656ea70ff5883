"""Order administration: an operator changes an order as it was when shown, or not at all."""

import pytest
from sqlalchemy import Engine, delete, update

from pos_gateway.database.schema import orders, workers
from pos_gateway.domain.errors import OrderChanged
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed, without_event


def test_an_order_that_ended_since_it_was_shown_is_not_reopened(engine: Engine, rows: Rows) -> None:
    """Its worker was slow and not dead: the epoch is the one shown, and the state is not."""
    one, order_admin = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    claim = claimed(one.claim(KEY, send=True))
    seen = order_admin.one(KEY)
    assert seen is not None and seen.state is State.SENDING
    assert one.finish(claim, an_entry())
    with pytest.raises(OrderChanged):
        order_admin.change(seen, without_event(State.NEW), operator="kim", what="x", details="")
    assert rows.order().state == State.ACCEPTED
    assert not isinstance(one.claim(KEY, send=True), Claim)  # no worker sends it again


def test_an_order_with_an_extended_deadline_keeps_its_external_id(
    engine: Engine, rows: Rows
) -> None:
    one, order_admin = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, without_event(State.PENDING, pending=True, external_id="K-77"))
    seen = order_admin.one(KEY)
    assert seen is not None
    order_admin.change(
        seen, without_event(State.PENDING, pending=True), operator="kim", what="x", details=""
    )
    assert rows.order().external_id == "K-77"


def test_an_order_in_flight_is_in_doubt_once_its_workers_lease_is_gone(engine: Engine) -> None:
    """Resolved before, its worker's outcome would be lost."""
    one, order_admin = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    claimed(one.claim(KEY, send=True))
    for lease, is_in_doubt in ((one.lease.id, False), (None, True)):
        if lease is None:
            with engine.begin() as connection:
                connection.execute(delete(workers))
        seen = order_admin.one(KEY)
        assert seen is not None
        assert (seen.state, seen.lease, seen.is_in_doubt) == (State.SENDING, lease, is_in_doubt)


def test_a_reopened_order_has_no_deaths(engine: Engine, rows: Rows) -> None:
    """Otherwise it would be poison again at its next worker's death, or at once."""
    one, order_admin = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry(Kind.FAILED))
    with engine.begin() as connection:
        connection.execute(update(orders).values(deaths=2, taken_from="gone-1"))
    seen = order_admin.one(KEY)
    assert seen is not None
    order_admin.change(seen, without_event(), operator="kim", what="x", details="", reopen=True)
    assert (rows.order().deaths, rows.order().taken_from) == (0, None)
    assert claimed(one.claim(KEY, send=True)).history.possible_deaths == 0


def test_long_audit_details_are_truncated(engine: Engine) -> None:
    """A foreign message's reason has any length, and is discarded all the same."""
    order_admin = OrderAdmin(engine, Payloads(Vault()))
    order_admin.note(KEY, operator="kim", what="dead.discard", details="x" * 2000)
    [line] = order_admin.audit(KEY)
    assert line["details"] == "x" * 512


def test_an_order_that_was_claimed_since_it_was_shown_is_not_changed(engine: Engine) -> None:
    """Its state is the one shown again, and the epoch is not."""
    one, order_admin = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    pending = without_event(State.PENDING, pending=True)
    assert one.finish(claimed(one.claim(KEY, send=True)), pending)
    seen = order_admin.one(KEY)
    assert seen is not None
    assert one.finish(claimed(one.claim(KEY, send=False)), pending)
    with pytest.raises(OrderChanged):
        order_admin.change(seen, pending, operator="kim", what="x", details="")
