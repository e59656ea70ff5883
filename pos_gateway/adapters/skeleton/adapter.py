"""The adapter: an order to the POS's requests, and the POS's replies to an Outcome.

The POS answers 200 to everything, with an error in the body; has no idempotency key, and finds orders by a
reference of ours; has money as decimal texts, numbers as ids; and takes its key in the query. Change all of
this to what the vendor documents, with the page as the source of each number.
"""

import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.protocol import Guarantee, Limits
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.replies import by_status, decision, in_doubt, json_object
from pos_gateway.domain.credentials import ApiKey
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import Reply, Request, Send

#: The fields of ``pos`` in a merchant's record: meaning, and form.
FIELDS = {"shop": PosField("the shop's number at the POS", r"[0-9]{1,9}")}
#: The POS's states of an order.
STATES = {
    "open": Kind.ACCEPTED,
    "done": Kind.ACCEPTED,
    "waiting": Kind.PENDING,
    "void": Kind.CANCELLED,
}
#: The POS's error codes that refuse an order. Any other code says nothing about the order.
REFUSALS = {12: Rejection.ITEM_UNAVAILABLE, 20: Rejection.STORE_CLOSED, 21: Rejection.INVALID_ORDER}
UNKNOWN_ORDER = 40
#: Currencies with hundredths that the POS takes.
CURRENCIES = frozenset({"EUR", "GBP", "USD"})
#: Maximum characters of a text.
TEXT = 200
_AMOUNT = re.compile(r"[0-9]{1,12}\.[0-9]{2}")


class SkeletonAdapter:
    """Has no state: one instance serves all merchants and threads."""

    name = "skeleton"
    #: The POS makes an order as often as it is sent, and finds orders by our reference.
    guarantee = Guarantee.QUERYABLE
    limits = Limits(longest_reply=20.0, concurrency=4, request_bytes=200_000)

    def check(self, merchant: Merchant) -> list[FieldError]:
        found = problems(merchant, FIELDS, self.limits)
        if not isinstance(merchant.auth, ApiKey):
            found.append(FieldError("auth.type", "must be api_key: this POS wants a key"))
        return found

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        body = lines.request(order, self.limits, lambda: _written(order))
        if isinstance(body, Outcome):  # refused by us: nothing was sent
            return body
        return self._decided(send(_post("order", body, merchant)), order)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        reply = send(Request("GET", _url("order", merchant, ref=_reference(order))))
        said = self._said(reply)
        if isinstance(said, Outcome):  # no answer about the order, whatever the POS refuses
            return replace(said, kind=Kind.IN_DOUBT)
        orders = said.get("orders")
        if not isinstance(orders, list):
            return in_doubt("a list without orders")
        return _as_agreed(orders[0], order) if orders else None

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        body = json.dumps({"ref": _reference(order)}).encode()
        return self._decided(send(_post("void", body, merchant)), order, cancels=True)

    def _decided(self, reply: Reply, order: Order, *, cancels: bool = False) -> Outcome:
        """The outcome of a reply about one order."""
        said = self._said(reply)
        if isinstance(said, Outcome):
            return said
        if cancels:
            outcome = _state(said.get("order"), order)
            is_kept = outcome.kind in (Kind.ACCEPTED, Kind.PENDING)
            return in_doubt("the POS has not cancelled the order") if is_kept else outcome
        return _as_agreed(said.get("order"), order)

    def _said(self, reply: Reply) -> dict[str, Any] | Outcome:
        """The body of a reply without an error, else what the error means."""
        if reply.status != 200:
            return by_status(reply, self.limits.unprocessed)
        said = json_object(reply)
        if said is None:
            return in_doubt("a 200 whose body is no JSON object")
        if said.get("ok") is True and "error" not in said:
            return said
        code, words = said.get("error"), said.get("text")
        if code == UNKNOWN_ORDER:
            return rejected(Rejection.UNKNOWN_ORDER, words)
        refusal = REFUSALS.get(code) if isinstance(code, int) else None
        return rejected(refusal, words) if refusal else in_doubt(f"error {code}: {words}")


def _written(order: Order) -> bytes:
    """The order in the POS's form. Raises Refused: the POS has no place for a part of the order."""
    if order.tip:
        raise Refused(Rejection.UNSUPPORTED_FIELD, "tip: this POS takes no tips")
    if order.currency not in CURRENCIES:
        raise Refused(Rejection.INVALID_ORDER, f"currency: this POS takes no {order.currency}")
    content: dict[str, Any] = {
        "ref": _reference(order),
        "currency": order.currency,
        "sum": _decimal(order.total),
        "memo": lines.text(order.notes, TEXT, "notes"),
        "lines": [
            _line(item, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
    }
    if order.customer is not None:
        name = lines.text(order.customer.name, TEXT, "customer.name")
        content["guest"] = {"name": name, "phone": lines.shortened(order.customer.phone, 30)}
    return json.dumps(content).encode()


def _line(item: Item, path: str) -> dict[str, Any]:
    return {
        "code": lines.text(item.sku, TEXT, f"{path}.sku"),
        "text": lines.name(item, TEXT, path),
        "count": item.quantity,
        "price": _decimal(item.unit_price),
        "memo": lines.text(item.notes, TEXT, f"{path}.notes"),
        "extras": [
            {
                "code": each.sku,
                "text": lines.text(each.name, TEXT, f"{path}.modifiers[{number}].name"),
                "count": each.quantity,
                "price": _decimal(each.unit_price),
            }
            for number, each in enumerate(item.modifiers)
        ],
    }


def _as_agreed(found: Any, order: Order) -> Outcome:
    """An order's state at the POS. One at another price is refused; facts have the gateway undo it."""
    outcome = _state(found, order)
    if outcome.kind is Kind.IN_DOUBT or order.external_id is not None:
        return outcome  # accepted before, at our price: the shop may have changed it since
    total = _minor(found.get("sum"))
    if total is None:
        return in_doubt("an order without its total")
    reason = lines.mispriced(order, total)
    if reason is None:
        return outcome
    facts = None if outcome.kind is Kind.CANCELLED else {"no": str(outcome.external_id)}
    return Outcome(Kind.REJECTED, reason, outcome.external_id, facts=facts)


def _state(found: Any, order: Order) -> Outcome:
    if not isinstance(found, dict) or found.get("ref") != _reference(order):
        return in_doubt("the reply is about another order")
    number = found.get("no")
    known_as = str(number) if isinstance(number, int) and not isinstance(number, bool) else None
    return decision(STATES, found.get("state"), known_as)


def _reference(order: Order) -> str:
    """Our mark: order ids are one merchant's, and several merchants may be at one POS."""
    return f"{merchant_digest(order)}-{order.order_id}"


def _url(path: str, merchant: Merchant, **query: str) -> str:
    auth = merchant.auth
    key = auth.key.get_secret_value() if isinstance(auth, ApiKey) else ""
    return f"{merchant.base_url}/{path}?{urlencode({'key': key, 'shop': merchant.pos['shop'], **query})}"


def _post(path: str, body: bytes, merchant: Merchant) -> Request:
    return Request("POST", _url(path, merchant), body, {"Content-Type": "application/json"})


def _decimal(minor: int) -> str:
    return f"{Decimal(minor).scaleb(-2):f}"


def _minor(amount: object) -> int | None:
    """Minor units of a decimal text; None: it is no amount."""
    if not isinstance(amount, str) or _AMOUNT.fullmatch(amount) is None:
        return None
    return int(Decimal(amount).scaleb(2))
