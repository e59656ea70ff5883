"""A seller's facts: orders, payments, refunds; and the notifications of changes.

*Document*: only a paid order with a fulfillment is a ticket on the seller's POS; a payment on an order
without a fulfillment completes the order at once; a DELIVERY is shown on the POS only for Square's
partners; signatures. *Reported by integrators*: with a fulfillment the order stays OPEN when it is paid,
by CreatePayment or, at a total of 0, by PayOrder, and also when an application completes the fulfillment;
the seller's POS completes both (forum 18972). Square's own work raises an order's version (forum 9477).
*Judgement*: a paid order with a failed or cancelled fulfillment stays OPEN.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from testkit.vendors.square.access import moment
from testkit.vendors.square.catalog import Catalog
from testkit.vendors.square.refusals import Refused
from testkit.vendors.webhooks import Webhooks

Json = dict[str, Any]
ENDED = ("COMPLETED", "CANCELED", "FAILED")
#: The seller's steps: fulfillment state, and the timestamp in a pickup's details.
STEPS = {
    "accept": ("RESERVED", "accepted_at"),
    "ready": ("PREPARED", "ready_at"),
    "complete": ("COMPLETED", "picked_up_at"),
    "reject": ("FAILED", "rejected_at"),
    "expire": ("FAILED", "expired_at"),
    "cancel": ("CANCELED", "canceled_at"),
}


@dataclass(slots=True)
class Knobs:
    """The seller's and Square's settings.

    Args:
        shop_tax: percentage of a tax of the seller's catalog, for orders with ``auto_apply_taxes``.
        adds_tax_unasked: the tax is on every order.
        counts_modifiers: a modifier's own quantity multiplies its price (documented is: price times
            the line's quantity).
        needs_recipient: recipients need the fields that the document requires in words alone.
        is_partner: DELIVERY fulfillments are shown on the POS.
        is_active: the location's status is ACTIVE.
        hours: the location's ``business_hours``, in Square's form; Square takes orders at any time.
        keys_kept: seconds of an idempotency key's life; None: endless.
        per_second: requests a second; None: unlimited.
        own_work: Square's own work raises an order's version after each change.
        catalog_page: objects on a page of ListCatalog.
        version: of the API, for requests without ``Square-Version``.
    """

    shop_tax: str | None = None
    adds_tax_unasked: bool = False
    counts_modifiers: bool = True
    needs_recipient: bool = True
    is_partner: bool = False
    is_active: bool = True
    hours: list[Json] = field(default_factory=list)
    keys_kept: float | None = None
    per_second: int | None = None
    own_work: bool = False
    catalog_page: int = 100
    version: str = "2025-08-20"


@dataclass(slots=True)
class Kept:
    """An order with its facts."""

    order: Json
    payments: list[Json] = field(default_factory=list)
    is_paid: bool = False
    prints: int = 0

    @property
    def fulfillment(self) -> Json | None:
        """The first fulfillment."""
        found: list[Json] = self.order.get("fulfillments", [])
        return found[0] if found else None

    def is_shown(self, *, is_partner: bool) -> bool:
        """Whether the order is a ticket on the seller's POS."""
        found = self.fulfillment
        is_visible = found is not None and (is_partner or found["type"] != "DELIVERY")
        return self.is_paid and is_visible and self.order["state"] != "CANCELED"


