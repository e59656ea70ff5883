"""Clover's REST API v3, atomic orders. Built to Clover's public documentation, not certified.

Sources, on docs.clover.com: "Create an atomic order", "Manage orders data", "Create custom orders",
"Get all orders", "Get a single order", "Apply filters", "API usage and rate limits", "New server-side
limits for line items and bulk inventory updates", "401 Unauthorized", "Status codes and errors
reference", "Use webhooks"; the lengths of texts are those of the models in Clover's Android SDK.

An item in the merchant's catalog is sent as an inventory item, and its modifiers as inventory
modifiers, at our prices. Any other item is ad hoc: a name and a price. Clover ignores modifiers
without an id, so their prices are added to the item's and their names to its note. An item of
quantity 3 is three line items. At Clover a tip belongs to a payment, so it is not sent.

Clover adds the merchant's taxes, and its reply has the total. An order with another total than ours
is deleted while it is unpaid, and rejected.

Clover documents no idempotency key for atomic orders, and no field for our order id. The order's
note begins with it and a digest of the merchant's, and a look-up finds the order by that.
"""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import merchant_digest, the_only
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee, Limits
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.replies import (
    LOOK_UP,
    after_refusal,
    begun,
    by_status,
    decision,
    in_doubt,
    is_absent,
    json_object,
    no_answer,
    not_undone,
    shorter,
    with_the_order,
)
from pos_gateway.adapters.signatures import is_key, said
from pos_gateway.adapters.window import windows
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.domain.record import identifier
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send

FIELDS = {
    "merchant_id": PosField("the Clover merchant's id (mId)", r"[A-Za-z0-9]{1,64}"),
    "order_type": PosField(
        "the id of an order type", r"[A-Za-z0-9]{1,64}", required=False, names_pos=False
    ),
}

#: An order's ``state``, in lower case: the documentation has both cases.
_OPEN = "open"
_STATES = {_OPEN: Kind.ACCEPTED, "locked": Kind.ACCEPTED, "paid": Kind.ACCEPTED}

#: Messages of a 400 that rejects an order ("Manage orders data"). Any other is INVALID_ORDER.
REJECTIONS = {
    "item_does_not_exist": Rejection.ITEM_UNAVAILABLE,
    "invalid_modifier": Rejection.ITEM_UNAVAILABLE,
}

#: A merchant in an order's mark.
_MERCHANT = re.compile(r"#[0-9a-f]{12}( |$)")

_CODE = re.compile(rb'\{\s*"verificationCode"\s*:\s*"([A-Za-z0-9-]{1,64})"\s*\}')

#: Maximum line items of an order ("New server-side limits for line items").
_LINES = 2500
_JSON = "application/json"
#: Longest texts: an order's note, the name of an ad-hoc line, a line's note, a modification's name.
_NOTE, _NAME, _LINE_NOTE, _MODIFICATION = 2047, 127, 255, 255
#: Longest order note of the release that named no merchant, which cut it.
_OLD_NOTE = 255
#: Milliseconds after its creation for which Clover itself may still write an order.
_MAKING = 10_000
#: Tax and charges that a merchant may add to an order, as a multiple of our total.
_MOST_TAX = 1.3
#: Clock skew between Clover, the backend and us that a look-up by time allows for.
_SKEW = timedelta(hours=1)
#: A look-up's orders per page (a reply must stay short), maximum pages, and overlap of two pages:
#: an order deleted meanwhile moves all later ones forward. Pages of the least orders overlap by one.
_PAGE, _PAGES, _COMMON, _LEAST = 100, 10, 10, 2
_MAX_LISTED = _PAGES * (_PAGE - _COMMON) + _COMMON
_TOO_MANY = f"not among the orders of its time, {_MAX_LISTED} or {LOOK_UP} bytes of them"


