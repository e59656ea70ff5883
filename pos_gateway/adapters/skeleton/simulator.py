"""The POS in memory, as strict as the real one: make it refuse what the vendor's documentation refuses."""

from decimal import Decimal
from typing import Any

from pos_gateway.adapters.testing import Made, json_of, json_reply, path_of, query_of
from pos_gateway.domain.order import Order
from pos_gateway.transport.exchange import Reply, Request

KEY, SHOP = "a-secret-key", "17"


class SkeletonPos:
    """One shop. Each POST of an order makes an order."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []
        self._surcharge = Decimal(0)

    def __call__(self, request: Request) -> Reply:
        query = query_of(request)
        if query.get("key") != KEY or query.get("shop") != SHOP:
            return json_reply(401)
        match request.method, path_of(request).rpartition("/")[2]:
            case "POST", "order":
                return self._make(json_of(request))
            case "GET", "order":
                return _ok(orders=self._found(query["ref"]))
            case "POST", "void":
                return self._void(json_of(request)["ref"])
        return json_reply(404)

    # What the conformance suite asks of a POS

    def made(self, order: Order) -> list[Made]:
        """What the kitchen has of our order."""
        found = [each for each in self.orders if each["ref"].endswith(f"-{order.order_id}")]
        return [
            Made(int(Decimal(each["sum"]) * 100), is_cancelled=each["state"] == "void")
            for each in found
        ]

    def dearer(self, minor: int) -> None:
        """Add an amount to each order's total."""
        self._surcharge = Decimal(minor) / 100

    def crowd(self, number: int) -> None:
        """Take orders of other clients."""
        for each in range(number):
            self.orders.append(
                {"no": 9000 + each, "ref": f"x{each}", "state": "open", "sum": "1.00"}
            )

    def _make(self, said: dict[str, Any]) -> Reply:
        total = self._surcharge
        for line in said["lines"]:
            extras = sum(each["count"] * Decimal(each["price"]) for each in line["extras"])
            total += line["count"] * (Decimal(line["price"]) + extras)
        made = {
            "no": 1001 + len(self.orders),
            "ref": said["ref"],
            "state": "open",
            "sum": f"{total:.2f}",
        }
        self.orders.append(made)
        return _ok(order=made)

    def _void(self, ref: str) -> Reply:
        found = self._found(ref)
        if not found:
            return error(40, "no such order")
        for each in found:
            each["state"] = "void"
        return _ok(order=found[0])

    def _found(self, ref: str) -> list[dict[str, Any]]:
        return [each for each in self.orders if each["ref"] == ref]


def _ok(**body: Any) -> Reply:
    return json_reply(200, {"ok": True, **body})


def error(code: int, text: str) -> Reply:
    """As the POS reports errors: with a 200."""
    return json_reply(200, {"ok": False, "error": code, "text": text})
