"""HubRise behind a whole gateway: orders that it has, and whose EPOS has not answered."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Kind
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.exchange import Request
from testkit.vendors.hubrise import simulator
from testkit.vendors.hubrise.api import HubRise
from testkit.vendors.way import arrived
from tests.adapters.vendors import HUBRISE
from tests.gate import Gate


class Location(Gate):
    """A gate whose merchant ``m`` is at a strict HubRise. The EPOS answers no order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, self._answer)
        self.hubrise: HubRise = simulator(self.clock.now)
        self.hubrise.knobs.arrives = "new"
        record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "hubrise"}
        merchant = Merchant.parse({**record, "pos": HUBRISE.record["pos"]})
        MerchantStore(self.database).put([merchant])

    def _answer(self, request: Request) -> Any:
        sent = request.adding({"X-Access-Token": "token-1"})
        reply = self.hubrise.answer(arrived(sent.method, sent.url, sent.headers, sent.body or b""))
        return reply.status, reply.body


@pytest.fixture
def gate(tmp_path: Path) -> Location:
    return Location(tmp_path)


def test_pending_orders_are_looked_up_by_hubrises_id_and_use_up_no_lists(gate: Location) -> None:
    """HubRise allows ten lists a minute, and 500 requests. A 429 would hold back the location's new orders."""
    records = [gate.an_order(f"o{number}", seconds=3600) for number in range(15)]
    for record in records:
        assert gate.take(record).outcome.kind is Kind.PENDING
    gate.wait(60)
    outcomes = [gate.take(record).outcome for record in records]
    assert {(each.kind, each.contact) for each in outcomes} == {(Kind.PENDING, CallResult.ANSWERED)}


def test_a_pending_order_that_no_list_has_yet_is_cancelled_in_truth(gate: Location) -> None:
    gate.hubrise.knobs.found_after = 60
    gate.take(gate.an_order())
    for seconds in (5, 20):
        gate.wait(seconds)
        gate.ledger.catch_up()
        gate.take_cancel()
    assert gate.recorded() == [("pending", None), ("cancelled", None)]
    assert [each["status"] for each in gate.hubrise.facts()] == ["cancelled"]
