"""What operators change: an order as they saw it, or nothing."""

import pytest
from sqlalchemy import Engine

from pos_gateway.domain.errors import OrderChanged
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
