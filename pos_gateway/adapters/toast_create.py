"""An order's only step at Toast: made, paid and looked up as one, and undone by a void.

Sources, on doc.toasttab.com: "Order prices", "Creating orders", "Handling request timeouts for the orders
API", "API responses and errors", "Void an order". A create has its payment with it, and ``/prices`` makes
nothing: there is no state between the two requests in which a kitchen could have an order that is not paid.
So one step, by ``externalId``, is enough. What the documents leave open:

- whether prices are the same a moment later: a created order is compared again, and voided if it
  comes to another total, or was not paid. One that the kitchen has begun with is left to an operator,
  but for a new one: where a device fires orders, each is in preparation at once;
- how a second order with the same ``externalId`` is refused: after a 400, a 409 or a 422 the order is
  looked up. A refusal whose words are those of a double leaves the order in doubt;
- whether a 200 may lack the total, or the payment's status: then the order is in doubt;
- whether a card's PAID is seen on a check with another payment: it counts as CLOSED;
- whether an order for nothing is CLOSED: it is accepted in any case, since nothing is due;
- whether Toast voids an order that the kitchen has begun with. A refusal leaves an order as it is. For an order in the
  guest's hands no void is requested: a void takes back the payment, too.
"""

import re
from dataclasses import replace
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    begun,
    by_status,
    in_doubt,
    is_absent,
    json_object,
    not_undone,
)
from pos_gateway.adapters.toast_api import (
    LIMITS,
    REFUSALS,
    error,
    posting,
    refused,
    voiding,
)
from pos_gateway.adapters.toast_guest import REMEDY
from pos_gateway.adapters.toast_location import not_now
from pos_gateway.adapters.toast_order import content, named_in
from pos_gateway.adapters.toast_search import answered, find
from pos_gateway.adapters.toast_state import COMBINED, amounts, is_paid, mispriced, stage, standing
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Lifecycle, Outcome, Reason
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Send

#: What an ErrorMessage of an unknown menu entity names.
_MENU = re.compile("menu|item|modifier|selection|optiongroup", re.IGNORECASE)
#: What the refusal of a second order may say; Toast does not publish its words.
_DOUBLE = re.compile(
    "external|already|duplicate|unique|identifier|(?<!not )(?<!n't )exist", re.IGNORECASE
)
_OVER = "the guest has the order: refund it at Toast"
_OPEN = Reason(Rejection.PAYMENT_REQUIRED, "Toast has not taken the payment: its check is OPEN")


def create(order: Order, merchant: Merchant, send: Send) -> Outcome:
    """Ask for the prices, and make the order if they are its own; ACCEPTED once approved and paid.

    The request for the prices tells Toast's own refusals; what Toast takes in silence is asked next.
    """
    body = content(order, merchant)
    if isinstance(body, Outcome):
        return body
    try:
        prices = send(posting("/prices", body, order, merchant))
    except NoValidReply as lost:  # only prices were requested: no order exists yet
        raise NotSent(lost.code, lost) from lost
    refusal = _priced_otherwise(order, merchant, prices) or not_now(order, merchant, send)
    if refusal is not None:
        return refusal
    reply = send(posting("/orders", body, order, merchant))
    if reply.status == 200:
        made = answered(reply, order, merchant)
        if isinstance(made, Outcome):
            return made
        return _agreed(made, order, merchant, send, is_new=True)
    if reply.status in (*REFUSALS, 409):
        return _perhaps_there(order, merchant, send, reply)
    return _unknown_entity(reply, order, merchant) or by_status(reply, LIMITS.unprocessed)


