"""Square's Orders API. Built to Square's public documentation, not certified by Square.

Sources, on developer.squareup.com: "CreateOrder", "RetrieveOrder", "SearchOrders" and
"UpdateOrder" in the API reference, "Pagination", the objects Order, OrderLineItem, OrderLineItemModifier, CreateOrderRequestLineItem and
FulfillmentPickupDetails, "Create Orders", "ErrorCode", "Idempotency", "Handling errors", "Orders
API Requirements"; for callbacks "Validate notifications", order.updated and
order.fulfillment.updated in the webhooks reference, FulfillmentState.

An item in the merchant's catalog is sent as one of the seller's item variations, and its modifiers
as the seller's modifiers: their name, our price, which overrides theirs. Any other item is ad hoc:
a name and a price. At Square a tip belongs to a payment, so it is not sent. An order is in Square's
Order Manager if it has a fulfillment: ``pickup`` becomes one here if the customer has a name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
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
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.adapters.square_order import creation, encoded, key, price
from pos_gateway.adapters.window import windows
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Lifecycle, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send

FIELDS = {"location_id": PosField("the Square location's id")}

#: OrderState, without DRAFT: no order is created as one here.
_STATES = {"OPEN": Kind.ACCEPTED, "COMPLETED": Kind.ACCEPTED, "CANCELED": Kind.CANCELLED}
#: What a callback means: by OrderState, else by FulfillmentState.
_SAID: Mapping[str, Kind | Lifecycle] = {
    "CANCELED": Kind.CANCELLED,
    "COMPLETED": Lifecycle.COMPLETED,
}
_FULFILLING: Mapping[str, Kind | Lifecycle] = {
    **_SAID,
    "RESERVED": Lifecycle.PREPARING,
    "PREPARED": Lifecycle.READY,
    "FAILED": Kind.CANCELLED,
}
#: FulfillmentState: the terminal ones, and those without which nothing is made.
_DONE, _GIVEN_UP = ("COMPLETED", "CANCELED", "FAILED"), ("CANCELED", "FAILED")
_FAILED = Reason(Rejection.OTHER, "the fulfillment has failed at Square: it was not completed")
_CANCELLED = Reason(Rejection.OTHER, "the fulfillment was cancelled at Square")

#: ErrorCode: those of CreateOrder that reject an order. Any other is OTHER.
REJECTIONS: Mapping[str, Rejection] = {
    "BAD_REQUEST": Rejection.INVALID_ORDER,
    "MISSING_REQUIRED_PARAMETER": Rejection.INVALID_ORDER,
    "INCORRECT_TYPE": Rejection.INVALID_ORDER,
    "INVALID_VALUE": Rejection.INVALID_ORDER,
    "CONFLICTING_PARAMETERS": Rejection.INVALID_ORDER,
    "VALUE_TOO_SHORT": Rejection.INVALID_ORDER,
    "VALUE_TOO_LONG": Rejection.INVALID_ORDER,
    "VALUE_TOO_LOW": Rejection.INVALID_ORDER,
    "VALUE_TOO_HIGH": Rejection.INVALID_ORDER,
    "VALUE_EMPTY": Rejection.INVALID_ORDER,
    "ARRAY_LENGTH_TOO_LONG": Rejection.INVALID_ORDER,
    "ARRAY_EMPTY": Rejection.INVALID_ORDER,
    "INVALID_ENUM_VALUE": Rejection.INVALID_ORDER,
    "UNPROCESSABLE_ENTITY": Rejection.INVALID_ORDER,
    "LOCATION_MISMATCH": Rejection.OTHER,
    "INVALID_PHONE_NUMBER": Rejection.INVALID_ORDER,
    "NOT_FOUND": Rejection.ITEM_UNAVAILABLE,
}
#: Codes after which the order is looked up, since Square may have it. BAD_REQUEST is one: Square
#: has answered "Order … already exists" with it.
_ASK = frozenset({"IDEMPOTENCY_KEY_REUSED", "CONFLICT", "BAD_REQUEST"})

#: Codes of an UpdateOrder with another version than the order has by now ("Update Orders").
_MISMATCH = frozenset({"VERSION_MISMATCH", "CONFLICT"})
_PAID = "the order is paid at Square: cancel its fulfillment and refund it there"
_OUTDATED = Reason("version_mismatch", "Square has changed the order since it was looked up")

#: Clock skew between Square, the backend and us that a look-up by time allows for.
_SKEW = timedelta(hours=1)
#: A look-up's orders per page (Square allows 1,000, but a reply must stay short) and maximum pages.
_PAGE, _PAGES = 20, 25
_TOO_MANY = f"not among the orders of its time, {_PAGE * _PAGES} or {LOOK_UP} bytes of them"
#: Maximum characters of a cursor, which is sent back. Square documents no limit.
_CURSOR = 4096
#: The version of the API that requests and replies here were written to; without it, the version is
#: the application's own setting. Square's document of that day is what the requests were checked with.
_VERSION = {"Square-Version": "2025-08-20"}
_JSON = {**_VERSION, "Content-Type": "application/json"}


class SquareAdapter:
    """CreateOrder under an ``idempotency_key`` (at most 192 characters), which Square honours."""

    name = "square"
    pos_fields = FIELDS
    guarantee = Guarantee.KEYED
    #: Square does not publish its rate limits.
    limits = Limits(request_bytes=2**20)

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        content = lines.request(order, self.limits, lambda: creation(order, merchant))
        if isinstance(content, Outcome):
            return content
        url, expects = f"{merchant.base_url}/v2/orders", with_the_order(order)
        reply = send(Request("POST", url, content, _JSON, expects))
        if reply.status == 200:
            made = _made(reply, order, merchant)
            return made if isinstance(made, Outcome) else self._priced(made, order, merchant, send)
        if reply.status not in (400, 409, 422):
            outcome = by_status(reply, self.limits.unprocessed)
            return _in_its_words(outcome, reply) if reply.status == 404 else outcome
        code, detail = _error(reply)
        is_asked = reply.status == 409 or code in _ASK
        if is_asked:
            known = after_refusal(lambda: self.look_up(order, merchant, send))
            if known is not None:
                return known
            if reply.status == 409 or code != "BAD_REQUEST":
                return in_doubt(f"{code} {detail}, but no such order can be found")
        refused = rejected(REJECTIONS.get(code, Rejection.OTHER), f"{code} {detail}")
        return replace(refused, not_found=is_asked)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        """UpdateOrder to CANCELED, with the version that a look-up finds.

        Square's own work on an order changes its version, too: then it is looked up once more.
        """
        return self._cancel(order, merchant, send)

    def _cancel(
        self,
        order: Order,
        merchant: Merchant,
        send: Send,
        mismatch: Reason | None = None,
        *,
        is_first: bool = True,
    ) -> Outcome:
        """Cancel it; for a ``mismatch``, only if the shop has not begun with it."""
        found = _find(order, merchant, send)
        if found is None:
            return rejected(Rejection.UNKNOWN_ORDER, "Square does not know the order")
        if isinstance(found, Outcome):
            return found
        standing = decision(_STATES, found.get("state"), found.get("id"))
        if standing.kind is not Kind.ACCEPTED:
            return standing
        if mismatch is not None and _has_begun(found):
            return begun(mismatch, standing.external_id)
        version = found.get("version")
        content = {
            "location_id": merchant.pos["location_id"],
            "version": version,
            "state": "CANCELED",
            # Square wants an order's fulfillments cancelled with it.
            "fulfillments": _cancelled(found.get("fulfillments")),
        }
        # A new key for each version: an old key would change nothing.
        change = {"idempotency_key": key(order, f"cancel {version}"), "order": content}
        url = _order_url(standing.external_id, merchant)
        reply = send(Request("PUT", url, encoded(change), _JSON, with_the_order(order)))
        outcome = self._cancelled(reply, order, merchant, is_paid=bool(found.get("tenders")))
        if is_first and outcome.reason == _OUTDATED:
            return self._cancel(order, merchant, send, mismatch, is_first=False)
        return outcome

    def _cancelled(
        self, reply: Reply, order: Order, merchant: Merchant, *, is_paid: bool
    ) -> Outcome:
        """What the reply to a cancellation says."""
        if reply.status == 200:
            after = _made(reply, order, merchant)
            if isinstance(after, dict):
                after = decision(_STATES, after.get("state"), after.get("id"))
            is_done = after.kind is not Kind.ACCEPTED
            return after if is_done else in_doubt("a 200, but the order is not cancelled")
        code, detail = _error(reply)
        if reply.status in (400, 409, 422) and code in _MISMATCH:
            return Outcome(Kind.RETRY, _OUTDATED, contact=CallResult.ANSWERED)
        if reply.status in (400, 422):
            words = f"{_PAID}: {code} {detail}" if is_paid else f"{code} {detail}"
            return rejected(REJECTIONS.get(code, Rejection.OTHER), words)
        return by_status(reply, self.limits.unprocessed)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        found = _find(order, merchant, send)
        return self._priced(found, order, merchant, send) if isinstance(found, dict) else found

    def _priced(
        self, found: dict[str, Any], order: Order, merchant: Merchant, send: Send
    ) -> Outcome:
        """The outcome of an order as Square has it; at another price it is cancelled there.

        Square calculates totals itself. One that was accepted before had ours then: the shop may have
        changed the order since.
        """
        standing = _standing(found)
        if standing.kind is Kind.IN_DOUBT or standing.reason or order.external_id is not None:
            return standing
        is_cancelled = standing.kind is Kind.CANCELLED
        money = inside(found, "total_money")
        amount, currency = money.get("amount"), money.get("currency")
        if is_cancelled and not amount:
            return standing
        if type(amount) is not int or not isinstance(currency, str):
            return in_doubt("an order without its total")
        mismatch = lines.mispriced(order, amount, currency)
        if mismatch is None:
            return standing
        if is_cancelled:  # by an earlier attempt, whose reply was lost
            return Outcome(Kind.REJECTED, mismatch, standing.external_id)
        return self._withdrawn(found, mismatch, order, merchant, send)

    def _withdrawn(
        self, found: dict[str, Any], mismatch: Reason, order: Order, merchant: Merchant, send: Send
    ) -> Outcome:
        """Cancel an order that is at Square at another price, and reject it; in doubt until then.

        An order that the shop has begun with is left to an operator. ``found`` may not show that: for a
        known key Square repeats its first reply.
        """
        known_as = identifier(found.get("id"))
        known = order.in_ledger(None, None, known_as)
        undo = partial(self._cancel, known, merchant, send, mismatch)
        after = after_refusal(undo) or in_doubt("")
        if after.for_operator:
            return after
        if after.kind is Kind.CANCELLED:
            return Outcome(Kind.REJECTED, mismatch, known_as)
        return not_undone(mismatch, known_as, after)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        given = request.headers.get("x-square-hmacsha256-signature", "")
        is_its = is_signed(given, merchant, request.url.encode(), request.body)
        return _callbacks(said(request.body)) if is_its else None


def _callbacks(event: dict[str, Any]) -> list[Callback]:
    """What an order.updated or order.fulfillment.updated says; nothing: no more than is known.

    The order is found by Square's id: the events have no ``metadata``.
    """
    name = {
        "order.updated": "order_updated",
        "order.fulfillment.updated": "order_fulfillment_updated",
    }.get(str(event.get("type")), "")
    found = inside(event, "data", "object", name)
    updates = found.get("fulfillment_update")
    last = updates[-1] if isinstance(updates, list) and updates else None
    state = inside({"last": last}, "last").get("new_state")
    of_order = _SAID.get(str(found.get("state")))
    meaning = of_order or _FULFILLING.get(str(state))
    known_as, location = (identifier(found.get(each)) for each in ("order_id", "location_id"))
    if meaning is None or known_as is None or location is None:
        return []
    return [
        Callback(
            str(event.get("event_id")),
            meaning,
            external_id=known_as,
            occurred_at=unix_time(found.get("updated_at") or event.get("created_at")),
            reason=_FAILED if of_order is None and state == "FAILED" else None,
            account=("location_id", location),
        )
    ]


def _cancelled(fulfillments: object) -> list[dict[str, Any]]:
    found = fulfillments if isinstance(fulfillments, list) else []
    open_ones = [
        each for each in found if isinstance(each, dict) and each.get("state") not in _DONE
    ]
    return [{"uid": each.get("uid"), "state": "CANCELED"} for each in open_ones]


def _find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order as Square has it; None if Square does not know it; an Outcome if that is in doubt.

    SearchOrders has no filter for our id: unless Square's id is known, this searches the orders of
    the time window.
    """
    if (known := _retrieved(order, merchant, send)) is not None:
        return known
    search, unmarked = _SquareSearch(merchant, send), dict[str, dict[str, Any]]()
    for window in windows(order, _SKEW):
        for page in search.pages(window):
            if isinstance(page, Outcome):
                return page
            for each in page:
                if _is(each, order, merchant):
                    return each
                if _was(each, order, merchant):
                    unmarked[str(each.get("id"))] = each
        if unmarked:
            return the_only(unmarked.values(), lambda found: _is_like(found, order))
    return None


