"""Finds an order at Clover: by Clover's id, by our reference, else among the orders of the order's time.

Sources, on docs.clover.com: "Get all orders", "Get a single order", "Apply filters", "Paginate elements",
"Expand fields".

No document says whether atomic orders keep an ``externalReferenceId``, and whether lists filter by the field. An
order with our reference is ours. Without a match the notes of all orders of the time are read. Lists have no
deleted orders unless ``deletedTime`` is a filter.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from pos_gateway.adapters.clover_api import asking, order_url, unanswered, url
from pos_gateway.adapters.clover_order import (
    had_our_note,
    is_marked,
    is_ours,
    reference,
    was_ours,
)
from pos_gateway.adapters.clover_state import has_begun
from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.replies import (
    LOOK_UP,
    in_doubt,
    is_absent,
    json_object,
    shorter,
)
from pos_gateway.adapters.window import windows
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.errors import NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply, Send

#: Maximum orders in a reply about our reference: any orders, where Clover ignores the filter.
_REFERENCED = 10
_DELETED = "deletedTime>=1"
#: Tax and charges that a merchant may add to an order, as a multiple of our total.
_MOST_TAX = 1.3
#: Clock skew between Clover, the backend and us that a look-up by time allows for.
_SKEW = timedelta(hours=1)
#: A look-up's orders per page (a reply must stay short), maximum pages, and overlap of two pages: a
#: deletion between two pages moves all later orders forward. Pages of the least orders overlap by 1.
_PAGE, _PAGES, _COMMON, _LEAST = 100, 10, 10, 2
_MAX_LISTED = _PAGES * (_PAGE - _COMMON) + _COMMON
_TOO_MANY = f"not among the orders of its time, {_MAX_LISTED} or {LOOK_UP} bytes of them"


def find(
    order: Order, merchant: Merchant, facts: Facts, send: Send, *expand: str
) -> dict[str, Any] | Outcome | None:
    """The order at Clover; None: Clover does not know the order; an Outcome without an answer.

    Args:
        order: ours.
        merchant: the order's.
        facts: with Clover's id once known.
        send: to Clover.
        expand: lists within the order.
    """
    known_as = facts.get("order") or order.external_id
    if known_as is not None:
        known = _retrieved(known_as, order, merchant, send, *expand)
        if known is not None:
            return known
    found = _searched(order, merchant, send, is_known=known_as is not None)
    if isinstance(found, dict) and expand and not found.get("deletedTime"):
        return _retrieved(found.get("id"), order, merchant, send, *expand)
    return found


def deleted(
    since: datetime, until: datetime, merchant: Merchant, send: Send
) -> Iterator[list[dict[str, Any]] | Outcome]:
    """Orders deleted between the two times; an Outcome is the end: not all can be read."""
    return _CloverSearch(merchant, send).pages((since, until), by="deletedTime")


def referenced(
    order: Order, merchant: Merchant, send: Send, *filters: str, expand: str = ""
) -> list[dict[str, Any]] | Outcome:
    """Our orders by our reference and ``filters``; in doubt without a valid reply."""
    every = [f"externalReferenceId={reference(order)}", *filters]
    query = [*(("filter", each) for each in every), ("limit", str(_REFERENCED))]
    query += [("expand", expand)] if expand else []
    try:
        reply = send(asking(url(merchant, f"orders?{urlencode(query)}")))
    except TransportError as error:
        if error.code != "reply_too_long":
            raise
        return []
    if reply.status == 400:  # lists have no such filter
        return []
    found = _elements(reply, _REFERENCED)
    return [each for each in found if is_ours(each, order)] if isinstance(found, list) else found


def _retrieved(
    known_as: object, order: Order, merchant: Merchant, send: Send, *expand: str
) -> dict[str, Any] | Outcome | None:
    """The order with Clover's id ``known_as``; None: unknown, or marked as a different order.

    Staff may have replaced the note.
    """
    reply = send(asking(order_url(known_as, merchant, *expand)))
    if reply.status != 200:
        return None if is_absent(reply) else unanswered(reply)
    found = json_object(reply)
    if found is None:
        return in_doubt("asked for the order, Clover answered something else")
    return None if is_marked(found) and not is_ours(found, order) else found


def _searched(
    order: Order, merchant: Merchant, send: Send, *, is_known: bool
) -> dict[str, Any] | Outcome | None:
    """The order by our reference, deleted or not, or by the note.

    An unmarked order for the same amount, tax included, may be ours with a lost note: in doubt, unless
    Clover's id of our order is known.
    """
    for filters in ((), (_DELETED,)):
        ours = referenced(order, merchant, send, *filters)
        if not isinstance(ours, list):
            return ours
        if ours:
            return min(ours, key=_rank)
    search, unmarked = _CloverSearch(merchant, send), dict[str, dict[str, Any]]()
    may_be_there = False
    for window in windows(order, _SKEW):
        for page in search.pages(window):
            if isinstance(page, Outcome):
                return page
            for each in page:
                if is_ours(each, order):
                    return each
                if was_ours(each, order):
                    unmarked[str(each.get("id"))] = each
                may_be_there |= not is_known and _may_be(each, order)
        if unmarked:
            return the_only(unmarked.values(), lambda found: had_our_note(found, order))
    return in_doubt("one for the same amount has no note") if may_be_there else None


def _rank(found: dict[str, Any]) -> tuple[bool, str, str]:
    """The least of several orders of ours is kept: begun by the shop, else the oldest."""
    return not has_begun(found), str(found.get("createdTime")), str(found.get("id"))


def _may_be(found: dict[str, Any], order: Order) -> bool:
    """Whether an order may be ours with a lost note: the total may include the merchant's tax."""
    total = found.get("total")
    is_near = isinstance(total, int) and order.total <= total <= order.total * _MOST_TAX
    return is_near and not is_marked(found)


