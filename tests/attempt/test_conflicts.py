"""A POS that answers a second create with a conflict because the first one is still running."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NoValidReply
from tests.adapters.vendors import SQUARE_PAID
from tests.gate import Gate

BUSY = (409, {"error": {"code": "in_progress", "message": "this key is being processed"}})
MERCHANT = {"id": "m", "base_url": "https://pos.example.com"}
SQUARE = {"adapter": "square", "pos": {"location_id": "L"}}
FOUND = {
    "id": "7",
    "state": "OPEN",
    "location_id": "L",
    "metadata": {"order_id": "o1"},
    "fulfillments": [{"uid": "F0", "state": "PROPOSED"}],
    "total_money": {"amount": 1700, "currency": "EUR"},
    **SQUARE_PAID,
}
EXISTS = (400, {"errors": [{"code": "BAD_REQUEST", "detail": "Order already exists"}]})


class SlowPos:
    """Does not answer the first create in time; ``order`` is its state by now."""

    def __init__(self, refusal: tuple[int, Any], nothing: tuple[int, Any]) -> None:
        self.creates = 0
        self.order: tuple[int, Any] | None = None
        self._refusal, self._nothing = refusal, nothing

    def __call__(self, request: Any) -> Any:
        if request.method == "GET" or request.url.endswith("/search"):
            return self.order or self._nothing
        if request.url.endswith("/payments"):
            return self._refusal  # paid, as the order shows
        self.creates += 1
        return NoValidReply("timeout", "no reply in time") if self.creates == 1 else self._refusal


@pytest.mark.parametrize(
    ("merchant", "pos", "made"),
    [
        ({}, SlowPos(BUSY, (404, {})), (200, {"status": "accepted", "id": "7"})),
        (
            SQUARE,
            SlowPos(EXISTS, (200, {})),
            (200, {"orders": [FOUND]}),
        ),
    ],
    ids=["rest", "square"],
)
def test_an_order_that_its_pos_is_still_creating_is_not_rejected(
    tmp_path: Path, merchant: dict[str, Any], pos: SlowPos, made: tuple[int, Any]
) -> None:
    gate = Gate(tmp_path, pos)
    MerchantStore(gate.database).put([Merchant.parse({**MERCHANT, **merchant})])
    order = gate.an_order()
    for seconds in (0, 2):
        gate.wait(seconds)
        gate.take(order)
        assert (gate.row_state(), gate.recorded()) == ("in_doubt", [])
    pos.order = made
    gate.wait(12)
    gate.take(order)
    assert (gate.recorded(), pos.creates) == ([("accepted", None)], 3)


def test_a_conflict_after_the_settling_time_is_a_rejection(tmp_path: Path) -> None:
    gate = Gate(tmp_path, SlowPos(BUSY, (404, {})))
    order = gate.an_order()
    gate.take(order)
    gate.wait(2)
    decided = gate.take(order)
    assert decided.again is not None
    assert decided.again.delay >= 10  # the POS may be at work on this create, too
    gate.wait(decided.again.delay)
    gate.take(order)
    assert gate.recorded() == [("rejected", "in_progress")]


def test_a_conflict_on_the_first_create_is_a_rejection(tmp_path: Path) -> None:
    gate = Gate(tmp_path, lambda request: BUSY if request.method == "POST" else (404, {}))
    gate.take(gate.an_order())
    assert gate.recorded() == [("rejected", "in_progress")]
