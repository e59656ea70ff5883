"""What operators change: an order as they saw it, or nothing."""

import pytest
from sqlalchemy import Engine, update

from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import OrderChanged
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, State
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import KEY, Rows, Worker, an_entry, claimed, untold


def test_an_order_that_has_ended_since_it_was_looked_at_is_not_begun_anew(
    engine: Engine, rows: Rows
) -> None:
    """Its worker was slow and not dead: the epoch is the one that was seen, and the state is not."""
    one, desk = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    claim = claimed(one.claim(KEY, send=True))
    seen = desk.one(KEY)
    assert seen is not None and seen.state is State.SENDING
    assert one.finish(claim, an_entry())
    with pytest.raises(OrderChanged):
        desk.change(seen, untold(State.NEW), operator="kim", what="x", details="")
    assert rows.order().state == State.ACCEPTED
    assert not isinstance(one.claim(KEY, send=True), Claim)  # nobody sends it again


def test_an_order_that_is_given_new_time_keeps_the_id_that_its_pos_gave_it(
    engine: Engine, rows: Rows
) -> None:
    one, desk = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    claim = claimed(one.claim(KEY, send=True))
    assert one.finish(claim, untold(State.PENDING, pending=True, external_id="K-77"))
    seen = desk.one(KEY)
    assert seen is not None
    desk.change(seen, untold(State.PENDING, pending=True), operator="kim", what="x", details="")
    assert rows.order().external_id == "K-77"


def test_an_order_that_is_begun_anew_has_no_deaths_nor_any_that_may_be_one(
    engine: Engine, rows: Rows
) -> None:
    """It would be poison again at its next worker's death, or at once."""
    one, desk = Worker(engine), OrderAdmin(engine, Payloads(Vault()))
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry(Kind.FAILED))
    with engine.begin() as connection:
        connection.execute(update(orders).values(deaths=2, taken_from="gone-1"))
    seen = desk.one(KEY)
    assert seen is not None
    desk.change(seen, untold(), operator="kim", what="x", details="", reopen=True)
    assert (rows.order().deaths, rows.order().taken_from) == (0, None)
    assert claimed(one.claim(KEY, send=True)).past.possible_deaths == 0


def test_details_that_are_too_long_for_the_audit_are_cut(engine: Engine) -> None:
    """A foreign message may name a reason of any length, and is discarded all the same."""
    desk = OrderAdmin(engine, Payloads(Vault()))
    desk.note(KEY, operator="kim", what="dead.discard", details="x" * 2000)
    [line] = desk.audit(KEY)
    assert line["details"] == "x" * 512
