"""A Clover merchant: refuses what its models and documents refuse, and adds tax of its own.

From "Create an atomic order", "Manage orders data", the server-side limits of 2026, and the
constants of the models in Clover's Android SDK. Shares no code with the adapter.
"""

import json
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.scripted import reply

Body = dict[str, Any]

_LINES = 2500
#: Longest texts of a cart, a line and a modification.
_CART = {"note": 2047, "title": 127}
_LINE = {"name": 127, "note": 255}
_MODIFICATION = {"name": 255}


class CloverPos(Send):
    """One merchant.

    Args:
        tax: in percent, on every order.
        currency: the merchant's.
        loses: the note of every order is lost.
    """

    def __init__(self, *, tax: int = 0, currency: str = "EUR", loses: bool = False) -> None:
        self.tax, self.currency, self.loses = tax, currency, loses
        self.orders: list[Body] = []
        self.requests: list[Request] = []
        #: Methods whose requests are carried out, and not answered.
        self.silent: set[str] = set()

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        answer = self._answer(request)
        if request.method in self.silent:
            raise NoValidReply("timeout", "no reply in time")
        return answer

    @property
    def standing(self) -> list[Body]:
        """Orders that are not deleted."""
        return [each for each in self.orders if "deletedTime" not in each]

    def _answer(self, request: Request) -> Reply:
        path = unquote(urlsplit(request.url).path.removeprefix("/v3/merchants/M1"))
        if request.method == "POST":
            return self._made(json.loads(request.body or b"")["orderCart"])
        name = path.removeprefix("/orders").removeprefix("/")
        if not name:
            query = parse_qs(urlsplit(request.url).query)
            offset, limit = int(query["offset"][0]), int(query["limit"][0])
            return reply(200, {"elements": self.standing[offset : offset + limit]})
        found = [each for each in self.standing if each["id"] == name]
        if not found:
            return reply(404, {"message": "Not Found"})
        if request.method == "DELETE":
            found[0]["deletedTime"] = 1
            return reply(200, b"")
        return reply(200, found[0])

    def _made(self, cart: Body) -> Reply:
        refused = _too_long(cart, _CART, "order")
        number, total = 0, 0
        for line in cart["lineItems"]:
            number += 1
            refused = refused or _too_long(line, _LINE, "line")
            total += line["price"]
            for each in line.get("modifications", ()):
                refused = refused or _too_long(each, _MODIFICATION, "modification")
                total += each["amount"]
        if number > _LINES:
            refused = f"more than {_LINES} line items"
        if refused:
            return reply(400, {"message": refused})
        made = {
            "id": f"8WAD6KV8D90K{len(self.orders)}",
            "currency": self.currency,
            "state": "open",
            "total": total + round(total * self.tax / 100),
            **({} if self.loses else {"note": cart["note"]}),
        }
        self.orders.append(made)
        return reply(200, made)


def _too_long(found: Body, limits: dict[str, int], what: str) -> str | None:
    for name, most in limits.items():
        if len(found.get(name) or "") > most:
            return f"the {name} of a {what} is longer than {most}"
    return None
