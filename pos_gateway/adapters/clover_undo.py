"""Undoes an order at Clover.

Sources, on docs.clover.com: "Manage orders data", "Delete an order". Clover documents neither a different
way nor a refund of a recorded payment through this API, and leaves open whether an order with a payment
can be deleted. An order is deleted while nothing is paid, nothing on paper, and no ticket asked for: a print
event cannot be taken back. Afterwards the order stays: a kitchen cooks from paper.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pos_gateway.adapters.clover_api import has_failed, order_url, refused
from pos_gateway.adapters.clover_search import find, referenced
from pos_gateway.adapters.clover_state import has_begun, is_on_paper, payments, standing
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import in_doubt, is_absent
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.transport.exchange import Request, Send

_PAID = "it is paid, and Clover's API takes no payment back: refund and delete it at Clover"
_ON_PAPER = "the kitchen has the ticket: call the shop, and delete it at Clover"
_ASKED = "a print event cannot be taken back, and the ticket may still come out: call the shop"
_BEGUN = "the shop has begun with it"


def undo(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Delete the order with all doubles. REJECTED: the order stands.

    An order at another total than ours is not deleted once the shop has begun with it.
    """
    known = _deletable(order, merchant, facts, send)
    if known.kind is not Kind.ACCEPTED:
        return known
    every = referenced(order, merchant, send, expand="payments,lineItems")
    if isinstance(every, Outcome):
        return every
    left = delete_doubles(every, known.external_id, merchant, send)
    return left or deleted(known.external_id, merchant, send)


def unprint(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """REJECTED: the ticket may come out. CANCELLED: the printer has failed, or the order is gone."""
    known = _deletable(order, merchant, facts, send)
    if known.kind is Kind.REJECTED and known.reason is not None:
        # An unknown order is no undone print event: lists may lag.
        return rejected(Rejection.OTHER, known.reason.message)
    if known.kind is not Kind.ACCEPTED:
        return known
    failed = "print_event" in facts and has_failed(facts["print_event"], merchant, send)
    if isinstance(failed, Outcome):
        return failed
    return replace(known, kind=Kind.CANCELLED) if failed else rejected(Rejection.OTHER, _ASKED)


def _deletable(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """ACCEPTED: the order stands, and nothing is paid or on paper. REJECTED: it stays, or is unknown."""
    found = find(order, merchant, facts, send, "payments", "lineItems")
    if not isinstance(found, dict):
        return found or rejected(Rejection.UNKNOWN_ORDER, "Clover does not know the order")
    known = standing(found)
    why = _stays(found, order, facts) if known.kind is Kind.ACCEPTED else None
    return known if why is None else rejected(Rejection.OTHER, why)


def _stays(found: dict[str, Any], order: Order, facts: Facts) -> str | None:
    """Why the order is not deleted; None: nothing is paid, nothing on paper."""
    if payments(found):
        return _PAID
    if is_on_paper(found):
        return _ON_PAPER
    is_agreed = facts.get("total", order.total) == order.total
    return None if is_agreed or not has_begun(found) else _BEGUN


def delete_doubles(
    every: Iterable[dict[str, Any]], known_as: object, merchant: Merchant, send: Send
) -> Outcome | None:
    """Delete the orders but ``known_as``, all with our reference. None: no double is left.

    A proxy may have repeated the create, or a look-up may have missed the first order.
    """
    for each in every:
        double = each.get("id")
        if double == known_as:
            continue
        if has_begun(each):
            why = f"Clover has it twice, and the shop has begun with {double}"
            return for_operator(f"{why}: delete that, or {known_as}")
        outcome = deleted(double, merchant, send)
        if outcome.kind in (Kind.REJECTED, Kind.FAILED):
            said = outcome.reason.message if outcome.reason else ""
            return for_operator(f"Clover has it twice, and does not delete {double}: {said}")
        if outcome.kind is not Kind.CANCELLED:
            return outcome
    return None


def deleted(known_as: object, merchant: Merchant, send: Send) -> Outcome:
    """Delete the order with Clover's id ``known_as``: CANCELLED, also if the order is gone by now."""
    reply = send(Request("DELETE", order_url(known_as, merchant)))
    if reply.status == 200 or is_absent(reply):  # a 200's body is not documented
        return Outcome(Kind.CANCELLED, external_id=str(known_as))
    return refused(reply)


def for_operator(why: str) -> Outcome:
    """In doubt until an operator has looked at Clover."""
    return replace(in_doubt(why).after(CallResult.ANSWERED), for_operator=True)
