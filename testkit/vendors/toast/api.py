"""Toast's API in memory: authentication, orders, configuration, menus, stock, hours.

Of the definition and guides: paths, scopes, statuses, ErrorMessage; closed hours, an item that is sold out
and a device that is offline refuse no order. Judgement: a request without restaurant is a 400; a
second order with an external identifier is a 400 (or ``duplicate_status``), as Toast says only that
it fails; a name with a colon is an external identifier, and may have an encoded slash. Not played:
adding items, discounts or card payments to an order; lists that are deprecated; a second client.
"""

import copy
import json
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from testkit.vendors.http import VendorReply, VendorRequest, dated
from testkit.vendors.toast.access import Rates, Tokens
from testkit.vendors.toast.definition import GUID
from testkit.vendors.toast.menu import Body
from testkit.vendors.toast.messages import (
    ATTEMPTS,
    TIMEOUT,
    comes_again,
    order_updated,
    signed,
)
from testkit.vendors.toast.orders import PlacedOrder, placed
from testkit.vendors.toast.pricing import priced
from testkit.vendors.toast.restaurant import Restaurant
from testkit.vendors.toast.rules import Refused, cents, external_ids, lines_of, shaped, time_of
from testkit.vendors.webhooks import Webhooks

#: The request, and what its path names.
_Handler = Callable[..., object]
_UNKNOWN = "The specified order was not found"
_LOGIN = "/authentication/v1/authentication/login"
_ORDER = "/orders/v2/orders"
_PAYMENTS = f"{_ORDER}/({GUID})/checks/({GUID})/payments"
_READ, _WRITE = "orders:read orders.channel:read", "orders.orders:write"