class Seller:
    """A seller with a single location.

    Args:
        clock: the time.
    """

    def __init__(
        self, clock: Callable[[], datetime], *, location_id: str, currency: str, merchant_id: str
    ) -> None:
        self.clock, self.location_id, self.currency = clock, location_id, currency
        self.merchant_id = merchant_id
        self.knobs, self.webhooks, self.catalog = Knobs(), Webhooks(), Catalog()
        self.orders: dict[str, Kept] = {}
        self.payments: dict[str, Json] = {}
        self.refunds: dict[str, Json] = {}
        self._number = 0

    def fact(self, kept: Kept) -> Json:
        """The truth about an order.

        ``shown``: the order is a ticket on the POS; ``prints``: of the ticket; ``paid``: without
        ``tips``; ``refunded``: with tips; ``unrouted``: lines without a category, by which printers route.
        """
        order, found = kept.order, kept.fulfillment
        items = [
            self.catalog.variations.get(line.get("catalog_object_id", ""))
            for line in order["line_items"]
        ]
        return {
            "order": deepcopy(order),
            "shown": kept.is_shown(is_partner=self.knobs.is_partner),
            "prints": kept.prints,
            "paid": sum(each["amount_money"]["amount"] for each in kept.payments),
            "tips": sum(each["tip_money"]["amount"] for each in kept.payments),
            "payments": len(kept.payments),
            "is_paid": kept.is_paid,
            "cancelled": order["state"] == "CANCELED" or (found or {}).get("state") == "CANCELED",
            "refunded": sum(each["amount_money"]["amount"] for each in order.get("refunds", ())),
            "unrouted": sum(each is None or each.category is None for each in items),
            "sold_out": [each.name for each in items if each is not None and each.is_sold_out],
        }

    def kept(self, known: str, path: str = "order_id") -> Kept:
        """The order with this id. Raises Refused for ``path``."""
        kept = self.orders.get(known)
        if kept is None:
            raise Refused("NOT_FOUND", f"Order {known} not found.", path)
        return kept

    def new_id(self, what: str) -> str:
        """A unique id."""
        self._number += 1
        return f"{what}-{self._number}"

    def paid(self, kept: Kept, payment: Json | None) -> None:
        """Settle an order, by a payment or, for a total of 0, without."""
        order, kept.is_paid = kept.order, True
        if payment is not None:
            tip, now = payment["tip_money"], payment["created_at"]
            tender = {"id": payment["id"], "payment_id": payment["id"], "type": "OTHER"}
            amounts = {"amount_money": payment["total_money"], "tip_money": tip, "created_at": now}
            order.setdefault("tenders", []).append({**tender, **amounts})
            order["total_tip_money"] = tip
            total = order["total_money"]["amount"] + tip["amount"]
            order["total_money"] = {**tip, "amount": total}
        self.due(kept)
        if kept.fulfillment is None:
            order |= {"state": "COMPLETED", "closed_at": moment(self.clock())}
        if kept.is_shown(is_partner=self.knobs.is_partner):
            kept.prints += 1
        self.changed(kept)

    def due(self, kept: Kept) -> None:
        """Compute the due amount."""
        tendered = sum(each["amount_money"]["amount"] for each in kept.order.get("tenders", ()))
        total = kept.order["total_money"]["amount"]
        kept.order["net_amount_due_money"] = {"amount": total - tendered, "currency": self.currency}

    def changed(self, kept: Kept, before: Mapping[str, str] | None = None) -> None:
        """Raise the version, and notify."""
        order = kept.order
        order |= {"version": order["version"] + 1, "updated_at": moment(self.clock())}
        if before is not None:
            updates = [
                {"fulfillment_uid": each["uid"], "old_state": was, "new_state": each["state"]}
                for each in order.get("fulfillments", ())
                if (was := before.get(each["uid"])) != each["state"]
            ]
            if updates:
                self.notify_order("order.fulfillment.updated", kept, fulfillment_update=updates)
        self.notify_order("order.updated", kept)
        self.work(kept)

    def work(self, kept: Kept) -> None:
        """Square's own work on the order, after a change."""
        if self.knobs.own_work:
            kept.order["version"] += 1

    def notify_order(self, type_: str, kept: Kept, **more: Any) -> None:
        """Notify of a new or changed order."""
        names = ("location_id", "version", "state", "created_at", "updated_at")
        content = {name: kept.order[name] for name in names} | {"order_id": kept.order["id"]} | more
        name = type_.replace(".", "_")
        self._notify(type_, name, kept.order["id"], {name: content})

    def notify_payment(self, payment: Json) -> None:
        """Notify of a new or changed payment."""
        self._notify("payment.updated", "payment", payment["id"], {"payment": payment})

    def notify_revoked(self) -> None:
        """Notify of the end of the seller's authorization."""
        revocation = {"revoked_at": moment(self.clock()), "revoker_type": "MERCHANT"}
        self._notify("oauth.authorization.revoked", "revocation", None, {"revocation": revocation})

    def _notify(self, type_: str, name: str, known: str | None, content: Json) -> None:
        event = {
            "merchant_id": self.merchant_id,
            "type": type_,
            "event_id": self.new_id("event"),
            "created_at": moment(self.clock()),
            "data": {"type": name, "id": known, "object": content},
        }
        self.webhooks.add(json.dumps(event).encode(), signed)

    def step(self, state: str, at: str, order_id: str) -> None:
        """A step of the seller's staff: see ``STEPS``."""
        kept = self.orders[order_id]
        assert kept.fulfillment is not None, "the seller sees no order without a fulfillment"
        before = {each["uid"]: each["state"] for each in kept.order["fulfillments"]}
        kept.fulfillment["state"] = state
        kept.fulfillment.get("pickup_details", {})[at] = moment(self.clock())
        if state == "COMPLETED" and kept.is_paid:
            kept.order |= {"state": "COMPLETED", "closed_at": moment(self.clock())}
        self.changed(kept, before)


def signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    """*Document*: base64 of the HMAC-SHA256 of URL and body, under the subscription's key."""
    made = hmac.digest(key.encode(), url.encode() + body, hashlib.sha256)
    return {"x-square-hmacsha256-signature": base64.b64encode(made).decode()}
