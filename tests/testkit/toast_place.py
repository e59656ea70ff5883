"""A restaurant at the simulated Toast, and requests of one that is allowed everything."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from testkit.vendors.http import VendorReply
from testkit.vendors.toast import simulator
from testkit.vendors.toast.api import Toast
from testkit.vendors.way import arrived
from tests.adapters.vendors import guid

Body = dict[str, Any]

PLACE = guid("restaurant")
PICKUP, DELIVERY, DINE_IN = guid("dining option"), guid("delivery"), guid("dine-in")
PAID, TABLE, COURIER_FEE = guid("payment"), guid("table 7"), guid("fee")
VOUCHER, STAFF = guid("voucher"), guid("staff")
MAINS, DRINKS, SAUCES, SIDES, DRESSINGS = map(guid, ("mains", "drinks", "sauces", "sides", "dress"))
BURGER, SOUP, COKE, MAYO, SALAD, RANCH, CATCH = map(
    guid, ("burger", "soup", "coke", "mayo", "salad", "ranch", "catch")
)

_RANCH = {"group": DRESSINGS, "guid": RANCH, "name": "Ranch", "price": 25, "fewest": 1, "most": 1}
MENU: list[Body] = [
    {
        "group": MAINS,
        "guid": BURGER,
        "name": "Burger",
        "price": 850,
        "options": [
            {"group": SAUCES, "guid": MAYO, "name": "Mayo", "price": 50, "most": 60},
            {"group": SIDES, "guid": SALAD, "name": "Salad", "price": 200, "options": [_RANCH]},
        ],
    },
    {"group": MAINS, "guid": SOUP, "name": "Tomato Soup", "price": 899},
    {"group": MAINS, "guid": CATCH, "name": "Catch of the day", "price": None},
    {"group": DRINKS, "guid": COKE, "name": "Coke", "price": 300},
]
RESTAURANT: Body = {
    "guid": PLACE,
    "menu": MENU,
    "dining_options": {PICKUP: "TAKE_OUT", DELIVERY: "DELIVERY", DINE_IN: "DINE_IN"},
    "payment_types": {PAID: "Paid elsewhere"},
    "tables": {TABLE: "Table 7"},
    "service_charges": {COURIER_FEE: {"name": "Courier", "behaviors": ["DELIVERY"]}},
    "discounts": {
        VOUCHER: {"name": "Voucher", "kind": "OPEN_FIXED"},
        STAFF: {"name": "Staff", "kind": "OPEN_PERCENT"},
    },
}
LOGIN = {"clientId": "client", "clientSecret": "secret", "userAccessType": "TOAST_MACHINE_CLIENT"}
CUSTOMER = {"firstName": "Ada", "lastName": "Lovelace", "phone": "555-010-0199"}
CUSTOMER["email"] = "ada.l@example.com"
ADDRESS = {"address1": "1 Main St", "city": "Boston", "state": "MA", "zipCode": "02215"}


class Clock:
    """A test's."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 20, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **time: float) -> None:
        self.now += timedelta(**time)


class Place:
    """Toast, and a client of it with a token."""

    def __init__(self, **restaurant: Any) -> None:
        self.clock = Clock()
        self.toast: Toast = simulator(self.clock, **{**RESTAURANT, **restaurant})
        self.login()

    def login(self) -> None:
        reply = self.ask("POST", "/authentication/v1/authentication/login", LOGIN)
        assert isinstance(reply.body, dict)
        self.token = reply.body["token"]["accessToken"]

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str | None] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> VendorReply:
        """A reply to a request that has all headers but those that are None here."""
        given: dict[str, str | None] = {
            "Authorization": f"Bearer {getattr(self, 'token', '')}",
            "Toast-Restaurant-External-ID": PLACE,
            "Content-Type": "application/json" if body is not None else None,
            **(headers or {}),
        }
        sent = {name: value for name, value in given.items() if value is not None}
        content = b"" if body is None else json.dumps(body).encode()
        url = f"https://toast.example.com{path}?{urlencode(query or {})}"
        return self.toast.answer(arrived(method, url, sent, content))

    def posted(self, order: Body) -> Body:
        """The order that Toast has made of this one."""
        reply = self.ask("POST", "/orders/v2/orders", order)
        assert reply.status == 200, reply.body
        assert isinstance(reply.body, dict)
        return reply.body

    def refused(self, order: Body) -> tuple[int, str]:
        """Status and words of the refusal of an order, which prices and creation have in common."""
        replies = [self.ask("POST", f"/orders/v2/{path}", order) for path in ("prices", "orders")]
        [(status, words)] = {(each.status, dict(each.body)["message"]) for each in replies}  # type: ignore[call-overload]
        return status, words

    @property
    def fact(self) -> Body:
        """The only order's facts."""
        [fact] = self.toast.facts()["orders"]
        return dict(fact)


def item(kind: str = BURGER, group: str = MAINS, quantity: float = 1, **fields: Any) -> Body:
    return {"item": {"guid": kind}, "itemGroup": {"guid": group}, "quantity": quantity, **fields}


def option(kind: str = MAYO, group: str = SAUCES, quantity: float = 1, **fields: Any) -> Body:
    return {"item": {"guid": kind}, "optionGroup": {"guid": group}, "quantity": quantity, **fields}


def paid(amount: float, tip: float = 0, **fields: Any) -> Body:
    means = {"type": "OTHER", "otherPayment": {"guid": PAID}}
    return {**means, "amount": amount, "tipAmount": tip, **fields}


def an_order(*items: Body, check: Body | None = None, **fields: Any) -> Body:
    """A takeout order of one check that Toast takes."""
    whole = {"selections": list(items) or [item()], "customer": CUSTOMER, **(check or {})}
    return {"diningOption": {"guid": PICKUP}, "checks": [whole], **fields}


def at(when: datetime) -> str:
    """A time in Toast's form."""
    return f"{when:%Y-%m-%dT%H:%M:%S.000+0000}"
