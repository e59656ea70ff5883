"""docs/writing-an-adapter.md: its example adapter works."""

import json
import re
from pathlib import Path
from typing import Any

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.registry import GROUP
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from tests.adapters.scripted import Scripted, reply
from tests.orders import an_order

TEXT = (Path(__file__).parents[2] / "docs" / "writing-an-adapter.md").read_text()


def test_the_example_adapter_works() -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    adapter = names["AcmeAdapter"]()
    assert isinstance(adapter, Adapter)
    record = {"id": "m", "base_url": "https://pos.example.com", "pos": {"shop": "7"}}
    merchant = Merchant.parse({**record, "max_concurrency": 4, "request_timeout": 20})
    assert adapter.check(merchant) == []
    order = Order.parse(an_order())
    taken = reply(200, {"key": order.order_id, "state": "taken", "id": "1"})
    send = Scripted(taken)
    with_catalog = merchant.with_catalog({order.items[0].sku: "B7"})
    assert adapter.submit(order, with_catalog, send).kind is Kind.ACCEPTED
    assert json.loads(send.requests[0].body or b"")["items"] == [["B7", 2]]
    sold_out = adapter.submit(order, merchant, Scripted(reply(400, {"code": "SOLD_OUT"})))
    assert (sold_out.kind, sold_out.reason.code) == (Kind.REJECTED, "item_unavailable")
    assert adapter.look_up(order, merchant, Scripted(reply(404))) is None
    gone = {"key": order.order_id, "state": "gone", "id": "1"}
    assert adapter.cancel(order, merchant, Scripted(reply(200, gone))).kind is Kind.CANCELLED


def test_the_entry_points_group_is_the_codes() -> None:
    assert f'entry-points."{GROUP}"' in TEXT
