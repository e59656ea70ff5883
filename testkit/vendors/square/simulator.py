"""Square in memory: one seller with one location, and one application that may act for the seller.

*Document*: endpoints, scopes, fields, prices, versions, keys; an order is a ticket on the seller's
POS only if it is paid and has a fulfillment; a payment on an order without a fulfillment completes
the order at once; a COMPLETED or CANCELED order cannot be updated; an order cannot be cancelled once
it is paid; all fulfillments end before an order does; a DELIVERY is shown on the POS only for
Square's partners; the key of CreatePayment has up to 45 characters.

*Reported by integrators*: an order's version grows by Square's own work; UpdateOrder without a key
answers 200 and changes nothing; lines of a paid order cannot be modified.

*Judgement*: a key keeps its reply only if the request was carried out; a repeated UpdateOrder returns
the order as it is by then (documented) and any other repeated request the first reply; Square takes
an order for a sold-out item (the catalog says what is sold out), and none for an inactive location; a
paid order whose fulfillment has failed or was cancelled stays OPEN; external payments are COMPLETED
at once, and so is their refund.
"""

import base64
import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from testkit.vendors.fields import faults
from testkit.vendors.http import VendorReply, VendorRequest
from testkit.vendors.square import pricing, rules
from testkit.vendors.square.access import SCOPES, Access, moment
from testkit.vendors.square.refusals import Refused
from testkit.vendors.square.tables import tables
from testkit.vendors.webhooks import Webhooks

Json = dict[str, Any]
_ENDED = ("COMPLETED", "CANCELED", "FAILED")
#: The seller's steps: fulfillment state, and the timestamp in a pickup's details.
_STEPS = {
    "accept": ("RESERVED", "accepted_at"),
    "ready": ("PREPARED", "ready_at"),
    "complete": ("COMPLETED", "picked_up_at"),
    "reject": ("FAILED", "rejected_at"),
    "cancel": ("CANCELED", "canceled_at"),
}


class Route(NamedTuple):
    """An endpoint. ``scopes``: None: no access token; ``table``: of the body, None: there is none."""

    method: str
    path: str
    name: str
    scopes: tuple[str, ...] | None
    table: str | None = None


ROUTES = (
    Route("POST", "/v2/orders", "CreateOrder", ("ORDERS_WRITE",), "CreateOrderRequest"),
    Route("POST", "/v2/orders/calculate", "CalculateOrder", (), "CalculateOrderRequest"),
    Route(
        "POST",
        "/v2/orders/batch-retrieve",
        "BatchRetrieveOrders",
        ("ORDERS_READ",),
        "BatchRetrieveOrdersRequest",
    ),
    Route("POST", "/v2/orders/search", "SearchOrders", ("ORDERS_READ",), "SearchOrdersRequest"),
    Route(
        "POST",
        "/v2/orders/([^/]+)/pay",
        "PayOrder",
        ("PAYMENTS_WRITE", "ORDERS_WRITE"),
        "PayOrderRequest",
    ),
    Route("GET", "/v2/orders/([^/]+)", "RetrieveOrder", ("ORDERS_READ",)),
    Route("PUT", "/v2/orders/([^/]+)", "UpdateOrder", ("ORDERS_WRITE",), "UpdateOrderRequest"),
    Route("POST", "/v2/payments", "CreatePayment", ("PAYMENTS_WRITE",), "CreatePaymentRequest"),
    Route(
        "POST",
        "/v2/payments/cancel",
        "CancelPaymentByIdempotencyKey",
        ("PAYMENTS_WRITE",),
        "CancelPaymentByIdempotencyKeyRequest",
    ),
    Route("GET", "/v2/payments/([^/]+)", "GetPayment", ("PAYMENTS_READ",)),
    Route("POST", "/v2/payments/([^/]+)/cancel", "CancelPayment", ("PAYMENTS_WRITE",)),
    Route("POST", "/v2/refunds", "RefundPayment", ("PAYMENTS_WRITE",), "RefundPaymentRequest"),
    Route("GET", "/v2/refunds/([^/]+)", "GetPaymentRefund", ("PAYMENTS_READ",)),
    Route("GET", "/v2/locations", "ListLocations", ("MERCHANT_PROFILE_READ",)),
    Route("GET", "/v2/locations/([^/]+)", "RetrieveLocation", ("MERCHANT_PROFILE_READ",)),
    Route("GET", "/v2/catalog/list", "ListCatalog", ("ITEMS_READ",)),
    Route("POST", "/oauth2/token", "ObtainToken", None, "ObtainTokenRequest"),
    Route("POST", "/oauth2/revoke", "RevokeToken", None, "RevokeTokenRequest"),
)
_QUERY = {"ListCatalog": {"cursor", "types", "catalog_version"}}