class CloverAdapter:
    """``POST /v3/merchants/{mId}/atomic_order/orders``; look-up by the note."""

    name = "clover"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    #: "API usage and rate limits": per token. Per app: 10 at once and 50 a second.
    limits = Limits(concurrency=5, per_second=16.0, request_bytes=2**20)

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        refused = lines.refusal(order) or _too_many(order)
        if refused is not None:
            return refused
        try:
            cart = _Cart(order, merchant)
        except Refused as error:
            return error.outcome
        if (refused := lines.oversize(cart.size, self.limits)) is not None:
            return refused
        url, said = f"{_merchant(merchant)}/atomic_order/orders", {"Content-Type": _JSON}
        reply = send(Request("POST", url, cart.encoded(), said, with_the_order(order)))
        if reply.status == 200:
            found = _made(reply, order)
            return self._agreed(found, order, merchant, send) if isinstance(found, dict) else found
        if reply.status == 409:
            known = after_refusal(lambda: self.look_up(order, merchant, send))
            return known or in_doubt("a 409, but no such order can be found")
        return _refused(reply) if reply.status == 400 else by_status(reply)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Delete the order. Clover documents no other way."""
        found = _find(order, merchant, send)
        if found is None:
            return rejected(Rejection.UNKNOWN_ORDER, "Clover does not know the order")
        known = _standing(found) if isinstance(found, dict) else found
        return _deleted(known, merchant, send) if known.kind is Kind.ACCEPTED else known

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        found = _find(order, merchant, send)
        if not isinstance(found, dict):
            return found
        if order.external_id is not None:  # accepted before: the shop may have changed it since
            return _standing(found)
        return self._agreed(found, order, merchant, send)

    def _agreed(
        self, found: dict[str, Any], order: Order, merchant: Merchant, send: Send
    ) -> Outcome:
        """A new order's standing; one with another total than ours is deleted, and rejected."""
        known, total, currency = _standing(found), found.get("total"), found.get("currency")
        if known.kind is Kind.IN_DOUBT or (known.kind is Kind.CANCELLED and not total):
            return known
        if type(total) is not int or not isinstance(currency, str | None):
            return in_doubt("an order without its total")
        reason = lines.mispriced(order, total, currency)
        if reason is None:
            return known
        if known.kind is Kind.ACCEPTED:
            if _state(found) != _OPEN or _is_edited(found):
                return begun(reason, known.external_id)
            undone = after_refusal(lambda: _deleted(known, merchant, send))
            if undone is not None and undone.kind is not Kind.CANCELLED:
                return not_undone(reason, known.external_id, undone)
        return Outcome(Kind.REJECTED, reason)  # deleted: perhaps before, and the reply was lost

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """Clover signs nothing: it sends the app's auth code, and says only what has changed.

        An order that was deleted is cancelled. Anything else is left to look-ups.
        """
        given = request.headers.get("x-clover-auth", "")
        return list(_callbacks(said(request.body))) if is_key(given, merchant) else None

    def verification_code(self, body: bytes) -> str | None:
        """The code that Clover sends, without its auth code, when a URL is entered."""
        code = _CODE.fullmatch(body.strip())
        return code[1].decode() if code else None


def _callbacks(message: dict[str, Any]) -> Iterator[Callback]:
    """The deletions of orders in a message, which may be about any of the app's merchants."""
    merchants = message.get("merchants")
    for known_as, updates in merchants.items() if isinstance(merchants, dict) else ():
        for each in updates if isinstance(updates, list) else ():
            if not isinstance(each, dict) or each.get("type") != "DELETE":
                continue
            what, _, order_id = str(each.get("objectId")).partition(":")
            if what != "O" or identifier(order_id) is None:
                continue
            at = each.get("ts")
            yield Callback(
                f"{known_as}:{order_id}:{at}",
                Kind.CANCELLED,
                external_id=order_id,
                occurred_at=at / 1000 if isinstance(at, int) and 0 <= at < 10**14 else None,
                account=("merchant_id", known_as),
            )


