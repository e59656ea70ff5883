"""The POSes that the conformance suite tests the project's adapters against: in memory, strict, with their facts."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pos_gateway.adapters.testing import Made, json_of, json_reply, path_of
from pos_gateway.domain.order import Order
from pos_gateway.transport.exchange import Reply, Request
from testkit.steps.pos import StepPos
from testkit.vendors import clover, hubrise, square
from testkit.vendors.way import VendorSend, Way
from tests.adapters.vendors import toast_pos

Body = dict[str, Any]


class RestPos:
    """The reference API: keeps an order by its id, which is the key."""

    def __init__(self) -> None:
        self._orders: dict[str, Body] = {}

    def __call__(self, request: Request) -> Reply:
        match request.method, path_of(request).removeprefix("/api/orders").rpartition("/"):
            case "POST", ("", "", ""):
                said = json_of(request)
                known = self._orders.get(request.headers["Idempotency-Key"])
                known = known or {"id": f"R{len(self._orders)}", "status": "accepted", "said": said}
                self._orders[said["order_id"]] = known
                return json_reply(201, {**known, "said": None, "order_id": said["order_id"]})
            case "GET", (before, _, last):
                return self._shown(f"{before}/{last}".strip("/"))
            case "POST", (order_id, _, "cancel"):
                if order_id.strip("/") in self._orders:
                    self._orders[order_id.strip("/")]["status"] = "cancelled"
                return self._shown(order_id.strip("/"))
        return json_reply(404)

    def made(self, order: Order) -> list[Made]:
        """The order with our id."""
        found = self._orders.get(order.order_id)
        if found is None:
            return []
        return [Made(found["said"]["total"], is_cancelled=found["status"] == "cancelled")]

    def _shown(self, order_id: str) -> Reply:
        known = self._orders.get(order_id)
        return json_reply(404) if known is None else json_reply(200, {**known, "said": None})


class PosOfSteps:
    """``testkit.steps``: create, pay, print."""

    def __init__(self) -> None:
        self.pos = StepPos(lambda: 0.0)

    def __call__(self, request: Request) -> Reply:
        target = request.url.removeprefix("https://pos.example.com/api")
        key = request.headers.get("Idempotency-Key", "")
        asked = self.pos.asked(request.method, target, key, request.body or b"")
        if asked is None:
            return json_reply(404)
        return json_reply(*self.pos.do(asked, self.pos.arrived(asked)))

    def made(self, order: Order) -> list[Made]:
        """The orders with our id."""
        return [
            Made(
                each.total,
                sum(not payment.is_refunded for payment in each.payments),
                each.is_cancelled,
            )
            for each in self.pos.made(order.order_id)
        ]

    def dearer(self, minor: int) -> None:
        """Add so much to each total."""
        self.pos.adds = minor


class Facts(VendorSend):
    """A strict vendor, which has the facts of its orders."""

    __slots__ = ("_clock", "_made", "_tax")

    def __init__(
        self,
        vendor: Any,
        token: str,
        clock: "Ticking",
        made: Callable[[Order], Sequence[Made]],
        tax: Callable[[], object],
    ) -> None:
        given = {"Authorization": f"Bearer {token}", "X-Access-Token": token, "User-Agent": "x/1"}
        super().__init__(Way(vendor), given)
        self._clock, self._made, self._tax = clock, made, tax

    def made(self, order: Order) -> Sequence[Made]:
        """What the vendor has of our order."""
        return self._made(order)

    def passes(self, seconds: float) -> None:
        """Have so much time go by."""
        self._clock.ahead += timedelta(seconds=seconds)

    def dearer(self, minor: int) -> None:
        """A tax of nine percent, which is ``minor`` of the suite's order."""
        self._tax()


class Ticking:
    """A clock that goes on at each look, so that no vendor is asked too often."""

    def __init__(self) -> None:
        self._now, self.ahead = datetime.now(UTC), timedelta()

    def __call__(self) -> datetime:
        self.ahead += timedelta(seconds=0.05)
        return self._now + self.ahead


def square_pos() -> Facts:
    """A seller at Square."""
    clock = Ticking()
    vendor = square.simulator(clock, currency="EUR")
    vendor.knobs.needs_recipient = False

    def made(order: Order) -> list[Made]:
        facts = vendor.facts()["orders"].values()
        return [
            Made(
                each["order"]["total_money"]["amount"],
                each["payments"] - len(each["order"].get("refunds", ())),
                each["cancelled"],
            )
            for each in facts
            if each["order"]["metadata"]["order_id"] == order.order_id
        ]

    def tax() -> None:
        vendor.knobs.shop_tax, vendor.knobs.adds_tax_unasked = "9", True

    return Facts(vendor, vendor.access.grant()["access_token"], clock, made, tax)


def clover_pos() -> Facts:
    """A merchant at Clover."""
    clock = Ticking()
    vendor = clover.simulator(clock)

    def made(order: Order) -> list[Made]:
        return [
            Made(each["total"], len(each["payments"]), each["is_deleted"])
            for each in vendor.facts()
            if f"[{order.order_id}]" in (each["note"] or "")
        ]

    return Facts(vendor, "api-token", clock, made, lambda: vendor.shop.add_tax(9))


class ToastFacts:
    """A restaurant at Toast with the order on its menu."""

    def __init__(self, order: Order) -> None:
        self._pos = toast_pos(order)

    def __call__(self, request: Request) -> Reply:
        return self._pos(request)

    def made(self, order: Order) -> list[Made]:
        """The orders with our id."""
        return [
            Made(each["total"], int(each["paid"] > 0), each["voided"])
            for each in self._pos.toast.facts()["orders"]
            if f":{order.order_id}-" in each["externalId"]
        ]

    def dearer(self, minor: int) -> None:
        """A tax of nine percent, which is ``minor`` of the suite's order."""
        self._pos.toast.knobs.tax = 9


def hubrise_pos() -> Facts:
    """A location at HubRise, whose EPOS takes each order."""
    clock = Ticking()
    vendor = hubrise.simulator(clock)

    def made(order: Order) -> list[Made]:
        return [
            Made(each["total"], int(each["paid"] > 0 and not is_over), is_over)
            for each in vendor.facts()
            if each["private_ref"].startswith(f"{order.order_id}-")
            for is_over in (each["status"] == "cancelled",)
        ]

    def dearer() -> None:
        vendor.knobs.adds = 153

    return Facts(vendor, "token-1", clock, made, dearer)