@dataclass(slots=True)
class Knobs:
    """The seller's and Square's settings.

    Args:
        shop_tax: percentage of a tax of the seller's catalog, on orders that ask for automatic taxes.
        adds_tax_unasked: the tax is on every order.
        counts_modifiers: a modifier's own quantity multiplies its price (documented is: price times
            the line's quantity).
        needs_recipient: recipients' fields that the document requires in words alone are required.
        is_partner: DELIVERY fulfillments are shown on the POS.
        is_active: the location's status is ACTIVE.
        keys_kept: seconds that an idempotency key is known; None: for ever.
        per_second: requests a second; None: no limit.
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
    keys_kept: float | None = None
    per_second: int | None = None
    own_work: bool = False
    catalog_page: int = 100
    version: str = "2025-08-20"


@dataclass(slots=True)
class Kept:
    """One order, and the facts about it."""

    order: Json
    payments: list[Json] = field(default_factory=list)
    is_paid: bool = False
    prints: int = 0

    @property
    def fulfillment(self) -> Json | None:
        """The one that the order was made with."""
        found = self.order.get("fulfillments") or [None]
        return found[0]

    def is_shown(self, *, is_partner: bool) -> bool:
        """Whether the order is a ticket on the seller's POS."""
        found = self.fulfillment
        is_visible = found is not None and (is_partner or found["type"] != "DELIVERY")
        return self.is_paid and is_visible and self.order["state"] != "CANCELED"


