"""Toast's orders API. Built to Toast's public documentation, not certified by Toast.

Sources, on doc.toasttab.com: "Creating orders", "Order prices", "External identifiers", "Handling
request timeouts for the orders API", "Rate limiting", "API responses and errors", "Void an order",
and the orders API reference (Order, Check, Selection, ErrorMessage); for callbacks "Orders webhook"
and "Message signing".

Toast has no ad-hoc items: the catalog's id for an item's ``sku``, or else the ``sku`` itself, is
the item's GUID at Toast, with the GUID of its menu group (a modifier's: of its option group) before
it where the menu requires one: ``group/item``. Toast sets the prices. They are requested first, as
its documentation demands, and an order with a different total is rejected.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import merchant_digest, the_only
from pos_gateway.adapters.pos_fields import GUID, PosField, problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    by_status,
    decision,
    in_doubt,
    is_absent,
    json_object,
    no_answer,
    with_the_order,
)
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.adapters.window import windows
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Modifier, Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send

FIELDS = {
    "restaurant": PosField("the restaurant's GUID", GUID),
    "dining_option": PosField(
        "the GUID of the dining option for these orders", GUID, names_pos=False
    ),
    "naming_authority": PosField(
        "the naming authority that Toast assigned, at most 16 characters", r"[A-Za-z0-9_-]{1,16}"
    ),
    "payment": PosField(
        "the GUID of the alternative payment type for orders paid elsewhere",
        GUID,
        required=False,
        names_pos=False,
    ),
}

_ITEM = re.compile(f"(?:(?P<group>{GUID})/)?(?P<item>{GUID})")
ITEM = PosField("the item's GUID at Toast, or its group's and its own: group/item", _ITEM.pattern)

#: Order.approvalStatus.
_STATES = {
    "APPROVED": Kind.ACCEPTED,
    "FUTURE": Kind.ACCEPTED,
    "NEEDS_APPROVAL": Kind.PENDING,
    "NOT_APPROVED": Kind.REJECTED,
}

_NOT_APPROVED = "the restaurant did not approve the order"
#: A callback's time, and most that are tried: it is one of the first fields.
_TIMESTAMP, _TIMES = re.compile(rb'"timestamp"\s*:\s*"([^"\\]{1,64})"'), 4

#: ErrorMessage.code. Toast publishes no list; this one is in "API responses and errors".
REJECTIONS: Mapping[str, Rejection] = {"10025": Rejection.PAYMENT_REQUIRED}
_REFUSALS = (400, 422)
#: Maximum characters of a special request: more than the notes of an order and an item have.
_REQUEST = 10_000

#: Clock skew between Toast, the backend and us in the time of an order that names no merchant.
_SKEW = timedelta(hours=1)
#: Maximum minor units that a JSON number of dollars holds exact to the cent.
_LARGEST = 10**15
#: Currencies whose minor unit is no hundredth (ISO 4217): Toast's amounts have two decimals.
_NOT_HUNDREDTHS = re.compile(
    "BIF|CLP|DJF|GNF|ISK|JPY|KMF|KRW|PYG|RWF|UGX|UYI|VND|VUV|XAF|XOF|XPF"
    "|BHD|IQD|JOD|KWD|LYD|OMR|TND|CLF|UYW"
)


class ToastAdapter:
    """``POST /orders/v2/orders`` with an ``externalId`` of order and merchant, which look-ups use.

    Toast refuses a second order with the same one, so a refused order is looked up as well.
    """

    name = "toast"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    #: "Handling request timeouts for the orders API"; "Rate limiting".
    limits = Limits(
        longest_reply=30.0,
        per_second=20.0,
        requests=2,
        request_bytes=2**20,
        callback_bytes=2**20,  # "Orders webhook": over 600 kB
    )

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits, ITEM)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        if (refused := _unsendable(order, merchant)) is not None:
            return refused
        content = lines.request(order, self.limits, lambda: _creation(order, merchant))
        if isinstance(content, Outcome):
            return content
        expects = with_the_order(order)
        try:
            prices = send(_post(merchant, "/prices", content, expects))
        except NoValidReply as error:  # only prices were requested: no order exists yet
            raise NotSent(error.code, error) from error
        if (refused := self._priced_otherwise(order, prices)) is not None:
            return refused
        reply = send(_post(merchant, "/orders", content, expects))
        if reply.status == 200:
            return _decision(reply, order, merchant)
        if reply.status in (*_REFUSALS, 409):
            return self._perhaps_there(order, merchant, send, reply)
        return by_status(reply, self.limits.unprocessed)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Void the order with its payments. Toast voids only what was paid by another means."""
        known = self.look_up(order, merchant, send)
        if known is None:
            return rejected(Rejection.UNKNOWN_ORDER, "Toast does not know the order")
        if known.kind not in (Kind.ACCEPTED, Kind.PENDING):
            return known
        everything = b'{"selections":{"voidAll":true},"payments":{"voidAll":true}}'
        guid = quote(known.external_id or "", safe="")
        expects = with_the_order(order)
        reply = send(_post(merchant, f"/orders/{guid}/void", everything, expects))
        if reply.status == 200:
            after = _decision(reply, order, merchant)
            is_done = after.kind in (Kind.CANCELLED, Kind.IN_DOUBT)
            return after if is_done else in_doubt("a 200, but the order is not voided")
        return _refused(*_error(reply)) if reply.status in _REFUSALS else by_status(reply)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        reply = send(_get(merchant, _external_id(order, merchant)))
        if is_absent(reply):
            return self._look_up_unmarked(order, merchant, send)
        return _decision(reply, order, merchant) if reply.status == 200 else no_answer(reply)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """The signature is over the body and then its ``timestamp``.

        Which of the body's texts that is, is not parsed before it is verified: each is tried.
        """
        given = request.headers.get("toast-signature", "")
        times = [each[1] for each in islice(_TIMESTAMP.finditer(request.body), _TIMES)] or [b""]
        is_its = is_signed(given, merchant, request.body, ends=times)
        return _callbacks(said(request.body)) if is_its else None

    def _look_up_unmarked(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        """Look up the order as the release before has sent it: its mark names no merchant."""
        reply = send(_get(merchant, _unmarked(order, merchant)))
        if reply.status != 200:
            return None if is_absent(reply) else no_answer(reply)
        found = json_object(reply) or {}
        if not _in_its_time(found, order):
            return None
        amounts = _amounts(found)
        known = the_only([found], lambda _: not amounts or order.total in amounts)
        return known if isinstance(known, Outcome) else _decided(known, order, merchant)

    def _perhaps_there(
        self, order: Order, merchant: Merchant, send: Send, refusal: Reply
    ) -> Outcome:
        """Look up a refused order: Toast refuses a known one in words that it does not document."""
        known = after_refusal(lambda: self.look_up(order, merchant, send))
        if known is not None:
            return known
        code, words = _error(refusal)
        if refusal.status == 409 or "external" in words.lower():
            return in_doubt(f"refused as if it were there ({words}), but Toast does not know it")
        return _refused(code, words)

    def _priced_otherwise(self, order: Order, reply: Reply) -> Outcome | None:
        """None if Toast's prices sum to our total, before or with tax. No order exists yet."""
        if reply.status in _REFUSALS:
            return _refused(*_error(reply))
        if reply.status != 200:
            outcome = by_status(reply, self.limits.unprocessed)
            is_passing = outcome.kind is Kind.IN_DOUBT
            return replace(outcome, kind=Kind.RETRY) if is_passing else outcome
        amounts = _amounts(json_object(reply) or {})
        if not amounts:
            reason = Reason.of("invalid_reply", "asked for the prices, Toast answered no checks")
            return Outcome(Kind.RETRY, reason, contact=CallResult.FAILED)
        if order.total in amounts:
            return None
        problem = f"at Toast it is {amounts[0]} ({amounts[1]} with tax), the total is {order.total}"
        return rejected(Rejection.PRICE_MISMATCH, problem)


def _callbacks(message: dict[str, Any]) -> list[Callback]:
    """What an order_updated says of the order, which has no ``externalId`` in it."""
    if message.get("eventType") not in ("order_updated", "channel_order_updated"):
        return []
    found = inside(message, "details", "order")
    known_as = identifier(found.get("guid"))
    meaning = _STATES.get(str(found.get("approvalStatus")))
    if found.get("voided") is True or found.get("deleted") is True:
        meaning = Kind.CANCELLED
    restaurant = identifier(inside(message, "details").get("restaurantGuid"))
    if known_as is None or restaurant is None or meaning in (None, Kind.PENDING):
        return []
    reason = rejected(Rejection.OTHER, _NOT_APPROVED).reason if meaning is Kind.REJECTED else None
    return [
        Callback(
            str(message.get("guid")),
            meaning,
            external_id=known_as,
            occurred_at=unix_time(message.get("timestamp")),
            reason=reason,
            account=("restaurant", restaurant),
        )
    ]


def _unsendable(order: Order, merchant: Merchant) -> Outcome | None:
    """Our own rejection of an order that Toast's API cannot express."""
    is_odd = _NOT_HUNDREDTHS.fullmatch(order.currency) is not None
    if is_odd or max(order.total, order.tip or 0) > _LARGEST:
        problem = f"{order.total} {order.currency} cannot be written with two decimals"
        return rejected(Rejection.INVALID_ORDER, problem)
    for item in order.items:
        if not _ITEM.fullmatch(_known_as(item, merchant)):
            problem = f"the sku {lines.shortened(item.sku, 100)!r} is not in the merchant's catalog"
            return rejected(Rejection.INVALID_ORDER, f"{problem}, and no GUID of Toast's itself")
        for modifier in item.modifiers:
            is_request = modifier.sku is None and modifier.unit_price == 0
            if not is_request and not _ITEM.fullmatch(_known_as(modifier, merchant)):
                problem = (
                    f"the modifier {lines.shortened(modifier.name, 100)!r} needs a GUID of Toast's"
                )
                return rejected(
                    Rejection.INVALID_ORDER, f"{problem}, in the merchant's catalog or as its sku"
                )
    return None


def _creation(order: Order, merchant: Merchant) -> bytes:
    check: dict[str, Any] = {
        "entityType": "Check",
        "selections": [
            _selection(order, item, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
    }
    if order.customer is not None:
        first, _, last = lines.shortened(order.customer.name, 255).rpartition(" ")
        phone = lines.shortened(order.customer.phone, 255)
        customer = {"firstName": first, "lastName": last, "phone": phone}
        check["customer"] = {name: value for name, value in customer.items() if value}
    if "payment" in merchant.pos:
        check["payments"] = [
            {
                "type": "OTHER",
                "otherPayment": {"guid": merchant.pos["payment"]},
                "paidDate": order.placed_at.strftime("%Y-%m-%dT%H:%M:%S.000%z"),
                "amount": _dollars(order.total),
                "tipAmount": _dollars(order.tip or 0),
            }
        ]
    content = {
        "entityType": "Order",
        "externalId": _external_id(order, merchant),
        "diningOption": {"guid": merchant.pos["dining_option"], "entityType": "DiningOption"},
        "checks": [check],
    }
    return json.dumps(content, separators=(",", ":")).encode()


def _selection(order: Order, item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    modifiers = [_modifier(modifier, merchant) for modifier in item.modifiers]
    note = lines.notes(order, item, _REQUEST, path)
    return {
        "entityType": "MenuItemSelection",
        **_reference(_known_as(item, merchant), "itemGroup"),
        "quantity": item.quantity,
        "modifiers": [*modifiers, _request(note)] if note else modifiers,
    }


def _modifier(modifier: Modifier, merchant: Merchant) -> dict[str, Any]:
    if modifier.sku is None:
        times = f"{modifier.quantity} x " if modifier.quantity > 1 else ""
        return _request(times + lines.shortened(modifier.name, 4096))
    known_as = _known_as(modifier, merchant)
    return {**_reference(known_as, "optionGroup"), "quantity": modifier.quantity}


def _request(text: str) -> dict[str, Any]:
    return {"selectionType": "SPECIAL_REQUEST", "displayName": text}


def _known_as(what: Item | Modifier, merchant: Merchant) -> str:
    return merchant.pos_id(what.sku) or what.sku or ""


def _reference(known_as: str, group: str) -> dict[str, Any]:
    found = _ITEM.fullmatch(known_as)
    assert found is not None  # noqa: S101  (_unsendable has checked it)
    reference: dict[str, Any] = {"item": {"guid": found["item"], "entityType": "MenuItem"}}
    if found["group"]:
        reference[group] = {"guid": found["group"]}
    return reference


def _decision(reply: Reply, order: Order, merchant: Merchant) -> Outcome:
    return _decided(json_object(reply), order, merchant)


def _decided(found: dict[str, Any] | None, order: Order, merchant: Merchant) -> Outcome:
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("externalId") not in (_external_id(order, merchant), _unmarked(order, merchant)):
        return in_doubt("the reply is about another order")
    outcome = decision(_STATES, found.get("approvalStatus"), found.get("guid"))
    if outcome.kind is Kind.IN_DOUBT:
        return outcome
    if found.get("voided") is True or found.get("deleted") is True:
        return replace(outcome, kind=Kind.CANCELLED)
    if outcome.kind is Kind.REJECTED:
        reason = rejected(Rejection.OTHER, _NOT_APPROVED).reason
        return replace(outcome, reason=reason)
    return outcome


def _refused(code: str, words: str) -> Outcome:
    return rejected(REJECTIONS.get(code, Rejection.INVALID_ORDER), f"{code} {words}")


def _error(reply: Reply) -> tuple[str, str]:
    """Code and message of an ErrorMessage."""
    error = json_object(reply) or {}
    words = filter(None, (error.get("message"), error.get("developerMessage")))
    return str(error.get("code")), " / ".join(map(str, words)) or f"HTTP {reply.status}"


def _in_its_time(found: dict[str, Any], order: Order) -> bool:
    """Whether it was created when ours may have been; also if it does not say when."""
    try:
        created = datetime.fromisoformat(str(found.get("createdDate")))
    except ValueError:
        return True
    times = windows(order, _SKEW) if created.tzinfo else []
    return not times or any(since <= created <= until for since, until in times)


def _amounts(found: dict[str, Any]) -> list[Decimal | int]:
    """What its checks come to in minor units, before tax and with it; empty without checks."""
    checks = found.get("checks")
    if not isinstance(checks, list) or not all(isinstance(each, dict) for each in checks):
        return []
    return [sum(_minor(check.get(name)) for check in checks) for name in ("amount", "totalAmount")]


def _external_id(order: Order, merchant: Merchant) -> str:
    """At most 141 characters after the naming authority's; Toast allows 256."""
    return f"{_unmarked(order, merchant)}-{merchant_digest(order)}"


def _unmarked(order: Order, merchant: Merchant) -> str:
    return f"{merchant.pos['naming_authority']}:{order.order_id}"


def _orders(merchant: Merchant) -> str:
    return f"{merchant.base_url}/orders/v2"


def _post(merchant: Merchant, path: str, content: bytes, expects: int) -> Request:
    headers = {**_headers(merchant), "Content-Type": "application/json"}
    return Request("POST", _orders(merchant) + path, content, headers, expects)


def _get(merchant: Merchant, external_id: str) -> Request:
    url = f"{_orders(merchant)}/orders/{quote(external_id, safe='')}"
    return Request("GET", url, headers=_headers(merchant), expects=BODY_LIMIT)


def _headers(merchant: Merchant) -> dict[str, str]:
    return {"Toast-Restaurant-External-ID": merchant.pos["restaurant"]}


def _dollars(minor: int) -> float:
    """Exact: below ``_LARGEST`` a float's shortest form has the same two decimals."""
    return float(Decimal(minor) / 100)


def _minor(amount: object) -> Decimal:
    """An amount in minor units; NaN, which equals no total, for a value that is no number."""
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    return Decimal(str(amount)) * 100 if is_number else Decimal("NaN")