def _elements(reply: Reply, most: int) -> list[dict[str, Any]] | Outcome:
    """The orders of a list; in doubt without a valid reply."""
    if reply.status != 200:
        return unanswered(reply)
    found = (json_object(reply) or {}).get("elements")
    if not isinstance(found, list) or len(found) > most:
        return in_doubt("asked for the order, Clover answered something else")
    return [each if isinstance(each, dict) else {} for each in found]


class _CloverSearch:
    """A look-up's pages, as long as replies have room for."""

    def __init__(self, merchant: Merchant, send: Send) -> None:
        self._merchant, self._send = merchant, send
        self._left, self._read, self._orders = _PAGES, 0, _PAGE

    def pages(
        self, window: tuple[datetime, datetime], by: str = "createdTime"
    ) -> Iterator[list[dict[str, Any]] | Outcome]:
        """The orders of a time window; an Outcome is the end: not all orders can be read."""
        last, end = None, 0
        while True:
            if not self._left or self._read > LOOK_UP:
                yield in_doubt(_TOO_MANY)
                return
            offset = max(0, end - min(_COMMON, self._orders // 2))
            try:
                reply = self._send(asking(_page(self._merchant, window, by, offset, self._orders)))
            except NoValidReply as error:
                self._orders = shorter(error, self._orders, _LEAST)
                continue
            found = _elements(reply, self._orders)
            yield found
            if isinstance(found, Outcome):
                return
            ids = [each.get("id") for each in found]
            if offset and (last is None or last not in ids):
                yield in_doubt("orders between two pages may have been passed over")
                return
            if len(found) < self._orders:
                return
            last, end = ids[-1], offset + len(found)
            self._left, self._read = self._left - 1, self._read + len(reply.body)


def _page(
    merchant: Merchant, window: tuple[datetime, datetime], by: str, offset: int, orders: int
) -> str:
    since, until = (int(at.timestamp() * 1000) for at in window)
    query = [
        ("filter", f"{by}>={since}"),
        ("filter", f"{by}<={until}"),
        ("limit", orders),
        ("offset", offset),
    ]
    return url(merchant, f"orders?{urlencode(query)}")
