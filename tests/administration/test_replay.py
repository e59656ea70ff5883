"""Which orders are replayed with new time."""

import pytest

from pos_gateway.administration.replay import _require_replayable
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import State
from tests.administration.test_extend import OPEN


def test_an_order_that_is_being_undone_is_replayed_without_new_time_alone() -> None:
    """Its letter may be its only message."""
    order = OrderStanding(**{**OPEN, "state": State.PENDING, "reopened": 0, "step": "0 -pay"})
    _require_replayable(order, has_new_time=False)
    with pytest.raises(AdminError, match="is being undone"):
        _require_replayable(order, has_new_time=True)
