"""Which orders get new time."""

from typing import Any

import pytest

from pos_gateway.administration.extend import require_extendable
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import Action, State

OPEN: dict[str, Any] = {
    **dict.fromkeys(OrderStanding.__dataclass_fields__),
    "merchant_id": "m",
    "order_id": "o",
    "action": Action.SUBMIT,
    "state": State.NEW,
}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"state": State.FAILED}, "replay it"),
        ({"state": State.ACCEPTED}, "needs no time"),
        ({"state": State.CLAIMED, "owner": "w-1", "lease": "w-1"}, "try again"),
        ({"state": State.SENDING, "owner": "w-1", "lease": "w-1"}, "try again"),
        ({"state": State.IN_DOUBT, "doubt_since": 1.0}, "in doubt"),
        ({"state": State.SENDING, "owner": "w-1"}, "in doubt"),
        ({"state": State.PENDING, "reopened": 0, "step": "0 -pay"}, "is being undone"),
        ({"cancellation": State.NEW}, "cancel request"),
    ],
)
def test_an_order_that_new_time_would_harm_gets_none(fields: dict[str, Any], why: str) -> None:
    """From a worker that has it, it would take the outcome."""
    require_extendable(OrderStanding(**OPEN))
    with pytest.raises(AdminError, match=why):
        require_extendable(OrderStanding(**{**OPEN, **fields}))
