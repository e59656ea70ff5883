"""HubRise's API for one location and one client, and what the shop's EPOS does.

Documented: a list is of the orders placed at or after ``after``, and before ``before``, up to 100 (``count``) a page, by the
cursor of ``X-Cursor-Next``; totals are HubRise's, and payments of another sum are kept as they are; a client hears of no change of
its own; rates by windows that start at a round minute, hour and day; an event is sent six times at most, until an answer of
200 to 499.

Judgement: a private ref is taken once ("unique"); all amounts are in the account's currency; an EPOS prints an order
once, when it has received the order; a status can always be overwritten; lists have the oldest order first, and a
time without an offset, an unknown cursor or a wrong count is a 400.
"""

import hashlib
import hmac
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import partial
from math import ceil, inf
from typing import Any

from testkit.vendors.fields import faults
from testkit.vendors.http import VendorReply, VendorRequest, dated
from testkit.vendors.hubrise.tables import MONEY, TABLES
from testkit.vendors.webhooks import Webhooks

Body = dict[str, Any]
#: Windows in seconds, and the requests in each: all requests, lists of orders.
_RATES = ((60, 500), (3600, 2_500), (86_400, 10_000))
_LISTS = (60, 10)
#: The statuses of orders that an EPOS has never had, or need not make.
_NOT_MADE = ("new", "rejected", "cancelled")


@dataclass(slots=True)
class Knobs:
    """Settings of a test.

    Attributes:
        arrives: the status that the EPOS gives an order before HubRise answers; ``new``: not yet any.
        adds: minor units that HubRise adds to each total.
        cuts: characters that HubRise keeps of a text; None: all.
        takes_doubles: a private ref is taken more than once.
        found_after: seconds until lists have an order.
        says_when: a 429 has ``Retry-After``, which no document promises.
        hours: by day of the week; None: not set.
        acceptance: whether the location takes orders now.
    """

    arrives: str = "accepted"
    adds: int = 0
    cuts: int | None = None
    takes_doubles: bool = False
    found_after: float = 0
    says_when: bool = False
    hours: Mapping[str, list[Body]] | None = None
    acceptance: Body = field(default_factory=lambda: {"mode": "online"})


class Refusal(Exception):
    """HubRise's reply to a request that is not carried out."""

    def __init__(self, status: int, error_type: str, **body: Any) -> None:
        super().__init__(error_type)
        self.reply = VendorReply(status, {**body, "error_type": error_type})


