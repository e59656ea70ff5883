"""Toast's orders API. Built to Toast's public documentation, not certified by Toast.

Sources, on doc.toasttab.com: "Creating orders", "Order details based on the order dining option",
"Specifying modifiers and instructions for menu item selections", "Order prices", "External
identifiers", "Handling request timeouts for the orders API", "Rate limiting", "API responses and
errors", "Void an order", "Regional expansion", and the orders API reference (Order, Check, Selection,
Customer, ErrorMessage); for callbacks "Orders webhook", "Guest order fulfillment status webhook" and
"Message signing".

Toast has no ad-hoc items: the catalog's id for an item's ``sku``, or else the ``sku`` itself, is
the GUID of the item's menu group (a modifier's: of its option group) and the item's own:
``group/item``. Toast sets the prices. They are requested first, as its documentation demands, and an
order is sent only if they come to its total with tax. A created order whose total is another one by
then, or whose payment was not taken, is voided and rejected.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters import lines, toast_order
from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.pos_fields import GUID, PosField, problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    begun,
    by_status,
    decision,
    in_doubt,
    is_absent,
    json_object,
    no_answer,
    not_undone,
    with_the_order,
)
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.adapters.window import windows
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Modifier, Order
from pos_gateway.domain.outcome import CallResult, Kind, Lifecycle, Outcome, Reason
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
    "customer_email": PosField(
        "the e-mail address of customers who give none, ASCII, at most 53 characters",
        toast_order.EMAIL.pattern,
        required=False,
        names_pos=False,
    ),
}

ITEM = PosField(
    "the GUIDs of the item's menu group (a modifier's: its option group) and its own: group/item",
    toast_order.ITEM.pattern,
)

#: Order.approvalStatus.
_STATES = {
    "APPROVED": Kind.ACCEPTED,
    "FUTURE": Kind.ACCEPTED,
    "NEEDS_APPROVAL": Kind.PENDING,
    "NOT_APPROVED": Kind.REJECTED,
}

#: Order.guestOrderStatus, beside RECEIVED and VOIDED.
_STAGES = {
    "IN_PREPARATION": Lifecycle.PREPARING,
    "READY_FOR_PICKUP": Lifecycle.READY,
    "CLOSED": Lifecycle.COMPLETED,
}
_UNDECIDED = [state for state, kind in _STATES.items() if kind is Kind.PENDING]
_NOT_APPROVED = "the restaurant did not approve the order"
#: A callback's time, and most that are tried: it is one of the first fields.
_TIMESTAMP, _TIMES = re.compile(rb'"timestamp"\s*:\s*"([^"\\]{1,64})"'), 4

#: ErrorMessage.code. Toast publishes no list; this one is in "API responses and errors".
REJECTIONS: Mapping[str, Rejection] = {"10025": Rejection.PAYMENT_REQUIRED}
_REFUSALS = (400, 422)
#: What an ErrorMessage of an unknown menu entity names.
_MENU = re.compile("menu|item|modifier|selection|optiongroup", re.IGNORECASE)

#: Clock skew between Toast, the backend and us in the time of an order that names no merchant.
_SKEW = timedelta(hours=1)


class ToastAdapter:
    """``POST /orders/v2/orders`` with an ``externalId`` of order and merchant, which look-ups use.

    Toast refuses a second order with the same one, so a refused order is looked up as well.
    """

    name = "toast"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    #: "Handling request timeouts for the orders API". "Rate limiting": 20 a second, and 10,000 in 15
    #: minutes, which is less, evenly spread.
    limits = Limits(
        longest_reply=30.0,
        per_second=10_000 / (15 * 60),
        requests=2,
        request_bytes=2**20,
        callback_bytes=2**20,  # "Orders webhook": over 600 kB
    )

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits, ITEM)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        if (refused := toast_order.unsendable(order, merchant, self.limits)) is not None:
            return refused
        content = lines.request(order, self.limits, lambda: toast_order.creation(order, merchant))
        if isinstance(content, Outcome):
            return content
        expects = with_the_order(order)
        try:
            prices = send(_post(merchant, "/prices", content, expects))
        except NoValidReply as error:  # only prices were requested: no order exists yet
            raise NotSent(error.code, error) from error
        if (refused := self._priced_otherwise(order, merchant, prices)) is not None:
            return refused
        reply = send(_post(merchant, "/orders", content, expects))
        if reply.status == 200:
            return self._agreed(json_object(reply), order, merchant, send, is_new=True)
        if reply.status in (*_REFUSALS, 409):
            return self._perhaps_there(order, merchant, send, reply)
        return _unknown_entity(reply, order, merchant) or by_status(reply, self.limits.unprocessed)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """Void the order with its payments. Toast voids only what was paid by another means."""
        found = _find(order, merchant, send)
        if found is None:
            return rejected(Rejection.UNKNOWN_ORDER, "Toast does not know the order")
        known = _decided(found, order, merchant) if isinstance(found, dict) else found
        stands = known.kind in (Kind.ACCEPTED, Kind.PENDING)
        return _voided(known, order, merchant, send) if stands else known

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        found = _find(order, merchant, send)
        if not isinstance(found, dict):
            return found
        if order.external_id is not None:  # accepted before: the shop may have changed it since
            return _decided(found, order, merchant)
        return self._agreed(found, order, merchant, send)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """The signature is over the body and then its ``timestamp``.

        Which of the body's texts that is, is not parsed before it is verified: each is tried.
        """
        given = request.headers.get("toast-signature", "")
        times = [each[1] for each in islice(_TIMESTAMP.finditer(request.body), _TIMES)] or [b""]
        is_its = is_signed(given, merchant, request.body, ends=times)
        return _callbacks(said(request.body)) if is_its else None

    def _agreed(
        self,
        found: dict[str, Any] | None,
        order: Order,
        merchant: Merchant,
        send: Send,
        *,
        is_new: bool = False,
    ) -> Outcome:
        """An order's standing; one with another total, or unpaid, is voided, and rejected.

        One that the kitchen has begun with is left to an operator, but for a new one: where orders are
        fired by themselves, each is in preparation at once.
        """
        known = _decided(found, order, merchant)
        if found is None or known.kind not in (Kind.ACCEPTED, Kind.PENDING, Kind.CANCELLED):
            return known
        if known.kind is Kind.CANCELLED:  # perhaps by an earlier attempt, whose reply was lost
            amounts = _amounts(found)
            mismatch = _mispriced(amounts, order) if amounts and amounts[1] else None
            return known if mismatch is None else Outcome(Kind.REJECTED, mismatch)
        reason = _disagreement(found, order, merchant)
        if reason is None:
            return known
        if not is_new and _stage(found) is not None:
            return begun(reason, known.external_id)
        undone = after_refusal(lambda: _voided(known, order, merchant, send))
        if undone is None or undone.kind is Kind.CANCELLED:
            return Outcome(Kind.REJECTED, reason)
        return not_undone(reason, known.external_id, undone)

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

    def _priced_otherwise(self, order: Order, merchant: Merchant, reply: Reply) -> Outcome | None:
        """None if Toast's prices with tax come to our total. No order exists yet."""
        if reply.status in _REFUSALS:
            return _refused(*_error(reply))
        if (unknown := _unknown_entity(reply, order, merchant)) is not None:
            return unknown
        if reply.status != 200:
            outcome = by_status(reply, self.limits.unprocessed)
            is_passing = outcome.kind is Kind.IN_DOUBT
            return replace(outcome, kind=Kind.RETRY) if is_passing else outcome
        amounts = _amounts(json_object(reply) or {})
        if not amounts or amounts[1] is None:
            reason = Reason.of("invalid_reply", "asked for the prices, Toast answered no total")
            return Outcome(Kind.RETRY, reason, contact=CallResult.FAILED)
        mismatch = _mispriced(amounts, order)
        return None if mismatch is None else Outcome(Kind.REJECTED, mismatch)