class Toast:
    """Toast, with one restaurant and one client. ``knobs`` is the restaurant."""

    def __init__(
        self, knobs: Restaurant, client: tuple[str, str], clock: Callable[[], datetime]
    ) -> None:
        self.knobs = knobs
        self.webhooks = Webhooks(timeout=TIMEOUT, attempts=ATTEMPTS, comes_again=comes_again)
        self.tokens, self._rates = Tokens(client, clock, self._guid), Rates(clock)
        self.orders: list[PlacedOrder] = []
        #: Orders by GUID and by each external identifier; and those that the device may yet fire.
        self._named: dict[str, PlacedOrder] = {}
        self._waiting: list[PlacedOrder] = []
        staff = ("fire", "reject", "ready", "close", "void", "combine")
        self.acts: Mapping[str, Callable[..., object]] = {
            **{name: self._staff(name) for name in staff},
            "end_tokens": self.tokens.end,
        }
        self._clock, self._numbers = clock, 0
        self._routes: tuple[tuple[str, str, str, _Handler], ...] = (
            ("POST", "/orders/v2/prices", _WRITE, self._prices),
            ("POST", _ORDER, _WRITE, self._create),
            ("GET", "/orders/v2/ordersBulk", _READ, self._bulk),
            ("POST", f"{_ORDER}/({GUID})/void", "orders.channel:void", self._void),
            ("PATCH", f"{_ORDER}/({GUID})/deliveryInfo", "orders.delivery_info:write", self._sent),
            ("PATCH", f"{_PAYMENTS}/({GUID})", "orders.payments:write", self._tip),
            ("POST", _PAYMENTS, "orders.payments:write", self._pay),
            ("GET", f"{_ORDER}/(.+)", _READ, self._order),
            ("GET", "/config/v2/([A-Za-z]+)", "config:read", self._configuration),
            ("GET", "/menus/v2/metadata", "menus:read", lambda _: knobs.metadata()),
            ("GET", "/menus/v2/menus", "menus:read", lambda _: knobs.menus()),
            ("GET", "/stock/v1/inventory", "stock:read", self._inventory),
            ("GET", f"/restaurants/v1/restaurants/{GUID}", "restaurants:read", self._information),
            (
                "GET",
                "/restaurant-availability/v1/availability",
                "restaurants:read",
                lambda _: knobs.availability(),
            ),
        )

    def answer(self, request: VendorRequest) -> VendorReply:
        headers = dated(self._clock())
        self._tick()
        try:
            body = self._answered(request, headers)
        except Refused as refused:
            nothing = ("messageKey", "fieldName", "link", "developerMessage", "canRetry")
            said = {"status": refused.status, "code": refused.code, "message": refused.message}
            message = {**said, **dict.fromkeys(nothing), "requestId": self._guid(), "errors": []}
            return VendorReply(refused.status, message, headers)
        return VendorReply(200, copy.deepcopy(body), headers)

    def facts(self) -> Body:
        """Each order's, in the order of their creation; the logins; the answers to messages."""
        self._tick()
        return {
            "orders": [each.facts() for each in self.orders],
            "logins": self.tokens.logins,
            "deliveries": list(self.webhooks.statuses),
        }

    def _answered(self, request: VendorRequest, headers: dict[str, str]) -> object:
        if (request.method, request.path) == ("POST", _LOGIN):
            return self.tokens.login(_json(request))
        for method, path, scopes, handler in self._routes:
            found = re.fullmatch(path, request.path, re.DOTALL)
            if found is None or method != request.method:
                continue
            self.tokens.check(request)
            restaurant = request.headers.get("toast-restaurant-external-id")
            if restaurant is None:
                raise Refused("the header Toast-Restaurant-External-ID is required")
            is_allowed, limits = self._rates.count(request.path.rpartition("/")[2])
            headers.update(limits)
            if not is_allowed:
                if not self.knobs.says_when:
                    del headers["Retry-After"]
                raise Refused("too many requests", 429)
            if restaurant.lower() != self.knobs.guid:
                raise Refused("InvalidRestaurant: the client has no access to it", 403)
            if missing := set(scopes.split()) - set(self.knobs.scopes.split()):
                raise Refused(f"UnauthorizedOperation: needs {' '.join(sorted(missing))}", 403)
            return handler(request, *found.groups())
        raise Refused("no such endpoint", 404)

    def _tick(self) -> None:
        for order in self._waiting:
            if order.tick(self._clock(), self.knobs):
                self._changed(order)
        self._waiting = [each for each in self._waiting if not each.printed]

    def _staff(self, action: str) -> Callable[[str], None]:
        """What staff does with an order, by its GUID or external identifier."""

        def act(order: str) -> None:
            self._tick()
            found = self._find(order)
            getattr(found, action)(self._clock())
            self._changed(found)

        return act

    def priced(self, order: Body) -> Body:
        """The order with the amounts that it has at the moment. Raises Refused."""
        return self._priced(order)[0]

    def _prices(self, request: VendorRequest) -> Body:
        return self.priced(_json(request))

    def _create(self, request: VendorRequest) -> Body:
        asked = _json(request)
        order, lines = self._priced(asked)
        names = list(external_ids(asked))
        if self._named.keys() & set(names) or len(names) > len(set(names)):
            raise Refused("the externalId exists already", self.knobs.duplicate_status)
        made = placed(order, lines, self.knobs, self._guid, self._clock())
        self._named |= dict.fromkeys((made.content["guid"], *names), made)
        self.orders.append(made)
        self._waiting.append(made)
        self._changed(made)
        answered = self._readable(made)
        self._tick()
        return answered

    def _priced(self, order: Body) -> tuple[Body, list[Any]]:
        lines = lines_of(order, self.knobs, self._clock())
        asked = zip(order["checks"], lines, strict=True)
        checks = [priced(check, each, self.knobs) for check, each in asked]
        unnumbered = {"guid": None, "entityType": "Order", "voided": False}
        return {**order, **unnumbered, "checks": checks}, lines

    def _order(self, _: VendorRequest, name: str) -> Body:
        if ":" not in name and not re.fullmatch(GUID, name):
            raise Refused("The GUID was malformed")
        found = self._find(name)
        if ":" in name and not found.is_there(self._clock(), self.knobs):
            raise Refused(_UNKNOWN, 404)
        return self._readable(found)

    def _bulk(self, request: VendorRequest) -> list[Body]:
        asked = {name: values[-1] for name, values in request.query.items()}
        size, page = asked.get("pageSize", "100"), asked.get("page", "1")
        if not re.fullmatch("[1-9][0-9]?|100", size) or not re.fullmatch("[1-9][0-9]*", page):
            raise Refused("a page has at most 100, and a number")
        if not {"startDate", "endDate"} <= asked.keys():
            raise Refused("startDate and endDate are required")
        since, until = time_of(asked["startDate"]), time_of(asked["endDate"])
        if not since < until <= since + timedelta(days=31):
            raise Refused("endDate is not after startDate, or by more than a month")
        found = [
            each for each in self.orders if since <= time_of(each.content["modifiedDate"]) < until
        ]
        return [self._readable(each) for each in found[(int(page) - 1) * int(size) :][: int(size)]]

    def _void(self, request: VendorRequest, name: str) -> Body:
        asked = shaped("Void", _json(request))
        if not all((asked.get(each) or {}).get("voidAll") for each in ("selections", "payments")):
            raise Refused("selections.voidAll and payments.voidAll are required")
        order = self._find(name)
        if order.printed and not self.knobs.voids_begun:
            raise Refused("the kitchen has begun with the order")
        order.void(self._clock())
        return self._updated(order)

    def _sent(self, request: VendorRequest, name: str) -> Body:
        asked = shaped("DeliveryUpdate", _json(request))
        order = self._find(name)
        delivery = order.content["deliveryInfo"] or {"deliveryState": "DELIVERED"}
        if delivery.get("deliveryState") == "DELIVERED":
            raise Refused("the order is no delivery, or is delivered")
        delivery.update(asked)
        return self._updated(order)

    def _tip(self, request: VendorRequest, name: str, check: str, payment: str) -> Body:
        asked = shaped("UpdatePaymentRequest", _json(request))
        cents(asked["tipAmount"], "tipAmount")
        order = self._find(name)
        found = order.payment(check, payment)
        if found is None:
            raise Refused("The specified payment was not found", 404)
        found.update(asked)
        return self._updated(order)

    def _pay(self, *_: object) -> Body:
        raise Refused("only card payments may be added, and none was authorized")

    def _updated(self, order: PlacedOrder) -> Body:
        order.modified(self._clock())
        self._changed(order)
        return self._readable(order)

    def _find(self, name: str) -> PlacedOrder:
        found = self._named.get(name) or self._named.get(name.lower())
        if found is None:
            raise Refused(_UNKNOWN, 404)
        return found

    def _readable(self, order: PlacedOrder) -> Body:
        """The order with the guest's data that the client may read."""
        shown = copy.deepcopy(order.content)
        if "delivery_info.address:read" not in self.knobs.scopes:
            shown["deliveryInfo"] = None
        if "guest.pi:read" not in self.knobs.scopes:
            for each in (shown, *shown["checks"]):
                each.pop("customer", None)
                each.pop("curbsidePickupInfo", None)
        return shown

    def _configuration(self, _: VendorRequest, kind: str) -> list[Body]:
        found = self.knobs.configuration(kind)
        if found is None:
            raise Refused("no such endpoint", 404)
        return found

    def _inventory(self, request: VendorRequest) -> list[Body]:
        asked = request.query.get("status", ("OUT_OF_STOCK", "QUANTITY"))
        if not {*asked} <= {"OUT_OF_STOCK", "QUANTITY"}:
            raise Refused("status is OUT_OF_STOCK or QUANTITY")
        return [each for each in self.knobs.inventory() if each["status"] in asked]

    def _information(self, request: VendorRequest) -> Body:
        if not request.path.lower().endswith(self.knobs.guid):
            raise Refused("no such restaurant", 404)
        return self.knobs.information()

    def _changed(self, order: PlacedOrder) -> None:
        body = order_updated(order.content, self.knobs.guid, self._guid(), self._clock())
        self.webhooks.add(body, signed)

    def _guid(self) -> str:
        self._numbers += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(self._numbers)))


def _json(request: VendorRequest) -> Any:
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise Refused("Content-Type is not application/json", 415)
    try:
        return json.loads(request.body)
    except ValueError:
        raise Refused("the body is no JSON") from None
