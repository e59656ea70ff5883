"""A strict Square as the POS of a gate, with troubles by the method of a request."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.steps import several_steps
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.exchange import Request
from testkit.vendors.square import simulator
from testkit.vendors.square.seller import Json, Kept
from testkit.vendors.way import arrived
from tests.adapters.vendors import SQUARE
from tests.gate import Gate


class Till:
    """A seller at Square whose account adds a tax to each order.

    Args:
        tax: its percentage; None: there is none.
    """

    def __init__(self, tax: str | None = "9") -> None:
        self.gate: Gate | None = None
        self._calls = 0
        self.square = simulator(self._now, currency="EUR")
        knobs = self.square.knobs
        knobs.needs_recipient, knobs.shop_tax, knobs.adds_tax_unasked = False, tax, True
        self._token = self.square.access.grant()["access_token"]
        #: What to answer in place of the reply to a method, also with the end of the path ("POST
        #: payments"): once each, after it was done.
        self.loses: list[tuple[str, Any]] = []
        #: Replies to a method, which is not done.
        self.refuses: list[tuple[str, Any]] = []

    def __call__(self, request: Request) -> Any:
        method = "SEARCH" if request.is_search else request.method
        names = (method, f"{method} {request.url.rpartition('/')[2]}")
        for answers in (self.refuses, self.loses):
            answer = next((each for each in answers if each[0] in names), None)
            if answer is not None:
                answers.remove(answer)
                if answers is self.loses:
                    self._answered(request)
                return answer[1]
        return self._answered(request)

    def a_gate(self, folder: Path) -> Gate:
        """A gate with this POS; its merchant ``m`` is the seller."""
        self.gate = Gate(folder, self)
        record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "square"}
        MerchantStore(self.gate.database).put([Merchant.parse({**record, **SQUARE.record})])
        return self.gate

    def change(self, **fields: Any) -> None:
        """As a shop does."""
        self.kept.order.update(fields, version=self.order["version"] + 1)

    def fulfil(self, state: str) -> None:
        """As a shop does."""
        [fulfillment] = self.order["fulfillments"]
        self.change(fulfillments=[{**fulfillment, "state": state}])

    def calls_back(self) -> CallbackResult:
        """Square's event that the fulfillment is cancelled."""
        assert self.gate is not None
        self._calls += 1
        merchant, adapter = self.gate.directory.get("m"), self.gate.adapters["square"]
        location, known_as = merchant.pos["location_id"], self.order["id"]
        said = Callback(
            str(self._calls),
            Kind.CANCELLED,
            external_id=known_as,
            account=("location_id", str(location)),
        )
        owners = {"m": (endpoint(merchant, adapter),)}
        ledger = CallbackLedger(self.gate.database, Payloads(Vault()), dehydrated, self.gate.clock)
        try:
            [applied] = ledger.apply(
                [Received("square", "m", said, owners, steps=several_steps(adapter))]
            )
        finally:
            ledger.close()
        return applied.result

    @property
    def kept(self) -> Kept:
        [kept] = self.square.seller.orders.values()
        return kept

    @property
    def order(self) -> Json:
        return self.kept.order

    @property
    def state(self) -> object:
        return self.order["state"]

    def _answered(self, request: Request) -> tuple[int, object]:
        sent = request.adding({"Authorization": f"Bearer {self._token}"})
        answer = self.square.answer(arrived(sent.method, sent.url, sent.headers, sent.body or b""))
        return answer.status, answer.body

    def _now(self) -> datetime:
        return datetime.now(UTC) if self.gate is None else self.gate.clock.now()