class Square:
    """See the module's text. ``answer`` computes each reply from the facts that are kept here."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        location_id: str = "L1",
        currency: str = "USD",
        merchant_id: str = "MERCHANT1",
        pkce: bool = False,
    ) -> None:
        self.location_id, self.currency, self.merchant_id = location_id, currency, merchant_id
        self.knobs, self.webhooks, self.catalog = Knobs(), Webhooks(), pricing.Catalog()
        self.access = Access(clock, merchant_id, pkce=pkce, revoked=self._tell_revoked)
        self.orders: dict[str, Kept] = {}
        self.payments: dict[str, Json] = {}
        self.refunds: dict[str, Json] = {}
        self.calls: Counter[str] = Counter()
        #: Bodies of all refusals.
        self.refused: list[Any] = []
        self._clock = clock
        self._keys: dict[tuple[str, str], tuple[str, Json, datetime]] = {}
        self._number = 0
        self.acts: Mapping[str, Callable[..., object]] = {
            **{name: self._step(*step) for name, step in _STEPS.items()},
            "grant": lambda scopes=SCOPES: self.access.grant(scopes),
            "expire_tokens": self.access.expire,
            "revoke": self.access.revoke,
            "list_item": self._list_item,
            "list_modifier": self._list_modifier,
        }

    def answer(self, request: VendorRequest) -> VendorReply:
        """Carry out the request, or refuse it without a change."""
        try:
            return VendorReply(200, self._answered(request))
        except Refused as refused:
            self.refused.append(refused.reply.body)
            return refused.reply

    def facts(self) -> Json:
        """Orders with their facts by Square's id, payments, refunds, calls and refusals."""
        return {
            "orders": {known: self._fact(kept) for known, kept in self.orders.items()},
            "payments": deepcopy(self.payments),
            "refunds": deepcopy(self.refunds),
            "calls": dict(self.calls),
            "refused": deepcopy(self.refused),
            "deliveries": list(self.webhooks.statuses),
        }

    def _fact(self, kept: Kept) -> Json:
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
            "payments": len(kept.payments),
            "is_paid": kept.is_paid,
            "cancelled": order["state"] == "CANCELED" or (found or {}).get("state") == "CANCELED",
            "refunded": sum(each["amount_money"]["amount"] for each in order.get("refunds", ())),
            "unrouted": sum(each is None or each.category is None for each in items),
            "sold_out": [each.name for each in items if each is not None and each.is_sold_out],
        }

    # Requests

    def _answered(self, request: VendorRequest) -> Json:
        route, ids = _routed(request)
        self.calls[route.name] += 1
        version = request.headers.get("square-version", self.knobs.version)
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", version):
            raise Refused("INVALID_SQUARE_VERSION_FORMAT", f"{version} is no version")
        if route.scopes is not None:
            self.access.check(request, route.scopes, self.knobs.per_second)
        if unknown := set(request.query) - _QUERY.get(route.name, set()):
            raise Refused("UNKNOWN_QUERY_PARAMETER", f"{sorted(unknown)}")
        given = _body(route, request, version)
        if route.name in ("ObtainToken", "RevokeToken"):
            obtain = route.name == "ObtainToken"
            return (
                self.access.obtain(given) if obtain else self.access.revoke_request(request, given)
            )
        handle: Callable[..., Json] = getattr(self, f"_{_snake(route.name)}")
        if route.name == "ListCatalog":
            return handle(request.query)
        do = lambda: handle(*ids, *([given] if route.table else []))  # noqa: E731
        key = given.get("idempotency_key")
        if key is None or route.name == "CancelPaymentByIdempotencyKey":
            return do()
        return self._under_key(
            (route.name, key), json.dumps([request.path, given], sort_keys=True), do
        )

    def _under_key(self, key: tuple[str, str], content: str, do: Callable[[], Json]) -> Json:
        kept = self.knobs.keys_kept
        known = self._keys.get(key)
        if known is not None and kept is not None:
            known = known if self._clock() - known[2] < timedelta(seconds=kept) else None
        if known is None:
            reply = do()
            self._keys[key] = (content, deepcopy(reply), self._clock())
            return reply
        if known[0] != content:
            detail = "Different request parameters used for the same idempotency_key."
            raise Refused("IDEMPOTENCY_KEY_REUSED", detail, "idempotency_key")
        if key[0] == "UpdateOrder":
            return {"order": deepcopy(self.orders[known[1]["order"]["id"]].order)}
        return deepcopy(known[1])

    # Orders

    def _create_order(self, given: Json) -> Json:
        order = self._computed(given.get("order"))
        now = moment(self._clock())
        known = self._id("order")
        made = {**order, "id": known, "version": 1, "created_at": now, "updated_at": now}
        for each in made.get("fulfillments", ()):
            each.setdefault("state", "PROPOSED")
        self.orders[known] = kept = Kept(made)
        self._due(kept)
        self._tell_order("order.created", kept)
        reply = {"order": deepcopy(made)}
        self._work(kept)
        return reply

    def _calculate_order(self, given: Json) -> Json:
        order = self._computed(given.get("order"))
        return {"order": {**order, "net_amount_due_money": order["total_money"]}}

    def _computed(self, given: Json | None, tip: int = 0) -> Json:
        """The order with Square's own names and prices. Raises Refused."""
        if given is None:
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "order")
        if given["location_id"] != self.location_id:
            raise Refused("NOT_FOUND", "no such location", "order.location_id")
        if not self.knobs.is_active:
            raise Refused("INVALID_LOCATION", "the location is inactive", "order.location_id")
        if given.get("state") in ("COMPLETED", "CANCELED"):
            raise Refused("INVALID_VALUE", "a new order is OPEN or DRAFT", "order.state")
        order = _without_nulls(deepcopy(given))
        order.setdefault("state", "OPEN")
        rules.check(order, self.currency, needs_recipient=self.knobs.needs_recipient)
        self._name_parts(order)
        asked = order.get("pricing_options", {}).get("auto_apply_taxes")
        if self.knobs.shop_tax is not None and (asked or self.knobs.adds_tax_unasked):
            tax = {"uid": "shop-tax", "name": "Sales tax", "percentage": self.knobs.shop_tax}
            others = [each for each in order.get("taxes", ()) if each["uid"] != "shop-tax"]
            order["taxes"] = [*others, {**tax, "scope": "ORDER", "auto_applied": True}]
        counts = self.knobs.counts_modifiers
        pricing.price(order, self.catalog, self.currency, tip, counts_modifiers=counts)
        return order

    def _name_parts(self, order: Json) -> None:
        """Square's own ``uid`` for each part without one."""
        for name in ("line_items", "taxes", "discounts", "service_charges", "fulfillments"):
            for each in order.get(name, ()):
                for part in (each, *each.get("modifiers", ())):
                    if not part.get("uid"):
                        part["uid"] = self._id("uid")

    def _retrieve_order(self, known: str) -> Json:
        return {"order": deepcopy(self._kept(known).order)}

    def _batch_retrieve_orders(self, given: Json) -> Json:
        found = [self.orders[each].order for each in given["order_ids"] if each in self.orders]
        return {"orders": deepcopy(found)}

    def _update_order(self, known: str, given: Json) -> Json:
        kept, change = self._kept(known), _without_nulls(given.get("order") or {})
        order = kept.order
        if given.get("fields_to_clear"):
            raise Refused("NOT_IMPLEMENTED", "fields_to_clear is not simulated")
        if "version" not in change:
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "order.version")
        if change["version"] != order["version"]:
            detail = f"the order has version {order['version']}, not {change['version']}"
            raise Refused("VERSION_MISMATCH", detail, "order.version")
        if order["state"] in ("COMPLETED", "CANCELED"):
            raise Refused(
                "BAD_REQUEST", f"a {order['state']} order cannot be updated", "order.state"
            )
        if not given.get("idempotency_key"):
            return {"order": deepcopy(order)}
        if kept.is_paid and set(change) & {"line_items", "taxes", "discounts", "service_charges"}:
            raise Refused("BAD_REQUEST", "LineItems cannot be modified for finalized tenders.")
        before = {each["uid"]: each["state"] for each in order.get("fulfillments", ())}
        changed = _merged(order, change)
        self._check_states(kept, before, changed)
        state = changed.pop("state")
        tip = sum(each["tip_money"]["amount"] for each in kept.payments)
        computed = self._computed(_requested(changed), tip)
        kept.order = order = {**changed, **computed, "state": state}
        if state == "CANCELED":
            order["closed_at"] = moment(self._clock())
        self._due(kept)
        self._changed(kept, before)
        return {"order": deepcopy(order)}

    def _check_states(self, kept: Kept, before: Mapping[str, str], changed: Json) -> None:
        states = set()
        for each in changed.get("fulfillments", ()):
            was = before.get(each.get("uid"), "PROPOSED")
            now = each.setdefault("state", "PROPOSED")
            states.add(now)
            if was in _ENDED and now != was:
                detail = f"a fulfillment that is {was} cannot become {now}"
                raise Refused("BAD_REQUEST", detail, "order.fulfillments")
        if changed["state"] == "CANCELED":
            if kept.is_paid:
                raise Refused("BAD_REQUEST", "a paid order cannot be canceled", "order.state")
            if states - {"CANCELED", "FAILED"}:
                detail = "All fulfillments must have a state of CANCELED or FAILED."
                raise Refused("BAD_REQUEST", detail, "order.state")
        if changed["state"] == "COMPLETED" and (states - set(_ENDED) or not kept.is_paid):
            detail = "All fulfillments must have a state of COMPLETED, CANCELED, or FAILED."
            raise Refused("BAD_REQUEST", detail, "order.state")

    def _search_orders(self, given: Json) -> Json:
        if given.get("location_ids") != [self.location_id]:
            raise Refused("INVALID_VALUE", "the seller has one location", "location_ids")
        query = given.get("query") or {}
        filters, sort = query.get("filter") or {}, query.get("sort") or {}
        sort_field = sort.get("sort_field", "CREATED_AT").lower()
        times = {
            name: each for name, each in (filters.get("date_time_filter") or {}).items() if each
        }
        if times and (set(times) != {sort_field} or "sort_field" not in sort):
            detail = "sort_field must match the field of date_time_filter"
            raise Refused("BAD_REQUEST", detail, "query.sort.sort_field")
        found = [each for each in self.orders.values() if _is_found(each.order, filters, times)]
        is_down = sort.get("sort_order", "DESC") == "DESC"
        found.sort(key=lambda each: str(each.order.get(sort_field, "")), reverse=is_down)
        limit = given.get("limit") or 500
        digest = hashlib.sha256(json.dumps([query, limit], sort_keys=True).encode()).hexdigest()[
            :16
        ]
        begin = _offset(given.get("cursor"), digest)
        page = found[begin : begin + limit]
        reply: Json = {"orders": [deepcopy(each.order) for each in page]} if page else {}
        is_more = begin + limit < len(found)
        return {**reply, "cursor": f"{digest}.{begin + limit}"} if is_more else reply

    # Payments

    def _create_payment(self, given: Json) -> Json:
        source, money = given["source_id"], given["amount_money"]
        details = {"EXTERNAL": "external_details", "CASH": "cash_details"}.get(source)
        if details is None:
            raise Refused(
                "UNSUPPORTED_SOURCE_TYPE", "only EXTERNAL and CASH are simulated", "source_id"
            )
        if not given.get(details):
            raise Refused("MISSING_REQUIRED_PARAMETER", f"is required for {source}", details)
        if given.get("autocomplete") is False:
            raise Refused("BAD_REQUEST", f"{source} cannot be captured later", "autocomplete")
        if given.get("location_id") not in (None, self.location_id):
            raise Refused("LOCATION_MISMATCH", "no such location", "location_id")
        tip = given.get("tip_money") or {"amount": 0, "currency": self.currency}
        for name, each in (("amount_money", money), ("tip_money", tip)):
            if each["currency"] != self.currency:
                raise Refused("CURRENCY_MISMATCH", f"the seller's is {self.currency}", name)
        if not money["amount"]:
            raise Refused("VALUE_TOO_LOW", "a payment is above 0: see PayOrder", "amount_money")
        kept = self._kept(given["order_id"], "order_id") if given.get("order_id") else None
        if kept is not None:
            self._check_payable(kept, money["amount"])
        now = moment(self._clock())
        kept_fields = ("order_id", "reference_id", "note", "external_details", "cash_details")
        payment = {
            **{name: given[name] for name in kept_fields if given.get(name)},
            "id": self._id("payment"),
            "status": "COMPLETED",
            "source_type": source,
            "location_id": self.location_id,
            "amount_money": money,
            "tip_money": tip,
            "total_money": {**money, "amount": money["amount"] + tip["amount"]},
            "created_at": now,
            "updated_at": now,
        }
        self.payments[payment["id"]] = payment
        if kept is not None:
            kept.payments.append(payment)
            self._paid(kept, payment)
        self._tell("payment.updated", "payment", payment["id"], {"payment": payment})
        return {"payment": deepcopy(payment)}

    def _check_payable(self, kept: Kept, amount: int) -> None:
        due = kept.order["net_amount_due_money"]["amount"]
        if kept.is_paid or kept.order["state"] != "OPEN":
            raise Refused("BAD_REQUEST", "the order is paid, or not OPEN", "order_id")
        if amount != due:
            detail = f"the payment of {amount} does not match the order's due amount, {due}"
            raise Refused("PAYMENT_AMOUNT_MISMATCH", detail, "amount_money")

    def _pay_order(self, known: str, given: Json) -> Json:
        kept = self._kept(known)
        if given.get("order_version") not in (None, kept.order["version"]):
            raise Refused("VERSION_MISMATCH", "another version", "order_version")
        if given.get("payment_ids"):
            raise Refused("BAD_REQUEST", "no payment is waiting for its capture", "payment_ids")
        self._check_payable(kept, 0)
        self._paid(kept, None)
        return {"order": deepcopy(kept.order)}

    def _paid(self, kept: Kept, payment: Json | None) -> None:
        order, kept.is_paid = kept.order, True
        if payment is not None:
            tip, now = payment["tip_money"], payment["created_at"]
            tender = {"id": payment["id"], "payment_id": payment["id"], "type": "OTHER"}
            amounts = {"amount_money": payment["total_money"], "tip_money": tip, "created_at": now}
            order.setdefault("tenders", []).append({**tender, **amounts})
            order["total_tip_money"] = tip
            total = order["total_money"]["amount"] + tip["amount"]
            order["total_money"] = {**tip, "amount": total}
        self._due(kept)
        if kept.fulfillment is None:
            order |= {"state": "COMPLETED", "closed_at": moment(self._clock())}
        if kept.is_shown(is_partner=self.knobs.is_partner):
            kept.prints += 1
        self._changed(kept)

    def _get_payment(self, known: str) -> Json:
        return {"payment": deepcopy(_known(self.payments, known))}

    def _cancel_payment(self, known: str) -> Json:
        _known(self.payments, known)
        raise Refused("BAD_REQUEST", "a COMPLETED payment cannot be canceled: refund it")

    def _cancel_payment_by_idempotency_key(self, given: Json) -> Json:
        if ("CreatePayment", given["idempotency_key"]) not in self._keys:
            return {}  # documented: no action is taken, and the endpoint returns successfully
        raise Refused("BAD_REQUEST", "a COMPLETED payment cannot be canceled: refund it")

    def _refund_payment(self, given: Json) -> Json:
        if given.get("unlinked") or not given.get("payment_id"):
            raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "payment_id")
        payment, money = _known(self.payments, given["payment_id"]), given["amount_money"]
        if money["currency"] != self.currency:
            raise Refused("CURRENCY_MISMATCH", f"the seller's is {self.currency}", "amount_money")
        refunded = payment.get("refunded_money", {"amount": 0})["amount"] + money["amount"]
        if not money["amount"] or refunded > payment["total_money"]["amount"]:
            raise Refused(
                "REFUND_AMOUNT_INVALID", "more than is left of the payment", "amount_money"
            )
        kept, now = self.orders.get(payment.get("order_id", "")), moment(self._clock())
        refund = {
            **{name: given[name] for name in ("payment_id", "reason") if given.get(name)},
            **({"order_id": kept.order["id"]} if kept else {}),
            "id": self._id("refund"),
            "status": "COMPLETED",
            "location_id": self.location_id,
            "amount_money": money,
            "created_at": now,
            "updated_at": now,
        }
        payment |= {"refunded_money": {**money, "amount": refunded}, "updated_at": now}
        payment.setdefault("refund_ids", []).append(refund["id"])
        self.refunds[refund["id"]] = refund
        if kept is not None:
            kept.order.setdefault("refunds", []).append(refund)
            self._changed(kept)
        self._tell("payment.updated", "payment", payment["id"], {"payment": payment})
        return {"refund": deepcopy(refund)}

    def _get_payment_refund(self, known: str) -> Json:
        return {"refund": deepcopy(_known(self.refunds, known))}

    # The seller

    def _list_locations(self) -> Json:
        return {"locations": [self._location()]}

    def _retrieve_location(self, known: str) -> Json:
        if known not in ("main", self.location_id):
            raise Refused("NOT_FOUND", "no such location")
        return {"location": self._location()}

    def _location(self) -> Json:
        return {
            "id": self.location_id,
            "name": "Simulated",
            "merchant_id": self.merchant_id,
            "status": "ACTIVE" if self.knobs.is_active else "INACTIVE",
            "currency": self.currency,
            "timezone": "America/New_York",
            "capabilities": ["CREDIT_CARD_PROCESSING"],
        }

    def _list_catalog(self, query: Mapping[str, Sequence[str]]) -> Json:
        types = query.get("types", ["ITEM,MODIFIER,TAX"])[0].split(",")
        objects = [each for each in self._objects() if each["type"] in types]
        size = self.knobs.catalog_page
        digest = hashlib.sha256(json.dumps(types).encode()).hexdigest()[:16]
        begin = _offset(query.get("cursor", [None])[0], digest)
        reply: Json = {"objects": objects[begin : begin + size]} if objects else {}
        is_more = begin + size < len(objects)
        return {**reply, "cursor": f"{digest}.{begin + size}"} if is_more else reply

    def _objects(self) -> list[Json]:
        """The catalog, as CatalogObject: an item for each variation."""
        objects: list[Json] = []
        for known, each in self.catalog.variations.items():
            override = {"location_id": self.location_id, "sold_out": each.is_sold_out}
            of_variation = {
                "item_id": f"item-{known}",
                "name": "Regular",
                "pricing_type": "FIXED_PRICING",
                "price_money": {"amount": each.price, "currency": self.currency},
                "location_overrides": [override],
            }
            variation = {"type": "ITEM_VARIATION", "id": known, "item_variation_data": of_variation}
            item: Json = {"name": each.name, "variations": [variation]}
            if each.category is not None:
                item["categories"] = [{"id": each.category}]
            objects.append({"type": "ITEM", "id": f"item-{known}", "item_data": item})
        for known, each in self.catalog.modifiers.items():
            money = {"amount": each.price, "currency": self.currency}
            data = {"name": each.name, "price_money": money}
            objects.append({"type": "MODIFIER", "id": known, "modifier_data": data})
        for known, percentage in self.catalog.taxes.items():
            data = {"percentage": percentage, "inclusion_type": "ADDITIVE"}
            objects.append({"type": "TAX", "id": known, "tax_data": data})
        return objects

    def _list_item(self, known: str, **listed: Any) -> None:
        self.catalog.variations[known] = pricing.Listed(**listed)

    def _list_modifier(self, known: str, **listed: Any) -> None:
        self.catalog.modifiers[known] = pricing.Listed(**listed)

    def _step(self, state: str, at: str) -> Callable[..., None]:
        def step(order_id: str) -> None:
            """A step of the seller's staff."""
            kept = self.orders[order_id]
            assert kept.fulfillment is not None
            before = {each["uid"]: each["state"] for each in kept.order["fulfillments"]}
            kept.fulfillment["state"] = state
            kept.fulfillment.get("pickup_details", {})[at] = moment(self._clock())
            if state == "COMPLETED" and kept.is_paid:
                kept.order |= {"state": "COMPLETED", "closed_at": moment(self._clock())}
            self._changed(kept, before)

        return step

    # What changes with an order

    def _due(self, kept: Kept) -> None:
        tendered = sum(each["amount_money"]["amount"] for each in kept.order.get("tenders", ()))
        total = kept.order["total_money"]["amount"]
        kept.order["net_amount_due_money"] = {"amount": total - tendered, "currency": self.currency}

    def _changed(self, kept: Kept, before: Mapping[str, str] | None = None) -> None:
        """A new version, and its notifications."""
        order = kept.order
        order |= {"version": order["version"] + 1, "updated_at": moment(self._clock())}
        if before is not None:
            updates = [
                {"fulfillment_uid": each["uid"], "old_state": was, "new_state": each["state"]}
                for each in order.get("fulfillments", ())
                if (was := before.get(each["uid"])) != each["state"]
            ]
            if updates:
                self._tell_order("order.fulfillment.updated", kept, fulfillment_update=updates)
        self._tell_order("order.updated", kept)
        self._work(kept)

    def _work(self, kept: Kept) -> None:
        if self.knobs.own_work:
            kept.order["version"] += 1

    # Webhooks

    def _tell_order(self, type_: str, kept: Kept, **more: Any) -> None:
        names = ("location_id", "version", "state", "created_at", "updated_at")
        content = {name: kept.order[name] for name in names} | {"order_id": kept.order["id"]} | more
        name = type_.replace(".", "_")
        self._tell(type_, name, kept.order["id"], {name: content})

    def _tell_revoked(self) -> None:
        revocation = {"revoked_at": moment(self._clock()), "revoker_type": "MERCHANT"}
        self._tell("oauth.authorization.revoked", "revocation", None, {"revocation": revocation})

    def _tell(self, type_: str, name: str, known: str | None, content: Json) -> None:
        event = {
            "merchant_id": self.merchant_id,
            "type": type_,
            "event_id": self._id("event"),
            "created_at": moment(self._clock()),
            "data": {"type": name, "id": known, "object": content},
        }
        self.webhooks.add(json.dumps(event).encode(), signed)

    def _kept(self, known: str, path: str = "order_id") -> Kept:
        kept = self.orders.get(known)
        if kept is None:
            raise Refused("NOT_FOUND", f"Order {known} not found.", path)
        return kept

    def _id(self, what: str) -> str:
        self._number += 1
        return f"{what}-{self._number}"


def signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    """*Document*: base64 of the HMAC-SHA256 of URL and body, under the subscription's key."""
    made = hmac.digest(key.encode(), url.encode() + body, hashlib.sha256)
    return {"x-square-hmacsha256-signature": base64.b64encode(made).decode()}


def _routed(request: VendorRequest) -> tuple[Route, tuple[str, ...]]:
    others = False
    for route in ROUTES:
        match = re.fullmatch(route.path, request.path)
        if match and route.method == request.method:
            return route, match.groups()
        others = others or match is not None
    code = "METHOD_NOT_ALLOWED" if others else "NOT_FOUND"
    raise Refused(code, f"{request.method} {request.path} is no endpoint")


def _body(route: Route, request: VendorRequest, version: str) -> Json:
    if route.table is None:
        return {}
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Refused("UNSUPPORTED_MEDIA_TYPE", "the body must be application/json")
    try:
        given = json.loads(request.body)
    except ValueError:
        raise Refused("EXPECTED_JSON_BODY", "the body is no JSON") from None
    if wrong := faults(tables(version), route.table, given):
        raise Refused.of(wrong)
    assert isinstance(given, dict)
    return given


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _known(objects: Mapping[str, Json], known: str) -> Json:
    if known not in objects:
        raise Refused("NOT_FOUND", f"{known} not found.")
    return objects[known]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _merged(old: Any, new: Any) -> Any:
    """A sparse update: objects by field, lists of parts by ``uid``, everything else replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merged(old.get(name), each) for name, each in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and all(isinstance(n, dict) for n in new):
        by_uid = {each.get("uid"): each for each in new}
        kept = [_merged(each, by_uid.pop(each.get("uid"), {})) for each in old]
        return [*kept, *by_uid.values()]
    return deepcopy(new)


#: What Square has set in an order, and computes again.
_OWN = ("total_money", "tenders", "refunds", "net_amount_due_money")


def _requested(order: Json) -> Json:
    """The order as a request could have it."""
    return {name: each for name, each in order.items() if name not in _OWN}


def _is_found(order: Json, filters: Json, times: Json) -> bool:
    states = (filters.get("state_filter") or {}).get("states")
    fulfilling = filters.get("fulfillment_filter") or {}
    sources = (filters.get("source_filter") or {}).get("source_names")
    parts = order.get("fulfillments", [])
    kinds = (("type", "fulfillment_types"), ("state", "fulfillment_states"))
    return (
        (not states or order["state"] in states)
        and (not sources or order.get("source", {}).get("name") in sources)
        and all(
            not fulfilling.get(name) or any(each[what] in fulfilling[name] for each in parts)
            for what, name in kinds
        )
        and all(_is_within(order.get(name), each) for name, each in times.items())
    )


def _is_within(when: str | None, span: Json) -> bool:
    if when is None:
        return False
    at, start, end = (
        None if each is None else datetime.fromisoformat(each)
        for each in (when, span.get("start_at"), span.get("end_at"))
    )
    assert at is not None
    return (start is None or at >= start) and (end is None or at <= end)


def _offset(cursor: str | None, digest: str) -> int:
    """Where a page begins. *Document*: a cursor belongs to its query."""
    if not cursor:
        return 0
    made_for, _, begin = cursor.partition(".")
    if made_for != digest or not begin.isdigit():
        raise Refused("INVALID_CURSOR", "the cursor belongs to another query", "cursor")
    return int(begin)
