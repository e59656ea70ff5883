"""Finds an order at Toast, by Toast's id if known, else by the external identifier.

Source: "External identifiers" on doc.toasttab.com. Toast refuses a second order with the same external
identifier. How soon a new order is found by the identifier is not documented: a look-up is believed once
the longest reply has passed.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.replies import (
    in_doubt,
    is_absent,
    json_list,
    json_object,
    no_answer,
    shorter,
)
from pos_gateway.adapters.toast_api import asking, listing
from pos_gateway.adapters.toast_order import external_id, unmarked
from pos_gateway.adapters.toast_state import amounts
from pos_gateway.adapters.window import windows
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Send

#: Clock skew between Toast, the backend and us in the time of an order that names no merchant.
_SKEW = timedelta(hours=1)
#: A list's orders per page (Toast allows 100, but a reply must stay short) and maximum pages.
_PAGE, _PAGES = 16, 25


def find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order as Toast has it; None if Toast does not know it; an Outcome if that is in doubt.

    The release before has sent it with a mark that names no merchant.
    """
    for name in filter(None, (order.known_as, external_id(order, merchant))):
        reply = send(asking(name, merchant))
        if not is_absent(reply):
            return no_answer(reply) if reply.status != 200 else answered(reply, order, merchant)
    reply = send(asking(unmarked(order, merchant), merchant))
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = answered(reply, order, merchant)
    if isinstance(found, Outcome) or not _in_its_time(found, order):
        return found if isinstance(found, Outcome) else None
    known = amounts(found)
    return the_only([found], lambda _: known == (None, None) or order.total in known)


def changed(
    since: datetime, until: datetime, merchant: Merchant, send: Send
) -> Iterator[list[dict[str, Any]] | Outcome]:
    """Orders changed between the two times; an Outcome is the end: not all can be read.

    A change between two pages moves later orders forward, past the next page. The times of two polls overlap.
    """
    size, page = _PAGE, 1
    for _ in range(_PAGES):
        try:
            reply = send(listing(since, until, size, page, merchant))
        except NoValidReply as error:
            if error.code == "reply_too_long" and size == 1:
                page += 1  # Toast's longest orders have more bytes than any reply may have
                continue
            size, page = shorter(error, size), page * 2 - 1  # from the same order on
            continue
        listed = json_list(reply)
        if reply.status != 200:
            yield no_answer(reply)
            return
        if listed is None or len(listed) > size:
            yield in_doubt("asked for a list of orders, Toast answered something else")
            return
        yield [each for each in listed if isinstance(each, dict)]
        if len(listed) < size:
            return
        page += 1
    yield in_doubt(f"more than {_PAGES} pages of orders")


def answered(reply: Reply, order: Order, merchant: Merchant) -> dict[str, Any] | Outcome:
    """The order in a 200; in doubt if the reply has none, or another one."""
    found = json_object(reply)
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("externalId") not in (external_id(order, merchant), unmarked(order, merchant)):
        return in_doubt("the reply is about another order")
    return found


def _in_its_time(found: dict[str, Any], order: Order) -> bool:
    """Whether it was created when ours may have been; also if it does not say when."""
    try:
        created = datetime.fromisoformat(str(found.get("createdDate")))
    except ValueError:
        return True
    times = windows(order, _SKEW) if created.tzinfo else []
    return not times or any(since <= created <= until for since, until in times)