class HubRise:
    """One location.

    Args:
        clock: the present.
        location_id: the location's.
        currency: the account's.
        token: the connection's.
        zone: the location's.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        location_id: str = "3r4s3-1",
        currency: str = "EUR",
        token: str = "token-1",
        zone: str = "Europe/Paris",
    ) -> None:
        self.zone = zone
        self._clock, self.location_id, self.currency = clock, location_id, currency
        self.tokens = {token}
        self.knobs = Knobs()
        self.webhooks = Webhooks(
            timeout=20, attempts=6, comes_again=lambda status: not 200 <= status < 500
        )
        self.orders: dict[str, Body] = {}
        self._made: dict[str, float] = {}
        self._tickets: Counter[str] = Counter()
        self._counted: Counter[tuple[str, int, int]] = Counter()
        self._ids = 0

    @property
    def acts(self) -> Mapping[str, Callable[..., object]]:
        """What the EPOS, the shop and the operator do; of the EPOS by the order's new status."""
        statuses = TABLES["order"]["status"].one_of
        return {
            **{status: partial(self.update, status=status) for status in statuses},
            "update": self.update,
            "revoke": self.tokens.clear,
        }

    def answer(self, request: VendorRequest) -> VendorReply:
        try:
            return deepcopy(self._answered(request))
        except Refusal as refusal:
            return refusal.reply

    def facts(self) -> list[Body]:
        """The truth of each order, in the order of creation."""
        return [
            {
                **{name: order[name] for name in ("id", "private_ref", "status", "service_type")},
                "total": _minor(order["total"]),
                "paid": sum(_minor(each["amount"]) for each in order["payments"]),
                "printed": self._tickets[order["id"]],
                "order": order,
            }
            for order in self.orders.values()
        ]

    def update(self, order_id: str, **fields: Any) -> None:
        """The EPOS changes an order, and HubRise tells the client."""
        order = self.orders[order_id]
        before = dict(order)
        self._change(order, fields)
        event = {
            "id": self._next_id(),
            "resource_type": "order",
            "event_type": "update",
            "created_at": self._clock().isoformat(),
            "location_id": self.location_id,
            "order_id": order_id,
            "previous_state": before,
            "new_state": order,
        }
        self.webhooks.add(json.dumps(event).encode(), signed)

    # Requests

    def _answered(self, request: VendorRequest) -> VendorReply:
        if request.headers.get("x-access-token") not in self.tokens:
            said = "The access token is invalid or the connection has been revoked"
            raise Refusal(401, "unauthorized", message=said)
        if request.method == "GET" and request.path.endswith(f"/locations/{self.location_id}"):
            self._count("all", *_RATES)
            return VendorReply(200, self._location(), dated(self._clock()))
        orders = f"/locations/{re.escape(self.location_id)}/orders"
        match = re.fullmatch(f".*{orders}(?:/([^/]+))?", request.path)
        if match is None:
            raise Refusal(404, "routing_error")
        self._count("all", *_RATES)
        match request.method, match[1]:
            case "POST", None:
                return VendorReply(200, self._create(_object(request, "order")))
            case "GET", None:
                self._count("lists", _LISTS)
                return self._list(request)
            case "GET", str(order_id):
                return VendorReply(200, self._order(order_id))
            case "PATCH", str(order_id):
                order = self._order(order_id)
                self._change(order, _object(request, "update"))
                return VendorReply(200, order)
        raise Refusal(404, "routing_error")

    def _location(self) -> Body:
        return {
            "id": self.location_id,
            "account": {"id": "3r4s3", "currency": self.currency},
            "timezone": {"name": self.zone},
            "opening_hours": self.knobs.hours,
            "order_acceptance": self.knobs.acceptance,
        }

    def _count(self, what: str, *rates: tuple[int, int]) -> None:
        now = self._clock().timestamp()
        windows = [(what, seconds, int(now // seconds)) for seconds, _ in rates]
        for window, (seconds, most) in zip(windows, rates, strict=True):
            if self._counted[window] >= most:
                after = {"Retry-After": str(ceil(seconds - now % seconds))}
                refusal = Refusal(429, "too_many_requests")
                given = after if self.knobs.says_when else {}
                refusal.reply = VendorReply(429, refusal.reply.body, given)
                raise refusal
        self._counted.update(windows)

    def _create(self, sent: Body) -> Body:
        self._check_currency(sent)
        mark = sent.get("private_ref")
        is_double = mark and any(each["private_ref"] == mark for each in self.orders.values())
        if is_double and not self.knobs.takes_doubles:
            raise _invalid([("private_ref", "has already been taken")])
        order = {
            **dict.fromkeys(TABLES["order"]),
            **{name: [] for name in ("coupon_codes", "items", "discounts", "charges", "payments")},
            **self._kept(sent),
            "private_ref": mark,
            "id": self._next_id(),
            "location_id": self.location_id,
            "created_at": self._clock().isoformat(),
            "created_by": "Gateway",
            "total": f"{Decimal(_total(sent) + self.knobs.adds) / 100:.2f} {self.currency}",
        }
        for item in order["items"]:
            item["quantity"] = f"{Decimal(item['quantity']):.1f}"
        self.orders[order["id"]] = order
        self._made[order["id"]] = self._clock().timestamp()
        if self.knobs.arrives != sent["status"]:
            self._change(order, {"status": self.knobs.arrives})
        return order

    def _list(self, request: VendorRequest) -> VendorReply:
        until = self._clock().timestamp() - self.knobs.found_after
        asked = {name: values[-1] for name, values in request.query.items()}
        times = {name: _time(asked[name]) for name in ("after", "before") if name in asked}
        found = [
            each
            for each in self.orders.values()
            if self._made[each["id"]] <= until
            and times.get("after", 0.0) <= self._made[each["id"]] < times.get("before", inf)
            and all(
                each[name] in request.query[name]
                for name in ("private_ref", "status")
                if name in request.query
            )
        ]
        given = asked.get("count", "100")
        if not re.fullmatch("[1-9][0-9]?|100", given):
            raise Refusal(400, "bad_request", message=f"count {given}")
        last, count = asked.get("cursor"), int(given)
        if last is not None:
            ids = [f"after-{each['id']}" for each in found]
            if last not in ids:
                raise Refusal(400, "bad_request", message="the cursor is unknown")
            found = found[ids.index(last) + 1 :]
        more = {"X-Cursor-Next": f"after-{found[count - 1]['id']}"} if len(found) > count else {}
        return VendorReply(200, found[:count], {**dated(self._clock()), **more})

    def _order(self, order_id: str) -> Body:
        if order_id not in self.orders:
            raise Refusal(404, "not_found")
        return self.orders[order_id]

    def _change(self, order: Body, fields: Body) -> None:
        was_made = order["status"] not in _NOT_MADE
        order.update(fields)
        self._tickets[order["id"]] += order["status"] not in _NOT_MADE and not was_made

    def _kept(self, sent: Any) -> Any:
        """What HubRise keeps of a value."""
        match sent:
            case dict():
                return {name: self._kept(value) for name, value in sent.items()}
            case list():
                return [self._kept(value) for value in sent]
            case str() if self.knobs.cuts is not None:
                return sent[: self.knobs.cuts]
        return sent

    def _check_currency(self, sent: Any) -> None:
        if isinstance(sent, dict | list):
            for each in sent.values() if isinstance(sent, dict) else sent:
                self._check_currency(each)
        elif isinstance(sent, str) and re.fullmatch(MONEY, sent) and sent[-3:] != self.currency:
            raise _invalid([("currency", f"must be {self.currency}")])

    def _next_id(self) -> str:
        self._ids += 1
        return f"x{self._ids:04d}"


def _object(request: VendorRequest, table: str) -> Body:
    if request.headers.get("content-type") != "application/json":
        raise Refusal(415, "unsupported_media_type")
    try:
        sent = json.loads(request.body)
    except ValueError:
        raise Refusal(400, "bad_request", message="the body is no JSON") from None
    if broken := faults(TABLES, table, sent):
        raise _invalid([(each.path, each.message) for each in broken])
    assert isinstance(sent, dict)
    return sent


def _invalid(errors: list[tuple[str, str]]) -> Refusal:
    listed = [{"field": field, "message": message} for field, message in errors]
    return Refusal(422, "unprocessable_entity", message="Validation failed", errors=listed)


def _total(order: Body) -> int:
    """Items with their options, plus charges, minus discounts."""
    total = 0
    for item in order.get("items", ()):
        options = item.get("options", ())
        each = sum(_minor(one.get("price", "0.00 X")) * one.get("quantity", 1) for one in options)
        total += int(Decimal(item["quantity"]) * (_minor(item["price"]) + each))
    charges = sum(_minor(each["price"]) for each in order.get("charges", ()))
    return total + charges - sum(_minor(each["price_off"]) for each in order.get("discounts", ()))


def _time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(400, "bad_request", message=f"{text} is no time") from None
    if moment.tzinfo is None:
        raise Refusal(400, "bad_request", message=f"{text} is a time without an offset")
    return moment.timestamp()


def _minor(money: str) -> int:
    return int(Decimal(money.partition(" ")[0]) * 100)


def signed(key: str, url: str, body: bytes) -> Mapping[str, str]:
    return {"X-HubRise-Hmac-SHA256": hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}
