"""Toast, through the gateway: an order at another price is never accepted, nor left there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Request
from tests.adapters.toast_pos import ToastPos
from tests.adapters.vendors import TOAST, order_of, sku_of, toast_pos
from tests.gate import Gate

ITEMS = [{"sku": sku_of("burger"), "name": "Burger", "quantity": 2, "unit_price": 850}]
LOST = NoValidReply("timeout", "no reply in time")


def dearer() -> ToastPos:
    """A restaurant whose prices rise between the request for them and the create; staff fires orders."""
    return toast_pos(order_of(), turns={"tax": 9}, auto_fires=False)


def is_create(request: Request) -> bool:
    return request.method == "POST" and request.url.endswith("/orders")


def is_undoing(request: Request) -> bool:
    return request.url.endswith("/void")


class Till:
    """A POS, with one trouble."""

    def __init__(self, pos: ToastPos) -> None:
        self.pos = pos
        self.loses: Callable[[Request], bool] | None = None
        self.refuses: Any = None

    def __call__(self, request: Request) -> Any:
        if self.refuses is not None and is_undoing(request):
            refusal, self.refuses = self.refuses, None
            return refusal
        answer = self.pos(request)
        if self.loses is not None and self.loses(request):
            self.loses = None
            return LOST
        return answer.status, json.loads(answer.body or b"{}")


@pytest.fixture
def till(tmp_path: Path) -> tuple[Till, Gate]:
    till = Till(dearer())
    gate = Gate(tmp_path, till)
    record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "toast"}
    MerchantStore(gate.database).put([Merchant.parse({**record, **TOAST.record})])
    return till, gate


def test_it_is_undone_and_rejected_with_both_totals(till: tuple[Till, Gate]) -> None:
    pos, gate = till
    decision = gate.take(gate.an_order(items=ITEMS))
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert decision.outcome.reason is not None
    assert "1853" in decision.outcome.reason.message
    assert "1700" in decision.outcome.reason.message
    assert (len(pos.pos.orders), pos.pos.standing) == (1, [])


@pytest.mark.parametrize(
    "trouble",
    [
        {"loses": is_create},
        {"loses": is_undoing},
        {"refuses": LOST},
        {"refuses": NotSent("refused", "no connection")},
        {"refuses": (500, {})},
        {"refuses": (429, {})},
        {"refuses": (400, {"message": "not now"})},
    ],
)
def test_it_is_never_accepted_whatever_fails(
    till: tuple[Till, Gate], trouble: dict[str, Any]
) -> None:
    pos, gate = till
    vars(pos).update(trouble)
    order = gate.an_order(items=ITEMS, seconds=3600)
    gate.take(order)
    assert gate.recorded() == []
    for _ in range(4):
        gate.wait(60)
        gate.take(order)
        if gate.recorded():
            break
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert pos.pos.standing == []