def _find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order as Clover has it; None if Clover does not know it; an Outcome if that is in doubt.

    Unless Clover's id is known, this searches the orders of the time window for the one with our
    note. An order for the same amount, or for that with tax, without any mark may be it, with its
    note lost: in doubt, unless Clover has sent its id, and that one has another.
    """
    if (known := _retrieved(order, merchant, send)) is not None:
        return known
    search = _CloverSearch(merchant, send)
    before = lines.shortened(_words(order, _id(order)), _OLD_NOTE)
    may_be_there, unmarked = False, dict[str, dict[str, Any]]()
    for window in windows(order, _SKEW):
        for page in search.pages(window):
            if isinstance(page, Outcome):
                return page
            for each in page:
                if _is(each, order):
                    return each
                if _was(each, order):
                    unmarked[str(each.get("id"))] = each
                may_be_there |= order.external_id is None and _may_be(each, order)
        if unmarked:
            return the_only(unmarked.values(), lambda found: found.get("note") == before)
    return in_doubt("one for the same amount has no note") if may_be_there else None


def _retrieved(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order that has Clover's id for ours; None if there is none, or it is another one."""
    if order.external_id is None:
        return None
    reply = send(Request("GET", _order_url(order.external_id, merchant), expects=BODY_LIMIT))
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = json_object(reply) or {}
    return found if _is(found, order) or _was(found, order) else None


def _order_url(known_as: str | None, merchant: Merchant) -> str:
    return f"{_merchant(merchant)}/orders/{quote(known_as or '', safe='')}"