def _retrieved(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order that has Square's id for ours; None if there is none, or it is another one."""
    if order.external_id is None:
        return None
    reply = send(
        Request("GET", _order_url(order.external_id, merchant), None, _VERSION, BODY_LIMIT)
    )
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = (json_object(reply) or {}).get("order")
    is_ours = isinstance(found, dict) and (
        _is(found, order, merchant) or _was(found, order, merchant)
    )
    return found if is_ours else None


def _order_url(known_as: str | None, merchant: Merchant) -> str:
    return f"{merchant.base_url}/v2/orders/{quote(known_as or '', safe='')}"


class _SquareSearch:
    """A look-up's pages: of as many orders as a reply has room for."""

    def __init__(self, merchant: Merchant, send: Send) -> None:
        self._merchant, self._send = merchant, send
        self._left, self._read, self._orders = _PAGES, 0, _PAGE

    def pages(self, window: tuple[datetime, datetime]) -> Iterator[list[dict[str, Any]] | Outcome]:
        """The orders of a time window; an Outcome ends it, since they cannot all be read."""
        url, search = f"{self._merchant.base_url}/v2/orders/search", self._search(window)
        while True:
            asked = Request("POST", url, encoded(search), _JSON, BODY_LIMIT, is_search=True)
            try:
                reply = self._send(asked)
            except NoValidReply as error:
                self._orders = shorter(error, self._orders)
                search = self._search(window)  # a cursor belongs to its limit ("Pagination")
                continue
            if reply.status != 200:
                yield no_answer(reply)
                return
            page = json_object(reply)
            found = (page or {}).get("orders", [])
            is_page = isinstance(found, list) and len(found) <= search["limit"]
            if page is None or page.get("errors") or not is_page:
                yield in_doubt("asked for the order, Square answered something else")
                return
            yield [each for each in found if isinstance(each, dict)]
            cursor = page.get("cursor")
            if not cursor:
                return
            self._left, self._read = self._left - 1, self._read + len(reply.body)
            is_end = self._read > LOOK_UP or not self._left
            if is_end or not isinstance(cursor, str) or len(cursor) > _CURSOR:
                yield in_doubt(_TOO_MANY)
                return
            search["cursor"] = cursor

    def _search(self, window: tuple[datetime, datetime]) -> dict[str, Any]:
        since, until = map(_moment, window)
        created = {"start_at": since, "end_at": until}
        return {
            "location_ids": [self._merchant.pos["location_id"]],
            "query": {
                "filter": {"date_time_filter": {"created_at": created}},
                "sort": {"sort_field": "CREATED_AT", "sort_order": "ASC"},
            },
            "limit": self._orders,
        }


def _made(reply: Reply, order: Order, merchant: Merchant) -> dict[str, Any] | Outcome:
    """The order in a 200; in doubt without ours."""
    record = json_object(reply) or {}
    found = record.get("order")
    if not isinstance(found, dict) or record.get("errors"):
        return in_doubt("a 200 without an order")
    # An idempotency key of the release before gets the order that it has made.
    if not (_is(found, order, merchant) or _was(found, order, merchant)):
        return in_doubt("the reply is about another order")
    return found


def _standing(found: dict[str, Any]) -> Outcome:
    """The outcome of an order's state; an open one whose fulfillments were given up is cancelled."""
    outcome, states = decision(_STATES, found.get("state"), found.get("id")), _fulfilling(found)
    if outcome.kind is not Kind.ACCEPTED or not states or not states.issubset(_GIVEN_UP):
        return outcome
    reason = _FAILED if "FAILED" in states else _CANCELLED
    return replace(outcome, kind=Kind.CANCELLED, reason=reason)


def _has_begun(found: dict[str, Any]) -> bool:
    return found.get("state") != "OPEN" or bool(_fulfilling(found) - {"PROPOSED", *_GIVEN_UP})


def _fulfilling(found: dict[str, Any]) -> set[str]:
    """The states of its fulfillments."""
    listed = found.get("fulfillments")
    return (
        {str(inside(each).get("state")) for each in listed} if isinstance(listed, list) else set()
    )


def _is(found: dict[str, Any], order: Order, merchant: Merchant) -> bool:
    return _names(found, order, merchant, order.merchant_id)


def _was(found: dict[str, Any], order: Order, merchant: Merchant) -> bool:
    """Whether the release before, which named no merchant, may have sent it as this order."""
    return _names(found, order, merchant, None)


def _names(found: dict[str, Any], order: Order, merchant: Merchant, whose: str | None) -> bool:
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or found.get("location_id") != merchant.pos["location_id"]:
        return False
    return metadata.get("order_id") == order.order_id and metadata.get("merchant_id") == whose


def _is_like(found: dict[str, Any], order: Order) -> bool:
    """Whether it has our lines, by quantity and price; also if it shows none."""
    shown = found.get("line_items")
    return not isinstance(shown, list) or [_amount(each) for each in shown] == [
        (str(item.quantity), price(item)) for item in lines.cooperatively(order)
    ]


def _amount(line: object) -> tuple[object, object]:
    known = line if isinstance(line, dict) else {}
    price = known.get("base_price_money")
    return known.get("quantity"), price.get("amount") if isinstance(price, dict) else None


def _in_its_words(outcome: Outcome, reply: Reply) -> Outcome:
    """The outcome with Square's words: only they say what was not found, item or location."""
    return replace(outcome, reason=Reason.of(f"http_{reply.status}", " ".join(_error(reply))))


def _error(reply: Reply) -> tuple[str, str]:
    """Code and detail of the first error, which the status belongs to."""
    errors = (json_object(reply) or {}).get("errors")
    first = errors[0] if isinstance(errors, list) and errors else None
    if not isinstance(first, dict):
        return f"HTTP_{reply.status}", ""
    return str(first.get("code")), f"{first.get('field') or ''} {first.get('detail') or ''}".strip()


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
