"""Finds an order at Square: by Square's id, else among the orders of the order's time.

Sources, on developer.squareup.com: "RetrieveOrder" and "SearchOrders" in the API reference,
"Pagination", "Metadata".
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.replies import (
    LOOK_UP,
    in_doubt,
    is_absent,
    json_object,
    no_answer,
    shorter,
)
from pos_gateway.adapters.square_api import JSON, asking, encoded, order_url
from pos_gateway.adapters.square_order import price
from pos_gateway.adapters.window import windows
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send

#: Clock skew between Square, the backend and us that a look-up by time allows for.
_SKEW = timedelta(hours=1)
#: A look-up's orders per page (Square allows 1,000, but a reply must stay short) and maximum pages.
_PAGE, _PAGES = 20, 25
_TOO_MANY = f"not among the orders of its time, {_PAGE * _PAGES} or {LOOK_UP} bytes of them"
#: Maximum characters of a cursor, which is sent back. Square documents no limit.
_CURSOR = 4096


def find(
    order: Order, merchant: Merchant, facts: Facts, send: Send
) -> dict[str, Any] | Outcome | None:
    """The order as Square has it; None if Square does not know it; an Outcome if that is in doubt.

    SearchOrders has no filter for our id: unless Square's id is known, this searches the orders of
    the time window.
    """
    if (known := _retrieved(order, merchant, facts, send)) is not None:
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


def changed(
    since: datetime, until: datetime, merchant: Merchant, send: Send
) -> Iterator[list[dict[str, Any]] | Outcome]:
    """Orders changed between the two times; an Outcome is the end: not all can be read."""
    return _SquareSearch(merchant, send).pages((since, until), by="updated_at")


def answered(reply: Reply, order: Order, merchant: Merchant) -> dict[str, Any] | Outcome:
    """The order in a 200; in doubt without ours."""
    record = json_object(reply) or {}
    found = record.get("order")
    if not isinstance(found, dict) or record.get("errors"):
        return in_doubt("a 200 without an order")
    # An idempotency key of the release before gets the order that it has made.
    if not (_is(found, order, merchant) or _was(found, order, merchant)):
        return in_doubt("the reply is about another order")
    return found


def _retrieved(
    order: Order, merchant: Merchant, facts: Facts, send: Send
) -> dict[str, Any] | Outcome | None:
    """The order that has Square's id for ours; None if there is none, or it is another one."""
    known_as = facts.get("order") or order.external_id
    if known_as is None:
        return None
    reply = send(asking(order_url(known_as, merchant)))
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = (json_object(reply) or {}).get("order")
    is_ours = isinstance(found, dict) and (
        _is(found, order, merchant) or _was(found, order, merchant)
    )
    return found if is_ours else None


class _SquareSearch:
    """A look-up's pages: of as many orders as a reply has room for."""

    def __init__(self, merchant: Merchant, send: Send) -> None:
        self._merchant, self._send = merchant, send
        self._left, self._read, self._orders = _PAGES, 0, _PAGE

    def pages(
        self, window: tuple[datetime, datetime], by: str = "created_at"
    ) -> Iterator[list[dict[str, Any]] | Outcome]:
        """The orders of a time window; an Outcome ends it, since they cannot all be read."""
        url, search = f"{self._merchant.base_url}/v2/orders/search", self._search(window, by)
        while True:
            asked = Request("POST", url, encoded(search), JSON, BODY_LIMIT, is_search=True)
            try:
                reply = self._send(asked)
            except NoValidReply as error:
                self._orders = shorter(error, self._orders)
                search = self._search(window, by)  # a cursor belongs to its limit ("Pagination")
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

    def _search(self, window: tuple[datetime, datetime], by: str) -> dict[str, Any]:
        since, until = map(_moment, window)
        times = {by: {"start_at": since, "end_at": until}}
        return {
            "location_ids": [self._merchant.pos["location_id"]],
            "query": {
                "filter": {"date_time_filter": times},
                "sort": {"sort_field": by.upper(), "sort_order": "ASC"},
            },
            "limit": self._orders,
        }


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


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
