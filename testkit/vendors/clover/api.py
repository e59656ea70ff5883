"""Clover's REST API v3 for one merchant.

Documented, beside the rules of the other modules: a checkout makes nothing; a create has no idempotency
key; a payment has a positive amount and an external tender, and locks its order; a printed event is
"missing"; a User-Agent is ``product/version``.

Reported by integrators: unrouted paths are a 405, another merchant's a 401; a missing event is a 400;
``deviceRef`` is ignored.

Judgement: a paid order is not deleted (400); a deleted one is a 404; a payment may be of more than is due, so
that paying twice is a fact.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial

from testkit.vendors.clover import lists
from testkit.vendors.clover.access import Access
from testkit.vendors.clover.cart import Cart, checked
from testkit.vendors.clover.pricing import Totals, totals
from testkit.vendors.clover.refusal import Body, Refusal
from testkit.vendors.clover.restaurant import Restaurant, taken
from testkit.vendors.clover.shop import Shop
from testkit.vendors.http import VendorReply, VendorRequest, dated

_LISTS = ("lineItems", "payments", "refunds", "discounts")
_OF_LINES = ("modifications", "discounts")
_LINES = [f"lineItems.{name}" for name in _OF_LINES]
_EXPANDABLE = (*_LISTS, *_LINES, "serviceCharge")
_USER_AGENT = re.compile(r"[^\s/]+/\S.*")

_Answer = Callable[[], Body | VendorReply]


class Clover:
    """One merchant's Clover.

    Args:
        clock: the present.
        shop: the merchant's records.

    Attributes:
        access: the app's tokens and limits.
        restaurant: the facts.
    """

    def __init__(self, clock: Callable[[], datetime], shop: Shop | None = None) -> None:
        self.shop, self.access = shop or Shop(), Access(clock)
        self._clock = clock
        self.restaurant = Restaurant(clock, self.shop, self.access.app_id)
        self.knobs, self.webhooks = self.restaurant.knobs, self.restaurant.webhooks
        self.facts = self.restaurant.facts

    @property
    def acts(self) -> Mapping[str, Callable[..., object]]:
        """What staff, the merchant and the operator do."""
        staff, shop = self.restaurant, self.shop
        of_staff = (staff.edit, staff.delete, staff.refund)
        of_merchant = (shop.add_tax, shop.set_available, shop.hide_order_type)
        of_operator = (self.access.pair, self.access.revoke)
        return {each.__name__: each for each in (*of_staff, *of_merchant, *of_operator)}

    def answer(self, request: VendorRequest) -> VendorReply:
        """The reply, after the device has printed what is due."""
        self.restaurant.print_due()
        try:
            found = self._routed(request)()
        except Refusal as refusal:
            return refusal.reply
        return (
            found
            if isinstance(found, VendorReply)
            else VendorReply(200, found, dated(self._clock()))
        )

    def _routed(self, request: VendorRequest) -> _Answer:
        """The answer, to be computed, for a request that is admitted. Raises Refusal."""
        if request.method == "POST" and request.path == "/oauth/v2/token":
            return partial(self.access.exchange, _object(request))
        if request.method == "POST" and request.path == "/oauth/v2/refresh":
            return partial(self.access.refresh, _object(request))
        mine = f"/v3/merchants/{self.shop.merchant_id}"
        for method, path, permission, handle in _ROUTES:
            match = re.fullmatch(mine + path, request.path)
            if match is not None and method == request.method:
                authorization = request.headers.get("authorization", "")
                self.access.admit(authorization, permission, self.knobs.takes)
                if not _USER_AGENT.fullmatch(request.headers.get("user-agent", "")):
                    raise Refusal(400, "bad_request", "User-Agent: product/version")
                return partial(handle, self, request, *match.groups())
        is_mine = re.match(f"{mine}(/|$)", request.path)
        raise Refusal(405 if is_mine else 401, f"{request.method} not allowed")

    # Orders

    def _check_out(self, request: VendorRequest) -> Body:
        cart, sums = self._priced(request)
        lines = lists.expanded([_line(line, _LINES) for line in cart.lines])
        return {
            "orderCart": {"lineItems": lines, "discounts": lists.expanded(cart.discounts)},
            "total": sums.total,
            "subtotal": sums.subtotal,
            "totalTaxAmount": sums.tax,
            "taxSummaries": lists.expanded(sums.taxes),
            "isVat": sums.is_vat,
        }

    def _create(self, request: VendorRequest) -> Body:
        cart, sums = self._priced(request)
        restaurant, knobs = self.restaurant, self.knobs
        words = {name: cart.text(name) for name in ("title", "note", "externalReferenceId")}
        words["note"] = None if knobs.loses_note else words["note"]
        words["externalReferenceId"] = (
            words["externalReferenceId"] if knobs.takes_reference else None
        )
        others = {"orderType": cart.order_type, "serviceCharge": cart.service_charge}
        times = ("createdTime", "clientCreatedTime", "modifiedTime")
        order = {
            "id": restaurant.next_id("O"),
            "currency": self.shop.currency,
            "total": sums.total,
            "taxRemoved": not cart.is_taxed,
            "isVat": sums.is_vat,
            "state": cart.text("state") or (None if knobs.hides_stateless else "open"),
            "paymentState": "OPEN",
            **{name: value for name, value in {**words, **others}.items() if value is not None},
            **dict.fromkeys(times, restaurant.now),
            "lineItems": [{"id": restaurant.next_id("L"), **line} for line in cart.lines],
            "discounts": cart.discounts,
            "payments": [],
            "refunds": [],
        }
        restaurant.add(order)
        return self._seen(order, ("lineItems", "discounts", *_LINES))

    def _priced(self, request: VendorRequest) -> tuple[Cart, Totals]:
        cart = Cart(_object(request), self.shop, self.knobs)
        charge = (cart.service_charge or {}).get("percentageDecimal", 0)
        how = {"is_vat": self.shop.is_vat, "each_line": self.knobs.taxes_each_line}
        return cart, totals(cart.lines, cart.discounts, charge, **how)

    def _list(self, request: VendorRequest) -> VendorReply:
        expand, now = lists.expansions(request, _EXPANDABLE), self.restaurant.now
        until, every = now - 1000 * self.knobs.lists_after, self.restaurant.orders.values()
        listed = [each for each in every if each["createdTime"] <= until]
        found = lists.found(listed, request, self.knobs.ignored_filters, now)
        if not self.knobs.oldest_first:
            found.reverse()
        allowed = {"X-Clover-Allowed-Filter-Fields": ",".join(lists.FIELDS)}
        return lists.page([self._seen(each, expand) for each in found], request, allowed)

    def _get(self, request: VendorRequest, order_id: str) -> Body:
        expand = lists.expansions(request, _EXPANDABLE)
        return self._seen(self.restaurant.order(order_id), expand)

    def _list_lines(self, request: VendorRequest, order_id: str) -> VendorReply:
        lines = self.restaurant.order(order_id)["lineItems"]
        return lists.page([_line(each, _LINES) for each in lines], request)

    def _delete(self, _: VendorRequest, order_id: str) -> VendorReply:
        if taken(self.restaurant.order(order_id)):
            raise Refusal(400, "bad_request", "an order with payments is not deleted")
        self.restaurant.delete(order_id)
        return VendorReply(200)

    def _pay(self, request: VendorRequest, order_id: str) -> Body:
        sent = checked("payment", _object(request), self.knobs)
        order = self.restaurant.order(order_id)
        tender = self.shop.tenders.get(sent["tender"]["id"])
        if tender is None or tender["labelKey"].endswith("_card"):
            raise Refusal(400, "bad_request", "tender: none of the merchant's external ones")
        known = {"id": self.restaurant.next_id("P"), "createdTime": self.restaurant.now}
        payment = {"result": self.knobs.payment_result, **sent, **known, "order": {"id": order_id}}
        self.restaurant.pay(order, payment)
        return payment

    def _ask_to_print(self, request: VendorRequest) -> Body:
        sent = checked("print request", _object(request), self.knobs)
        order = self.restaurant.order(sent["orderRef"]["id"])
        times = dict.fromkeys(("createdTime", "modifiedTime", "printTime"), self.restaurant.now)
        references = {"orderRef": {"id": order["id"]}, "deviceRef": {"id": "default-device"}}
        event: Body = {
            "id": self.restaurant.next_id("E"),
            **references,
            "state": "CREATED",
            **times,
        }
        self.restaurant.print_events[event["id"]] = event
        return dict(event)

    def _get_print_event(self, _: VendorRequest, event_id: str) -> Body:
        event = self.restaurant.print_events.get(event_id)
        if event is None or event["state"] == "DONE":
            raise Refusal(400, "The print event is missing")
        return event

    def _seen(self, order: Body, expand: Collection[str]) -> Body:
        """An order as a reply has it."""
        hidden = {*_LISTS, "serviceCharge"} - set(expand)
        hidden |= {"payments"} if self.knobs.hides_payments else set()
        seen = {name: value for name, value in order.items() if name not in hidden}
        for name in ("state", "currency"):
            seen[name] = self.knobs.spelling.get(seen[name], seen[name])
        if "lineItems" in seen:
            seen["lineItems"] = [_line(each, expand) for each in seen["lineItems"]]
        return {**seen, **{name: lists.expanded(seen[name]) for name in _LISTS if name in seen}}

    # The merchant

    def _get_merchant(self, request: VendorRequest) -> Body:
        return {"id": self.shop.merchant_id, "properties": self._get_properties(request)}

    def _get_properties(self, _: VendorRequest) -> Body:
        zone = {"timezone": self.shop.timezone}
        return {"vat": self.shop.is_vat, "defaultCurrency": self.shop.currency, **zone}

    def _list_records(self, request: VendorRequest, name: str) -> VendorReply:
        return lists.page(list(getattr(self.shop, name).values()), request)

    def _list_items(self, request: VendorRequest) -> VendorReply:
        hidden = {"modifierGroups", "itemStock"}
        hidden -= lists.expansions(request, hidden)
        groups = {
            name: {**group, "modifiers": lists.expanded(group["modifiers"])}
            for name, group in self.shop.modifier_groups.items()
        }
        whole = [
            {**each, "modifierGroups": lists.expanded([groups[x] for x in each["modifierGroups"]])}
            for each in self.shop.items.values()
        ]
        seen = [{name: each[name] for name in each if name not in hidden} for each in whole]
        return lists.page(seen, request)

    def _list_modifiers(self, request: VendorRequest) -> VendorReply:
        return lists.page(list(self.shop.modifiers.values()), request)


#: By method and path below the merchant: the permission, and the handler.
_ROUTES: list[tuple[str, str, str, Callable[..., Body | VendorReply]]] = [
    ("POST", "/atomic_order/checkouts", "ORDERS_R", Clover._check_out),
    ("POST", "/atomic_order/orders", "ORDERS_W", Clover._create),
    ("GET", "/orders", "ORDERS_R", Clover._list),
    ("GET", "/orders/([^/]+)", "ORDERS_R", Clover._get),
    ("DELETE", "/orders/([^/]+)", "ORDERS_W", Clover._delete),
    ("GET", "/orders/([^/]+)/line_items", "ORDERS_R", Clover._list_lines),
    ("POST", "/orders/([^/]+)/payments", "PAYMENTS_W", Clover._pay),
    ("POST", "/print_event", "ORDERS_W", Clover._ask_to_print),
    ("GET", "/print_event/([^/]+)", "ORDERS_R", Clover._get_print_event),
    ("GET", "", "MERCHANT_R", Clover._get_merchant),
    ("GET", "/properties", "MERCHANT_R", Clover._get_properties),
    ("GET", "/(tenders|order_types|opening_hours)", "MERCHANT_R", Clover._list_records),
    ("GET", "/items", "INVENTORY_R", Clover._list_items),
    ("GET", "/modifiers", "INVENTORY_R", Clover._list_modifiers),
]


def _object(request: VendorRequest) -> Body:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Refusal(415, "Unsupported Media Type")
    try:
        found = json.loads(request.body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Refusal(400, "bad_request", "the body is no JSON object")
    return found


def _line(line: Body, expand: Collection[str]) -> Body:
    hidden = [name for name in _OF_LINES if f"lineItems.{name}" not in expand]
    seen = {name: value for name, value in line.items() if name not in hidden}
    return {
        name: lists.expanded(value) if isinstance(value, list) else value
        for name, value in seen.items()
    }
