"""A Toast restaurant: checks each request as Toast's definition and guides say, and prices it itself.

From the orders API's definition (2.9.0: Order, Check, Selection, Customer, Payment), "Specifying
modifiers and instructions for menu item selections", "Order details based on the order dining
option" and "External identifiers". Shares no code with the adapter.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.scripted import reply

Body = dict[str, Any]

#: The fields of an object that a POST may have.
_FIELDS = {
    "Order": "entityType externalId diningOption checks promisedDate requiredPrepTime",
    "Check": "entityType selections customer payments tabName",
    "Customer": "firstName lastName phone phoneCountryCode email",
    "Payment": "type otherPayment paidDate amount tipAmount",
    "Selection": "entityType itemGroup optionGroup item quantity modifiers",
    "Request": "selectionType displayName",
}
#: Those that it must have.
_REQUIRED = {
    "Order": "diningOption checks",
    "Check": "selections",
    "Customer": "firstName lastName phone email",
    "Payment": "type otherPayment amount tipAmount",
    "Selection": "item quantity",
    "Request": "selectionType displayName",
}


class Listed(NamedTuple):
    """An item or a modifier of the menu."""

    group: str
    #: In minor units, before tax unless the restaurant's prices have it in them.
    price: int


class _No(Exception):
    """The request is refused."""

    def __init__(self, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.words, self.status = words, status


class ToastPos(Send):
    """One restaurant.

    Args:
        menu: by GUID.
        tax: tax in percent.
        is_included: the menu's prices have the tax in them.
        takes_payments: a payment settles its check; else it is not applied.
    """

    def __init__(
        self,
        menu: Mapping[str, Listed],
        *,
        tax: int = 0,
        is_included: bool = True,
        takes_payments: bool = True,
    ) -> None:
        self.menu, self.tax, self.is_included = dict(menu), tax, is_included
        self.takes_payments = takes_payments
        self.orders: list[Body] = []
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        path = unquote(urlsplit(request.url).path.removeprefix("/orders/v2"))
        try:
            if request.headers.get("Toast-Restaurant-External-ID") is None:
                raise _No("the restaurant is missing")
            return reply(200, self._answer(request, path))
        except _No as no:
            said = {"status": no.status, "code": 10000, "message": no.words}
            return reply(no.status, said)

    def _answer(self, request: Request, path: str) -> Body:
        if request.method == "POST" and path in ("/prices", "/orders"):
            order = self.priced(json.loads(request.body or b""))
            return order if path == "/prices" else self._made(order)
        name = path.removeprefix("/orders/").removesuffix("/void")
        for order in self.orders:
            if name in (order["guid"], order["externalId"]):
                order["voided"] = order["voided"] or path.endswith("/void")
                return order
        raise _No("order not found", 404)

    def _made(self, order: Body) -> Body:
        if any(each["externalId"] == order["externalId"] for each in self.orders):
            raise _No("an order with this externalId exists")
        number = len(self.orders)
        known = {"guid": f"{number:08}-0000-0000-0000-000000000000", "voided": False}
        made = {**order, **known, "approvalStatus": "APPROVED"}
        self.orders.append(made)
        return made

    def priced(self, order: Body) -> Body:
        """The order with the restaurant's amounts."""
        _has("Order", order)
        if len(order.get("externalId", "")) > 256:
            raise _No("the externalId is too long")
        return {**order, "checks": [self._checked(each) for each in order["checks"]]}

    def _checked(self, check: Body) -> Body:
        _has("Check", check)
        if len(check.get("tabName", "")) > 255:
            raise _No("the tabName is too long")
        if "customer" in check:
            _customer(check["customer"])
        whole = sum(self._price(each, None) for each in check["selections"])
        rate = Decimal(self.tax) / 100
        net = round(whole / (1 + rate)) if self.is_included else whole
        total = whole if self.is_included else whole + round(whole * rate)
        paid = 0
        for each in check.get("payments", ()):
            _has("Payment", each)
            paid += int(Decimal(str(each["amount"])) * 100) if self.takes_payments else 0
        return {
            **check,
            "amount": net / 100,
            "taxAmount": (total - net) / 100,
            "totalAmount": total / 100,
            "paymentStatus": "CLOSED" if paid >= total else "OPEN",
        }

    def _price(self, selection: Body, quantity: int | None) -> int:
        """The price of an item with its modifiers, or of a modifier of a quantity of items."""
        is_modifier = quantity is not None
        if selection.get("selectionType") == "SPECIAL_REQUEST":
            _has("Request", selection)
            if not is_modifier or not 0 < len(selection["displayName"]) <= 1000:
                raise _No("a special request is a modifier of up to 1000 characters")
            return 0
        _has("Selection", selection)
        group = "optionGroup" if is_modifier else "itemGroup"
        listed = self.menu.get(selection["item"]["guid"])
        if listed is None:
            raise _No(f"MenuItem {selection['item']['guid']} was not found", 404)
        if selection.get(group, {}).get("guid") != listed.group:
            raise _No(f"{group} is missing, or not the item's")
        number = selection["quantity"]
        if is_modifier and number != quantity:
            raise _No("the quantities of item and modifier do not match")
        modifiers = selection.get("modifiers", ())
        price = int(number) * listed.price + sum(self._price(each, number) for each in modifiers)
        if not is_modifier and price < 0:
            raise _No("an item is negatively priced")
        return price


def _customer(found: Body) -> None:
    _has("Customer", found)
    if not all(found.values()):
        raise _No("a part of the customer is empty")
    is_short = len(found["email"]) <= 53 and found["email"].isascii()
    if not is_short or found["email"].count("@") != 1:
        raise _No("no e-mail address")
    is_number = found["phone"].isdigit() and found["phone"].isascii()
    if not is_number or (len(found["phone"]) != 10 and "phoneCountryCode" not in found):
        raise _No("no phone number of ten digits")


def _has(kind: str, found: Body) -> None:
    """Refuse an object with an unknown field, or without a required one."""
    known, required = _FIELDS[kind].split(), _REQUIRED[kind].split()
    for name in found:
        if name not in known:
            raise _No(f"{kind} has no field {name}")
    for name in required:
        if found.get(name) in (None, [], ""):
            raise _No(f"{kind} needs {name}")
