"""A restaurant's orders, payments and tickets at Clover: the facts, and what staff and printer do.

Documented: each print event prints its order once more; when the ticket is out the event is discarded,
all lines are ``printed``, and the order's webhook says UPDATE; a webhook names the order, and nothing else;
Clover does not promise that a webhook arrives: no document says that one comes again.

Reported by integrators: an event stays CREATED while the device is offline.

Judgement: a device prints what has waited for it.
"""

import json
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from testkit.vendors.clover.refusal import Body, Refusal
from testkit.vendors.clover.shop import Knobs, Shop
from testkit.vendors.webhooks import Webhooks


class Restaurant:
    """Orders by id, with all that happened to each.

    Args:
        clock: the present.
        shop: the merchant's records.
        app_id: of the app that the webhooks are for.

    Attributes:
        orders: whole records; a deleted one has ``deletedTime``.
        print_events: by id.
        tickets: what the kitchen has in its hands, the oldest first.
    """

    def __init__(self, clock: Callable[[], datetime], shop: Shop, app_id: str) -> None:
        self._clock, self._shop, self._app_id = clock, shop, app_id
        self.knobs, self.webhooks = Knobs(), Webhooks(attempts=1)
        self.orders: dict[str, Body] = {}
        self.print_events: dict[str, Body] = {}
        self.tickets: list[Body] = []
        self._ids = 0

    @property
    def now(self) -> int:
        """Unix time in milliseconds."""
        return int(self._clock().timestamp() * 1000)

    def next_id(self, kind: str) -> str:
        """13 characters, as Clover's."""
        self._ids += 1
        return f"{kind}{self._ids:012d}"

    def order(self, order_id: str) -> Body:
        """The order, unless it is deleted. Raises Refusal."""
        order = self.orders.get(order_id)
        if order is None or "deletedTime" in order:
            raise Refusal(404, "Not Found", "Order not found")
        return order

    def add(self, order: Body) -> None:
        """Have an order made."""
        self.orders[order["id"]] = order
        self._notify(order, "CREATE")

    def pay(self, order: Body, payment: Body) -> None:
        """Have a payment recorded: one that takes money locks the order."""
        order["payments"].append(payment)
        if payment not in taken(order):
            self._change(order)
            return
        is_paid = _sum(taken(order), "amount") >= order["total"]
        self._change(order, state="locked", paymentState="PAID" if is_paid else "PARTIALLY_PAID")

    def void(self, order_id: str) -> None:
        """Staff void all payments: the order is open again."""
        order = self.order(order_id)
        for each in order["payments"]:
            each["result"] = "VOIDED"
        self._change(order, state="open", paymentState="OPEN")

    def edit(self, order_id: str, **fields: Any) -> None:
        """Staff change an order's note, title or total; None for no text."""
        self._change(self.order(order_id), **fields)

    def delete(self, order_id: str) -> None:
        """Staff delete an order, paid or not."""
        self._change(self.order(order_id), "DELETE", deletedTime=self.now)

    def refund(self, order_id: str) -> None:
        """Staff give all the money back."""
        order = self.order(order_id)
        for each in taken(order):
            of_it = {"amount": each["amount"], "payment": {"id": each["id"]}}
            order["refunds"].append({"id": self.next_id("R"), **of_it})
        self._change(order, paymentState="REFUNDED")

    def print_due(self) -> None:
        """The device prints what is due."""
        for event in self.print_events.values():
            if event["state"] in ("DONE", "FAILED") or not self.knobs.is_online:
                continue
            event["state"] = "PRINTING"
            if self.now >= event["createdTime"] + 1000 * self.knobs.prints_after:
                event["state"] = "FAILED" if self.knobs.printer_fails else "DONE"
            if event["state"] == "DONE":
                self._print(self.orders[event["orderRef"]["id"]])

    def _print(self, order: Body) -> None:
        lines = []
        for line in order["lineItems"]:
            names = [each["name"] for each in line["modifications"]]
            lines.append({"name": line.get("name"), "note": line.get("note"), "modifiers": names})
            line["printed"] = True
        head = {name: order.get(name) for name in ("id", "title", "note")}
        self.tickets.append({**head, "lines": lines})
        self._change(order)

    def _change(self, order: Body, kind: str = "UPDATE", **fields: Any) -> None:
        order.update(fields, modifiedTime=self.now)
        self._notify(order, kind)

    def _notify(self, order: Body, kind: str) -> None:
        update = {"objectId": f"O:{order['id']}", "type": kind, "ts": self.now}
        merchants = {self._shop.merchant_id: [update]}
        body = json.dumps({"appId": self._app_id, "merchants": merchants}).encode()
        self.webhooks.add(body, lambda key, url, body: {"X-Clover-Auth": key})

    def facts(self) -> list[Body]:
        """The truth of each order, in the order of creation: shown, paid, refunded, on paper."""
        self.print_due()
        return [
            {
                "id": order["id"],
                "note": order.get("note"),
                "total": order["total"],
                "is_deleted": "deletedTime" in order,
                "is_shown": order["state"] is not None and "deletedTime" not in order,
                "payments": [each["amount"] for each in taken(order)],
                "tips": _sum(taken(order), "tipAmount"),
                "refunded": _sum(order["refunds"], "amount"),
                "tickets": [each for each in self.tickets if each["id"] == order["id"]],
            }
            for order in self.orders.values()
        ]


def taken(order: Body) -> list[Body]:
    """The order's payments that took money."""
    return [each for each in order["payments"] if each.get("result", "SUCCESS") == "SUCCESS"]


def _sum(records: Collection[Body], name: str) -> int:
    return sum(each.get(name) or 0 for each in records)