class _CloverSearch:
    """A look-up's pages: of as many orders as a reply has room for."""

    def __init__(self, merchant: Merchant, send: Send) -> None:
        self._merchant, self._send = merchant, send
        self._left, self._read, self._orders = _PAGES, 0, _PAGE

    def pages(self, window: tuple[datetime, datetime]) -> Iterator[list[dict[str, Any]] | Outcome]:
        """The orders of a time window; an Outcome ends it, since they cannot all be read."""
        last, end = None, 0
        while True:
            if not self._left or self._read > LOOK_UP:
                yield in_doubt(_TOO_MANY)
                return
            offset = max(0, end - min(_COMMON, self._orders // 2))
            url = _page(self._merchant, window, offset, self._orders)
            try:
                reply = self._send(Request("GET", url, expects=BODY_LIMIT))
            except NoValidReply as error:
                self._orders = shorter(error, self._orders, _LEAST)
                continue
            if reply.status != 200:
                yield no_answer(reply)
                return
            found = (json_object(reply) or {}).get("elements")
            if not isinstance(found, list) or len(found) > self._orders:
                yield in_doubt("asked for the order, Clover answered something else")
                return
            yield [each for each in found if isinstance(each, dict)]
            ids = [each.get("id") if isinstance(each, dict) else None for each in found]
            if offset and (last is None or last not in ids):
                yield in_doubt("orders between two pages may have been passed over")
                return
            if len(found) < self._orders:
                return
            last, end = ids[-1], offset + len(found)
            self._left, self._read = self._left - 1, self._read + len(reply.body)


def _page(merchant: Merchant, window: tuple[datetime, datetime], offset: int, orders: int) -> str:
    since, until = map(_milliseconds, window)
    query = [
        ("filter", f"createdTime>={since}"),
        ("filter", f"createdTime<={until}"),
        ("limit", orders),
        ("offset", offset),
    ]
    return f"{_merchant(merchant)}/orders?{urlencode(query)}"


def _too_many(order: Order) -> Outcome | None:
    number = sum(item.quantity for item in order.items)
    if number <= _LINES:
        return None
    return rejected(Rejection.INVALID_ORDER, f"{number} items; Clover takes {_LINES} in an order")


class _Cart:
    """The request's body. Its size is known before it is written.

    An item of quantity 100 is written 100 times: a few bytes of an order could become gigabytes.

    Raises:
        Refused: a text is too long.
    """

    def __init__(self, order: Order, merchant: Merchant) -> None:
        note = lines.text(_words(order, _mark(order)), _NOTE, "notes, with mark and customer,")
        cart: dict[str, Any] = {"note": note}
        if "order_type" in merchant.pos:
            cart["orderType"] = {"id": merchant.pos["order_type"]}
        self._head = _encoded({"orderCart": {**cart, "lineItems": []}}).removesuffix(_END)
        self._lines = [
            (_encoded(_line(item, merchant, f"items[{number}]")), item.quantity)
            for number, item in enumerate(lines.cooperatively(order))
        ]
        #: Size in bytes.
        self.size = len(self._head + _END) - 1
        self.size += sum((len(line) + 1) * number for line, number in self._lines)

    def encoded(self) -> bytes:
        """The body, as JSON."""
        whole = [line for line, number in self._lines for _ in range(number)]
        return self._head + b",".join(whole) + _END


#: What follows the last line.
_END = b"]}}"


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _line(item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    known_as, price = merchant.pos_id(item.sku), lines.unit_price(item)
    modifications, changes = [], []
    # A negative amount is not documented: with a discount, the item's price includes its
    # modifiers'.
    folded = any(each.unit_price < 0 for each in item.modifiers)
    for number, each in enumerate(item.modifiers):
        name = f"{each.quantity} x {each.name}" if each.quantity > 1 else each.name
        modifier = merchant.pos_id(each.sku) if known_as else None
        if modifier is None:
            changes.append(name)
            continue
        amount = 0 if folded else each.quantity * each.unit_price
        price -= amount
        name = lines.text(name, _MODIFICATION, f"{path}.modifiers[{number}].name") or "modifier"
        modifications.append({"modifier": {"id": modifier}, "name": name, "amount": amount})
    if known_as is None:
        line: dict[str, Any] = {"name": lines.name(item, _NAME, path), "price": price}
    else:
        line = {"item": {"id": known_as}, "price": price, "modifications": modifications}
    what = f"{path}.notes, with the modifiers' names," if changes else f"{path}.notes"
    note = lines.text("; ".join(filter(None, [*changes, item.notes])), _LINE_NOTE, what)
    return {**line, "note": note} if note else line


def _id(order: Order) -> str:
    return f"[{order.order_id}]"


def _mark(order: Order) -> str:
    return f"{_id(order)} #{merchant_digest(order)}"


def _words(order: Order, mark: str) -> str:
    """An order's note: the mark first, then the customer and the order's notes."""
    who = (order.customer.name, order.customer.phone) if order.customer else ()
    return " ".join(filter(None, [mark, *who, order.notes]))


def _is(found: dict[str, Any], order: Order) -> bool:
    # No part of a mark has blanks: up to the next one the note is the whole mark.
    return f"{found.get('note')} ".startswith(f"{_mark(order)} ")


def _was(found: dict[str, Any], order: Order) -> bool:
    """Whether the release before, which named no merchant, may have sent it as this order."""
    first, _, rest = str(found.get("note")).partition(" ")
    return first == _id(order) and not _MERCHANT.match(rest)


def _may_be(found: dict[str, Any], order: Order) -> bool:
    """Whether it may be ours with its note lost: its total may have the merchant's tax in it."""
    total = found.get("total")
    is_near = isinstance(total, int) and order.total <= total <= order.total * _MOST_TAX
    return is_near and not str(found.get("note")).startswith("[")


def _made(reply: Reply, order: Order) -> dict[str, Any] | Outcome:
    found = json_object(reply)
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("note") is not None and not (_is(found, order) or _was(found, order)):
        return in_doubt("the reply is about another order")
    return found


def _standing(found: dict[str, Any]) -> Outcome:
    if found.get("deletedTime"):
        return decision({"deleted": Kind.CANCELLED}, "deleted", found.get("id"))
    return decision(_STATES, _state(found), found.get("id"))


def _state(found: dict[str, Any]) -> str:
    return str(found.get("state")).lower()


def _is_edited(found: dict[str, Any]) -> bool:
    """Whether the shop has changed it since it was made: its total may be what the guest wants by now."""
    made, last = found.get("createdTime"), found.get("modifiedTime")
    return type(made) is int and type(last) is int and last - made > _MAKING


def _deleted(known: Outcome, merchant: Merchant, send: Send) -> Outcome:
    reply = send(Request("DELETE", _order_url(known.external_id, merchant)))
    if reply.status == 200:  # its body is not documented
        return Outcome(Kind.CANCELLED, external_id=known.external_id)
    return _refused(reply) if reply.status == 400 else by_status(reply)


def _refused(reply: Reply) -> Outcome:
    found = json_object(reply) or {}
    said = str(found.get("message") or f"HTTP {reply.status}")
    words = f"{said} {found['details']}" if "details" in found else said
    return rejected(REJECTIONS.get(said, Rejection.INVALID_ORDER), words)


def _merchant(merchant: Merchant) -> str:
    return f"{merchant.base_url}/v3/merchants/{merchant.pos['merchant_id']}"


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)