def _callbacks(message: dict[str, Any]) -> list[Callback]:
    """What an order_updated says of the order, which has no ``externalId`` in it."""
    if message.get("eventType") not in ("order_updated", "channel_order_updated"):
        return []
    found = inside(message, "details", "order")
    known_as = identifier(found.get("guid"))
    meaning: Kind | Lifecycle | None = _STATES.get(str(found.get("approvalStatus")))
    if meaning is Kind.ACCEPTED:
        meaning = _stage(found) or meaning
    if _is_voided(found):
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


def _stage(found: dict[str, Any]) -> Lifecycle | None:
    """How far the kitchen is: by the order's own status, or by those of its items.

    An order's and a check's ``closedDate`` say when they were paid.
    """
    status = str(found.get("guestOrderStatus"))
    items = set(_fulfillments(found))
    by_items = None
    if items and items <= {"READY"}:
        by_items = Lifecycle.READY
    elif items & {"SENT", "READY"}:
        by_items = Lifecycle.PREPARING
    by_order = _STAGES.get(status)
    if by_order is None or by_items is None:
        return by_order or by_items
    return by_items if by_items.is_after(by_order) else by_order


def _fulfillments(found: dict[str, Any]) -> Iterator[str]:
    """The ``fulfillmentStatus`` of each item that is not voided."""
    for check in _objects(found.get("checks")):
        for item in _objects(check.get("selections")):
            if item.get("voided") is not True and check.get("voided") is not True:
                yield str(item.get("fulfillmentStatus"))


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _is_voided(found: dict[str, Any]) -> bool:
    is_gone = found.get("voided") is True or found.get("deleted") is True
    return is_gone or found.get("guestOrderStatus") == "VOIDED"


