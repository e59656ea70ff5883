"""An order's only step at HubRise: made with its payment, looked up by ``private_ref``, undone by the status ``cancelled``.

Sources, on hubrise.com/developers/api: "Orders", "Private Refs". HubRise hands an order on to the shop's EPOS, and the EPOS
answers with a status. The documents leave open

- whether a second order with a private ref is refused ("unique"), and in which words: after a refusal the order is looked
  up. A refusal about the private ref leaves an order in doubt where the look-up finds no order. Two orders are an operator's;
- how soon an order is found: no list is believed to lack the order until the time of a reply has passed;
- whether an EPOS follows a cancellation: an order in preparation at another price is left to an operator;
- whether a status may be overwritten: an order is looked up before the cancellation, and stays once the order has left the shop.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from pos_gateway.adapters.hubrise_api import (
    REFUSALS,
    asking,
    cancelling,
    listing,
    listing_since,
    posting,
    words,
)
from pos_gateway.adapters.hubrise_location import closed
from pos_gateway.adapters.hubrise_order import content, private_ref
from pos_gateway.adapters.hubrise_state import GONE, disagreement, meaning, money, standing, why
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    begun,
    by_status,
    in_doubt,
    is_absent,
    json_list,
    json_object,
    no_answer,
    not_undone,
    shorter,
)
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Send

_ENDED = ("cancelled", "rejected")
#: A list's orders per page (HubRise allows 100) and maximum pages: ten lists a minute are allowed, look-ups' too.
_PAGE, _PAGES = 100, 6
#: Maximum characters of a cursor, which is sent back. HubRise documents no limit.
_CURSOR = 1024


def create(order: Order, merchant: Merchant, send: Send) -> Outcome:
    """Make the order; ACCEPTED once the EPOS has it, PENDING until then."""
    body = content(order, merchant)
    if isinstance(body, Outcome):
        return body
    if (refusal := closed(order, merchant, send)) is not None:
        return refusal
    reply = send(posting(body, order, merchant))
    if reply.status == 200:
        made = _ours(reply, order)
        return _agreed(made, order, merchant, send) if isinstance(made, dict) else made
    is_refused = reply.status in REFUSALS
    return _refused(reply, order, merchant, send) if is_refused else by_status(reply)


def _refused(reply: Reply, order: Order, merchant: Merchant, send: Send) -> Outcome:
    """The outcome of a refused order, which may be a double's refusal."""
    known = after_refusal(lambda: look_up(order, merchant, send))
    if known is not None:
        return known
    said = words(reply)
    if reply.status == 409 or "private_ref" in said:
        return in_doubt(f"refused as if it were there ({said}), but HubRise does not know it")
    return rejected(Rejection.INVALID_ORDER, said)


def look_up(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The order at HubRise; None: HubRise does not have the order."""
    found = _find(order, merchant, send)
    if not isinstance(found, dict):
        return found
    if order.external_id is not None:  # accepted before: the shop may have changed it since
        return standing(found, merchant)
    return _agreed(found, order, merchant, send)


def placed(
    since: datetime, merchant: Merchant, send: Send
) -> Iterator[list[dict[str, Any]] | Outcome]:
    """The orders placed since; an Outcome is the end: not all can be read."""
    count, cursor = _PAGE, None
    for _ in range(_PAGES):
        try:
            reply = send(listing_since(since, count, cursor, merchant))
        except NoValidReply as error:
            count = shorter(error, count)
            continue
        listed = json_list(reply)
        if reply.status != 200:
            yield no_answer(reply)
            return
        if listed is None or len(listed) > count:
            yield in_doubt("asked for a list of orders, HubRise answered something else")
            return
        yield [each for each in listed if isinstance(each, dict)]
        cursor = reply.headers.get("x-cursor-next")
        if not cursor:
            return
        if len(cursor) > _CURSOR:
            break
    yield in_doubt(f"more than {_PAGES} pages of orders")


def undo(order: Order, merchant: Merchant, send: Send) -> Outcome:
    """Cancel the order, unless it has left the shop."""
    found = _find(order, merchant, send)
    if not isinstance(found, dict):
        return found or rejected(Rejection.UNKNOWN_ORDER, "HubRise does not know the order")
    known = standing(found, merchant)
    if found.get("status") in GONE:
        return rejected(Rejection.OTHER, why(found).message)
    if known.kind in (Kind.ACCEPTED, Kind.PENDING):
        return _cancelled(str(known.external_id), order, merchant, send)
    is_not_made = known.kind is Kind.REJECTED
    return Outcome(Kind.CANCELLED, external_id=known.external_id) if is_not_made else known


def _find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order by HubRise's id if known, else by our private ref: only the latter is a list."""
    if order.known_as is not None:
        reply = send(asking(order.known_as, merchant))
        if not is_absent(reply):
            return _ours(reply, order) if reply.status == 200 else no_answer(reply)
    mark = private_ref(order)
    reply = send(listing(mark, merchant))
    if reply.status != 200:
        return no_answer(reply)
    listed = json_list(reply)
    if listed is None or any(not isinstance(each, dict) for each in listed):
        return in_doubt("a 200 without a list of orders")
    if "x-cursor-next" in reply.headers or any(each.get("private_ref") != mark for each in listed):
        return in_doubt("asked for one order, HubRise has answered others")
    standing_ones = [each for each in listed if each.get("status") not in _ENDED]
    if len(standing_ones) > 1:
        ids = ", ".join(str(each.get("id")) for each in standing_ones)
        return replace(in_doubt(f"HubRise has it twice: {ids}"), for_operator=True)
    return next(iter(standing_ones or listed), None)


def _ours(reply: Reply, order: Order) -> dict[str, Any] | Outcome:
    """The order in a 200; in doubt if the reply has no order, or a wrong order."""
    found = json_object(reply)
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    is_ours = found.get("private_ref") == private_ref(order)
    return found if is_ours else in_doubt("the reply is about another order")


def _agreed(found: dict[str, Any], order: Order, merchant: Merchant, send: Send) -> Outcome:
    """An order's standing; an order at a wrong total, or with less text, is cancelled and rejected."""
    known = standing(found, merchant)
    if known.kind in (Kind.IN_DOUBT, Kind.REJECTED):
        return known
    is_cancelled = known.kind is Kind.CANCELLED
    if money(found.get("total")) is None:
        return known if is_cancelled else in_doubt("an order without its total")
    reason = disagreement(found, order, content(order, merchant))
    if reason is None or is_cancelled:  # perhaps by an earlier attempt without a reply
        return known if reason is None else Outcome(Kind.REJECTED, reason)
    if isinstance(meaning(found, merchant), Lifecycle):
        return begun(reason, known.external_id)
    undone = after_refusal(lambda: _cancelled(str(known.external_id), order, merchant, send))
    if undone is None or undone.kind is Kind.CANCELLED:
        return Outcome(Kind.REJECTED, reason)
    return not_undone(reason, known.external_id, undone)


def _cancelled(known_as: str, order: Order, merchant: Merchant, send: Send) -> Outcome:
    reply = send(cancelling(known_as, merchant))
    if reply.status in REFUSALS:
        return rejected(Rejection.INVALID_ORDER, words(reply))
    if reply.status != 200:
        return by_status(reply)
    found = _ours(reply, order)
    after = standing(found, merchant) if isinstance(found, dict) else found
    is_done = after.kind in (Kind.CANCELLED, Kind.IN_DOUBT)
    return after if is_done else in_doubt("a 200, but the order is not cancelled")
