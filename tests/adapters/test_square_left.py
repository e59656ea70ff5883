"""Square orders whose cancellation or undo is given up, and orders that are left to an operator.

==================================================  ==============================================
adversary                                           promise
==================================================  ==============================================
a cancellation half done, then Square is away       published as cancelled, with what is left
an undo that Square never answers, and its callback the callback ends the order
the same, and a cancel request                      the request is answered at once
an operator who accepts while workers undo          gets the reason why not
a cancel request for an order typed in by hand      not cancelled: Square does not have it
an order left to an operator, and its message again nothing is undone while it has time
==================================================  ==============================================
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.administration.resolve import STILL_UNDONE, Resolution
from pos_gateway.domain.errors import AdminError
from pos_gateway.domain.split import Split
from pos_gateway.ledger.callback_rules import CallbackResult
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import RESOLVE_FOR, Action
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import NotSent, NoValidReply
from tests.adapters.square_till import Till
from tests.gate import Gate

LOST = NoValidReply("timeout", "no reply in time")
FREE = {
    "items": [{"sku": "water", "name": "Water", "quantity": 1, "unit_price": 0}],
    "total": 0,
}


@pytest.fixture
def till() -> Till:
    return Till(tax=None)


@pytest.fixture
def gate(tmp_path: Path, till: Till) -> Gate:
    return till.a_gate(tmp_path)


def until_over(take: Callable[..., Any], gate: Gate) -> None:
    """Deliver a message until no retry follows."""
    decision = take()
    for _ in range(400):
        if decision.again is None:
            return
        gate.wait(decision.again.delay)
        decision = take(**dict(decision.again.headers))
    raise AssertionError("it is retried without end")


def accept(gate: Gate, known_as: str | None = None) -> None:
    """As an operator does."""
    admin = OrderAdmin(gate.database, Payloads(Vault()), gate.clock)
    resolution = Resolution(admin, None, "kim", Split(), gate.clock)  # type: ignore[arg-type]
    resolution.accepted(admin.find("o1", "m"), known_as)


@pytest.mark.parametrize(
    "trouble",
    [LOST, NotSent("refused", "no connection"), (503, {}), (401, {})],
    ids=["lost", "not sent", "503", "401"],
)
def test_a_cancellation_that_is_half_done_is_told_as_one_whatever_comes_last(
    gate: Gate, till: Till, trouble: Any
) -> None:
    gate.take(gate.an_order())
    till.refuses.append(("POST refunds", trouble))
    request = gate.a_request(seconds=60)
    decision = gate.take(request, Action.CANCEL)
    [fact] = till.square.facts()["orders"].values()
    assert fact["cancelled"]
    gate.pos = lambda _: trouble
    headers = dict(decision.again.headers) if decision.again else {}
    gate.wait(60)
    until_over(lambda **said: gate.take(request, Action.CANCEL, **(said or headers)), gate)
    assert gate.recorded()[1:] == [("cancelled", "not_refunded")]


def given_up(gate: Gate, till: Till) -> None:
    """An order at another price, which Square never says that it has cancelled."""
    till.square.knobs.shop_tax = Till().square.knobs.shop_tax
    till.refuses += [("PUT", (500, {}))] * 400
    order = gate.an_order(seconds=100)
    until_over(lambda **said: gate.take(order, **said), gate)
    # Its reason is the last attempt's: which one is last before the deadline, the retries' jitter says.
    assert [kind for kind, _ in gate.recorded()] == ["in_doubt"]
    gate.wait(RESOLVE_FOR)


def test_a_callback_ends_an_order_whose_undo_was_given_up(gate: Gate, till: Till) -> None:
    given_up(gate, till)
    till.fulfil("CANCELED")
    till.change(state="CANCELED")
    assert till.calls_back() is CallbackResult.APPLIED
    assert [kind for kind, _ in gate.recorded()] == ["in_doubt", "cancelled"]


def test_a_cancel_request_for_an_order_whose_undo_was_given_up_is_answered_at_once(
    gate: Gate, till: Till
) -> None:
    given_up(gate, till)
    assert gate.take_cancel(seconds=60).again is None
    assert gate.row_state(action="cancel") == "failed"


def test_an_order_is_not_accepted_while_workers_undo_it(gate: Gate, till: Till) -> None:
    """Until they have given up: then an operator decides."""
    till.square.knobs.shop_tax = Till().square.knobs.shop_tax
    till.refuses += [("PUT", (500, {}))] * 400
    gate.take(gate.an_order(seconds=100))
    assert till.calls_back() is CallbackResult.WAITING
    with pytest.raises(AdminError) as refused:
        accept(gate)
    assert str(refused.value) == STILL_UNDONE
    gate.wait(100 + RESOLVE_FOR)
    accept(gate)
    assert gate.recorded() == [("accepted", "resolved")]


@pytest.mark.parametrize("known_as", [None, "typed by hand"])
def test_an_order_that_square_does_not_have_is_not_cancelled_there(
    gate: Gate, till: Till, known_as: str | None
) -> None:
    gate.pos = lambda _: LOST
    order = gate.an_order(seconds=100)
    until_over(lambda **said: gate.take(order, **said), gate)
    accept(gate, known_as)
    gate.pos = till
    request = gate.a_request(seconds=60)
    until_over(lambda **said: gate.take(request, Action.CANCEL, **said), gate)
    assert gate.recorded()[1:] == [("accepted", "resolved"), ("accepted", "not_cancelled")]


def test_an_order_left_to_an_operator_is_undone_for_want_of_time_alone(
    gate: Gate, till: Till
) -> None:
    """Its first call was lost, and its second refused: it is paid, and in the kitchen."""
    till.loses.append(("POST pay", LOST))
    order = gate.an_order(seconds=3600, **FREE)
    gate.take(order)
    refusal = (400, {"errors": [{"code": "BAD_REQUEST", "detail": "already paid"}]})
    till.refuses.append(("POST pay", refusal))
    gate.wait(15)
    gate.take(order)
    told = gate.recorded()
    assert [kind for kind, _ in told] == ["in_doubt"]
    gate.wait(60)
    assert gate.take(order).again is None  # submitted again
    assert (gate.recorded(), till.order["state"]) == (told, "OPEN")