def _find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order as Toast has it; None if Toast does not know it; an Outcome if that is in doubt.

    The release before has sent it with a mark that names no merchant.
    """
    reply = send(_get(merchant, toast_order.external_id(order, merchant)))
    if not is_absent(reply):
        if reply.status != 200:
            return no_answer(reply)
        return json_object(reply) or in_doubt("a 200 whose body is not a JSON object")
    reply = send(_get(merchant, toast_order.unmarked(order, merchant)))
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = json_object(reply) or {}
    if not _in_its_time(found, order):
        return None
    amounts = _amounts(found)
    return the_only([found], lambda _: not amounts or order.total in amounts)


def _voided(known: Outcome, order: Order, merchant: Merchant, send: Send) -> Outcome:
    """Void the order with its payments."""
    everything = b'{"selections":{"voidAll":true},"payments":{"voidAll":true}}'
    guid = quote(known.external_id or "", safe="")
    reply = send(_post(merchant, f"/orders/{guid}/void", everything, with_the_order(order)))
    if reply.status == 200:
        after = _decided(json_object(reply), order, merchant)
        is_done = after.kind in (Kind.CANCELLED, Kind.IN_DOUBT)
        return after if is_done else in_doubt("a 200, but the order is not voided")
    return _refused(*_error(reply)) if reply.status in _REFUSALS else by_status(reply)


def _disagreement(found: dict[str, Any], order: Order, merchant: Merchant) -> Reason | None:
    """Why an order at Toast is not the one that was agreed, as far as it shows; None: it is."""
    amounts = _amounts(found)
    if amounts and amounts[1] is not None and (reason := _mispriced(amounts, order)) is not None:
        return reason
    owes = order.total > 0 or bool(order.tip)
    is_open = owes and any(
        each.get("paymentStatus") == "OPEN" for each in _objects(found.get("checks"))
    )
    if "payment" not in merchant.pos or not is_open or found.get("approvalStatus") in _UNDECIDED:
        return None
    problem = "Toast has not taken the payment: its check is OPEN"
    return Reason.of(Rejection.PAYMENT_REQUIRED, problem)


def _mispriced(amounts: Sequence[Decimal | int | None], order: Order) -> Reason | None:
    """Why these amounts, before tax and with it, are not the order's total; None: they are."""
    reason = lines.mispriced(order, amounts[1])
    if reason is None or amounts[0] == amounts[1]:
        return reason
    return Reason.of(reason.code, f"{reason.message}; before tax the POS's is {amounts[0]}")


def _unknown_entity(reply: Reply, order: Order, merchant: Merchant) -> Outcome | None:
    """What a 404 with an ErrorMessage says: the order refers to an entity that Toast lacks.

    An item of the menu is the order's matter; a dining option or the like is the record's.
    """
    if not is_absent(reply):
        return None
    code, words = _error(reply)
    words = words[:1000]
    if words == _wordless(reply):
        return None
    for item in order.items:
        parts: tuple[Item | Modifier, ...] = (item, *item.modifiers)
        for each in parts:
            found = toast_order.ITEM.fullmatch(toast_order.known_as(each, merchant))
            if found and any(guid.lower() in words.lower() for guid in found.groups()):
                problem = f"{lines.shortened(each.name, 100)!r} ({each.sku}): {code} {words}"
                return rejected(Rejection.ITEM_UNAVAILABLE, problem)
    if _MENU.search(words):
        return rejected(Rejection.ITEM_UNAVAILABLE, f"{code} {words}")
    named = [f"pos.{name}: " for name, value in merchant.pos.items() if value in words]
    why = Reason.of(f"http_{reply.status}", f"{''.join(named)}{code} {words}")
    return Outcome(Kind.FAILED, why)


def _decided(found: dict[str, Any] | None, order: Order, merchant: Merchant) -> Outcome:
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("externalId") not in (
        toast_order.external_id(order, merchant),
        toast_order.unmarked(order, merchant),
    ):
        return in_doubt("the reply is about another order")
    outcome = decision(_STATES, found.get("approvalStatus"), found.get("guid"))
    if outcome.kind is Kind.IN_DOUBT:
        return outcome
    if _is_voided(found):
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
    return str(error.get("code")), " / ".join(map(str, words)) or _wordless(reply)


def _wordless(reply: Reply) -> str:
    return f"HTTP {reply.status}"


def _in_its_time(found: dict[str, Any], order: Order) -> bool:
    """Whether it was created when ours may have been; also if it does not say when."""
    try:
        created = datetime.fromisoformat(str(found.get("createdDate")))
    except ValueError:
        return True
    times = windows(order, _SKEW) if created.tzinfo else []
    return not times or any(since <= created <= until for since, until in times)


def _amounts(found: dict[str, Any]) -> list[Decimal | int | None]:
    """What its checks come to in minor units, before tax and with it; empty without checks.

    None: one of them does not say.
    """
    checks = found.get("checks")
    if not checks or not isinstance(checks, list):
        return []
    if not all(isinstance(each, dict) for each in checks):
        return []
    return [_sum(each.get(name) for each in checks) for name in ("amount", "totalAmount")]


def _sum(dollars: Iterable[object]) -> Decimal | int | None:
    total = Decimal(0)
    for each in dollars:
        if isinstance(each, bool) or not isinstance(each, int | float):
            return None
        total += Decimal(str(each)) * 100
    return int(total) if total == total.to_integral_value() else total


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
