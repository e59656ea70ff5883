"""A strict Clover with one shop, and the adapter on the way there: step by step, or behind a gate."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pos_gateway.adapters.testing.walk import Walker
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Request
from testkit.vendors.clover import simulator
from testkit.vendors.facts import OrderFacts
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.vendors import CLOVER
from tests.gate import Gate

#: Attempts until an order is out of doubt, and seconds between two.
_ATTEMPTS, _SECONDS = 6, 30


class Shop(OrderFacts):
    """A merchant at Clover.

    Args:
        clock: the present.
    """

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._ahead, self._clock = timedelta(), clock
        self.clover = simulator(lambda: self._clock() + self._ahead)
        super().__init__(self.clover)
        self.knobs, self.staff = self.clover.knobs, self.clover.restaurant
        self.way = Way(self)
        self.send = VendorSend(self.way, {"Authorization": "Bearer api-token", "User-Agent": "x/1"})
        self.merchant: Merchant = CLOVER.merchant
        #: Statuses of refusals by the end of the path: those requests are not carried out.
        self.refuses: dict[str, int] = {}
        #: Acts before a request with this method and end of the path, each once.
        self.before: dict[tuple[str, str], Callable[[], object]] = {}

    def answer(self, request: VendorRequest) -> VendorReply:
        """As Clover does, unless a test says otherwise."""
        for (method, path), act in list(self.before.items()):
            if request.method == method and request.path.endswith(path):
                del self.before[method, path]
                act()
        refusal = next((each for each in self.refuses if request.path.endswith(each)), None)
        if refusal is not None and request.method != "GET":
            return VendorReply(self.refuses[refusal], {"message": "no\nway"})
        return self.clover.answer(request)

    def passes(self, seconds: float) -> None:
        self._ahead += timedelta(seconds=seconds)

    def walker(self, order: Order) -> Walker:
        assert CLOVER.adapter.check(self.merchant) == []
        return Walker(CLOVER.adapter, order, self.merchant, self.send)

    def submit(self, order: Order) -> Outcome:
        """The first attempt."""
        return self.walker(order).forward()

    def delivered(self, order: Order, walker: Walker | None = None) -> Outcome:
        """The outcome in the end, or while it does not change."""
        walker = walker or self.walker(order)
        for _ in range(_ATTEMPTS):
            outcome = walker.forward(asks=True)
            is_open = outcome.kind in (Kind.IN_DOUBT, Kind.RETRY, Kind.PENDING)
            if not is_open or outcome.for_operator:
                break
            self.passes(_SECONDS)
        return outcome

    def look_up(self, order: Order) -> Outcome | None:
        """The order's creation, without any fact."""
        return CLOVER.look_up(order, self.send, self.merchant)

    def meet(self, what: Any, method: str, path: str = ".*", **trouble: Any) -> None:
        """Have a trouble on the way; ``path`` below the merchant."""
        whole = f"/v3/merchants/M1/{path}"
        self.way.troubles.append(Trouble(what, method, whole, seconds=60, **trouble))

    def a_gate(self, folder: Path) -> Gate:
        """A gate with this POS; the shop is its merchant ``m``, imported by a release that wanted no time limit."""
        gate = Gate(folder, self._at_gate)
        self._clock = gate.clock.now
        record = {"id": "m", "base_url": "https://pos.example.com", "adapter": "clover"}
        MerchantStore(gate.database).put([Merchant.parse({**record, "pos": CLOVER.record["pos"]})])
        return gate

    def _at_gate(self, request: Request) -> Any:
        try:
            answer = self.send(request)
        except TransportError as error:
            return error
        return answer.status, json.loads(answer.body or b"{}")

    @property
    def standing(self) -> list[dict[str, Any]]:
        """The facts of all orders that are not deleted."""
        return [each for each in self.facts if not each["is_deleted"]]