def look_up(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The order as Toast has it; None: Toast does not have it."""
    found = find(order, merchant, send)
    if not isinstance(found, dict):
        return found
    if order.external_id is not None:  # accepted before: the shop may have changed it since
        known = standing(found)
        # Combined with another its food is made: it stands.
        is_made = known.reason is COMBINED
        return Outcome(Kind.ACCEPTED, external_id=known.external_id) if is_made else known
    return _agreed(found, order, merchant, send)


def undo(order: Order, merchant: Merchant, send: Send) -> Outcome:
    """Void the order with its payment, unless the guest has the order. Toast voids no card payment.

    An order that the restaurant has not approved is made no more. One that it has combined with another stays: a
    void of it would stop nothing.
    """
    found = find(order, merchant, send)
    if not isinstance(found, dict):
        return found or rejected(Rejection.UNKNOWN_ORDER, "Toast does not know the order")
    known = standing(found)
    if known.reason is COMBINED:
        return Outcome(Kind.REJECTED, COMBINED)
    if known.kind is Kind.ACCEPTED and stage(found) is Lifecycle.COMPLETED:
        return rejected(Rejection.OTHER, _OVER)
    if known.kind in (Kind.ACCEPTED, Kind.PENDING):
        return _voided(known, order, merchant, send)
    is_not_made = known.kind is Kind.REJECTED
    return Outcome(Kind.CANCELLED, external_id=known.external_id) if is_not_made else known


def _agreed(
    found: dict[str, Any], order: Order, merchant: Merchant, send: Send, *, is_new: bool = False
) -> Outcome:
    """An order's standing; one with another total, or unpaid, is voided, and rejected."""
    known, (net, total) = standing(found), amounts(found)
    if known.kind is Kind.CANCELLED:  # perhaps by an earlier attempt, whose reply was lost
        mismatch = mispriced(net, total, order) if total else None
        return known if mismatch is None else Outcome(Kind.REJECTED, mismatch)
    if known.kind not in (Kind.ACCEPTED, Kind.PENDING):
        return known
    is_settled = known.kind is Kind.PENDING or is_paid(found, order, merchant)
    if total is None or is_settled is None:
        return in_doubt("an order without its total, or without its payment's status")
    reason = mispriced(net, total, order) or (None if is_settled else _OPEN)
    if reason is None:
        return known
    if not is_new and stage(found) is not None:
        return begun(reason, known.external_id)
    return _undone(reason, known, order, merchant, send)


def _undone(
    reason: Reason, known: Outcome, order: Order, merchant: Merchant, send: Send
) -> Outcome:
    """Void an order that is not the agreed one: REJECTED for the reason, or in doubt."""
    undone = after_refusal(lambda: _voided(known, order, merchant, send))
    if undone is None or undone.kind is Kind.CANCELLED:
        return Outcome(Kind.REJECTED, reason)
    return not_undone(reason, known.external_id, undone)


def _voided(known: Outcome, order: Order, merchant: Merchant, send: Send) -> Outcome:
    reply = send(voiding(known.external_id, order, merchant))
    if reply.status == 200:
        found = answered(reply, order, merchant)
        after = standing(found) if isinstance(found, dict) else found
        is_done = after.kind in (Kind.CANCELLED, Kind.IN_DOUBT)
        return after if is_done else in_doubt("a 200, but the order is not voided")
    return refused(*error(reply), reply.status) if reply.status in REFUSALS else by_status(reply)


def _perhaps_there(order: Order, merchant: Merchant, send: Send, refusal: Reply) -> Outcome:
    """Look up a refused order: Toast refuses a known one in words that it does not document."""
    known = after_refusal(lambda: look_up(order, merchant, send))
    if known is not None:
        return known
    code, words = error(refusal)
    if refusal.status == 409 or _DOUBLE.search(words):
        return in_doubt(f"refused as if it were there ({words}), but Toast does not know it")
    return refused(code, words, refusal.status)


def _priced_otherwise(order: Order, merchant: Merchant, reply: Reply) -> Outcome | None:
    """None if Toast's prices with tax come to our total. No order exists yet."""
    if reply.status in REFUSALS:
        code, words = error(reply)
        is_guests = "customer" in words.lower()
        return refused(code, f"{words}; {REMEDY}" if is_guests else words, reply.status)
    if (unknown := _unknown_entity(reply, order, merchant)) is not None:
        return unknown
    if reply.status != 200:
        outcome = by_status(reply, LIMITS.unprocessed)
        is_passing = outcome.kind is Kind.IN_DOUBT
        return replace(outcome, kind=Kind.RETRY) if is_passing else outcome
    net, total = amounts(json_object(reply) or {})
    if total is None:
        reason = Reason.of("invalid_reply", "asked for the prices, Toast answered no total")
        return Outcome(Kind.RETRY, reason, contact=CallResult.FAILED)
    mismatch = mispriced(net, total, order)
    return None if mismatch is None else Outcome(Kind.REJECTED, mismatch)


def _unknown_entity(reply: Reply, order: Order, merchant: Merchant) -> Outcome | None:
    """What a 404 with an ErrorMessage says: the order refers to an entity that Toast lacks.

    An item of the menu is the order's matter; a dining option or the like is the record's.
    """
    if not is_absent(reply):
        return None
    code, words = error(reply)
    if not words:
        return None
    if (part := named_in(words, order, merchant)) is not None:
        problem = f"{lines.shortened(part.name, 100)!r} ({part.sku}): {code} {words}"
        return rejected(Rejection.ITEM_UNAVAILABLE, problem)
    if _MENU.search(words):
        return rejected(Rejection.ITEM_UNAVAILABLE, f"{code} {words}")
    named = [f"pos.{name}: " for name, value in merchant.pos.items() if value in words]
    why = Reason.of(f"http_{reply.status}", f"{''.join(named)}{code} {words}")
    return Outcome(Kind.FAILED, why)
