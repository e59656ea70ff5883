"""The skeleton's adapter behind a whole gateway: an order at another price than agreed."""

import json
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.adapters.skeleton.adapter import SkeletonAdapter
from pos_gateway.adapters.skeleton.simulator import KEY, SHOP, SkeletonPos
from pos_gateway.adapters.testing import path_of
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Request
from tests.gate import Gate

SECRET = "a passphrase that is long enough"


@pytest.mark.parametrize("loses", [(), ("/order",), ("/void",), ("/order", "/void")])
def test_an_order_at_another_price_is_cancelled_and_refused(
    tmp_path: Path, loses: tuple[str, ...]
) -> None:
    """Its outcome has facts, by which the gateway undoes what stands; whatever reply is lost."""
    pos, left = SkeletonPos(), list(loses)
    pos.dearer(153)

    def answer(request: Request) -> Any:
        reply, path = pos(request), path_of(request)
        if path in left and request.method == "POST":
            left.remove(path)
            return NoValidReply("broken_off", "the connection was reset")
        return reply.status, json.loads(reply.body)

    gate = Gate(tmp_path, answer, settings={"secret_key": SECRET})
    record = {"id": "m", "adapter": "skeleton", "base_url": "https://pos.example.com"}
    own = {"auth": {"type": "api_key", "key": KEY}, "pos": {"shop": SHOP}, "request_timeout": 20}
    MerchantStore(gate.database, vault=Vault(SECRET)).put([Merchant.parse({**record, **own})])
    gate.adapters["skeleton"] = SkeletonAdapter()
    order = gate.an_order(seconds=3600)
    for _ in range(5):
        gate.take(order)
        gate.wait(60)
        gate.ledger.catch_up()
    assert left == []
    assert gate.recorded() == [("rejected", "price_mismatch")]
    assert [each["state"] for each in pos.orders] == ["void"]
