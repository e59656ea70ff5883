"""What an operator reads of an order's steps at its POS."""

from typing import Any

import pytest

from pos_gateway.administration.order_steps import step_words, steps_at_pos
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import RESOLVE_FOR, Action, State
from testkit.steps.adapters import PrintedAdapter

STEPS = PrintedAdapter.steps
ORDER: dict[str, Any] = {
    **dict.fromkeys(OrderStanding.__dataclass_fields__),
    "merchant_id": "m",
    "order_id": "o",
    "action": Action.SUBMIT,
    "reopened": 0,
    "external_id": "K-77",
    "updated_at": 200.0,
}
DOUBT = {"state": State.IN_DOUBT, "doubt_since": 100.0}
LEFT = {**DOUBT, "reason_code": "not_undone", "last_event": "in_doubt"}
#: The time, and a deadline after which workers have given up.
NOW = 9000.0
OVER = {"deliver_by": NOW - RESOLVE_FOR}
CLAIMED = {"state": State.CLAIMED, "doubt_since": 100.0}
#: Pending in a later step.
TICKET = {"state": State.PENDING, "doubt_since": 100.0}
SENDING = {"state": State.SENDING, "owner": "w", "lease": "w"}


@pytest.mark.parametrize(
    ("fields", "states", "since"),
    [
        ({"state": State.NEW}, "next later later", 200),
        ({"state": State.PENDING, "pending": True}, "pending later later", 200),
        (DOUBT, "in_doubt later later", 100),
        (SENDING, "sending later later", 200),
        ({**SENDING, "step": "0 pay"}, "taken sending later", 200),
        ({**SENDING, "lease": None, "step": "0 pay"}, "taken in_doubt later", 200),
        ({**SENDING, **CLAIMED, "step": "0 pay"}, "taken in_doubt later", 100),
        ({"state": State.PENDING, "pending": True, "step": "0 pay"}, "taken next later", 200),
        ({**DOUBT, "step": "0 print"}, "taken taken in_doubt", 100),
        ({"state": State.PENDING, "step": "0 -pay"}, "taken being_undone not_there", 200),
        ({**DOUBT, "step": "0 -create"}, "being_undone not_there not_there", 100),
        ({**LEFT, "step": "0 -pay"}, "taken not_undone not_there", 100),
        ({**DOUBT, **OVER, "step": "0 -pay"}, "taken not_undone not_there", 100),
        ({**TICKET, "step": "0 print"}, "taken taken pending", 100),
        ({"state": State.NEW, "step": "7 pay"}, "next later later", 200),
        ({"state": State.ACCEPTED}, "taken taken taken", None),
        ({"state": State.REJECTED, "was_made": True}, "not_there not_there not_there", None),
    ],
)
def test_each_step_stands_as_the_row_says(
    fields: dict[str, Any], states: str, since: float | None
) -> None:
    found = steps_at_pos(OrderStanding(**{**ORDER, **fields}), STEPS, NOW)
    assert [each.name for each in found] == ["create", "pay", "print"]
    assert " ".join(each.state for each in found) == states
    assert [each.since for each in found if each.since is not None] == [since] * (since is not None)


def test_an_order_of_a_single_step_has_none() -> None:
    order = OrderStanding(**{**ORDER, **DOUBT})
    assert steps_at_pos(order, STEPS[:1], NOW) == steps_at_pos(order, (), NOW) == []
    rejected = OrderStanding(**{**ORDER, "state": State.REJECTED})
    assert steps_at_pos(rejected, STEPS, NOW) == []


def test_a_step_of_an_adapter_that_is_not_known_here_is_named() -> None:
    order = OrderStanding(**{**ORDER, **DOUBT, "step": "0 send"})
    assert [each.name for each in steps_at_pos(order, STEPS, NOW)] == ["send"]


@pytest.mark.parametrize(
    ("fields", "known", "following"),
    [
        ({**DOUBT, "step": "0 pay"}, "K-77: create. Whether pay is there", "The POS is asked for it"),
        ({**DOUBT, "step": "0 print"}, "pay. Whether print is there", "Ask the merchant. If the"),
        ({**DOUBT, "step": "0 pay", "reason_code": "blind"}, "pay is there", "Ask the merchant."),
        ({"state": State.PENDING, "step": "0 pay"}, "create. The step pay is next.", "it is undone."),
        ({**SENDING, "step": "0 pay"}, "The step pay may be sent at this moment.", ""),
        ({"state": State.PENDING, "step": "0 -pay"}, "create and pay. The step pay is being", "nothing of it"),
        ({**LEFT, "step": "0 -pay"}, "create and pay. The POS has not undone pay.", "ends as cancelled"),
        ({**TICKET, "step": "0 print"}, "The POS has print, too, and has not completed it.", "is asked"),
    ],
)  # fmt: skip
def test_an_order_that_is_at_the_pos_in_part_is_in_words(
    fields: dict[str, Any], known: str, following: str
) -> None:
    order = OrderStanding(**{**ORDER, **fields})
    said = step_words(order, steps_at_pos(order, STEPS, NOW))
    assert said is not None
    assert known in said.known
    assert following in said.following
    assert said.is_asked == ("is asked" in following)
    assert bool(said.following) == bool(following)


def test_an_order_before_its_second_step_needs_no_words() -> None:
    for fields in ({"state": State.NEW}, DOUBT, {"state": State.ACCEPTED}):
        order = OrderStanding(**{**ORDER, **fields})
        assert step_words(order, steps_at_pos(order, STEPS, NOW)) is None
