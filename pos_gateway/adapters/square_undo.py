"""Undoes an order at Square, paid or not.

Sources, on developer.squareup.com: "UpdateOrder", "GetPayment" and "RefundPayment" in the API reference;
"Update Orders", "Refund Payments". An unpaid order is cancelled. A paid one cannot be: its fulfillment is
cancelled, so that the kitchen stops, then the refund of its payment is recorded. Each call may be repeated.
"""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import after_refusal, by_status, in_doubt, json_object, no_answer
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.square_api import (
    LIMITS,
    asking,
    changing,
    encoded,
    error,
    key,
    order_url,
    refused,
    short_key,
)
from pos_gateway.adapters.square_search import answered, find
from pos_gateway.adapters.square_state import (
    has_begun,
    is_given_up,
    is_over,
    open_fulfillments,
    payment_id,
    standing,
    tenders,
)
from pos_gateway.adapters.steps import NOT_REFUNDED
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send

#: Codes of an UpdateOrder with another version than the order has by now ("Update Orders").
_MISMATCH = frozenset({"VERSION_MISMATCH", "CONFLICT"})
_OUTDATED = Reason("version_mismatch", "Square has changed the order since it was looked up")
_PAID = "the order was paid at Square, not by us: cancel its fulfillment and refund it there"
_OVER = "the guest has the order: refund it at Square"
_BEGUN = "the shop has begun with it"


def undo(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Undo the order, with the version that a look-up finds.

    Square's own work on an order changes its version, too: then the order is looked up once more. An
    order at another total than ours is not undone once the shop has begun with it.

    Returns:
        CANCELLED, also without a refund that Square refuses: the reason says so, and the kitchen has
        stopped. REJECTED: the order stands. In doubt between the calls, with the same reason.
    """
    outcome = _undo(order, merchant, facts, send)
    return _undo(order, merchant, facts, send) if outcome.reason == _OUTDATED else outcome


def _undo(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    found = find(order, merchant, facts, send)
    if not isinstance(found, dict):
        return found or rejected(Rejection.UNKNOWN_ORDER, "Square does not know the order")
    payments = _payments(found, order, merchant, send)
    if isinstance(payments, Outcome):
        return payments
    is_paid = bool(payments) or "payment" in facts
    outcome = _stopped(found, order, merchant, facts, send, is_paid=is_paid)
    if outcome.kind is not Kind.CANCELLED:
        return outcome
    # The kitchen has stopped: a refund that was not sent leaves the undo in doubt.
    try:
        left = after_refusal(lambda: _refunded(payments, order, merchant, send)) or outcome
    except NoValidReply as error:
        left = Outcome(Kind.IN_DOUBT, Reason.of(error.code, error))
    if left.kind is not Kind.IN_DOUBT or left.reason is None:
        return left
    known_as = ", ".join(str(each["id"]) for each in payments)
    words = f"cancelled at Square; see there whether payment {known_as} is refunded: {left.reason.message}"
    return replace(left, reason=Reason.of(NOT_REFUNDED, words))


def _stopped(
    found: dict[str, Any],
    order: Order,
    merchant: Merchant,
    facts: Facts,
    send: Send,
    *,
    is_paid: bool,
) -> Outcome:
    """Stop the kitchen: CANCELLED once the order's fulfillments are, and the order unless it is paid."""
    known = standing(found)
    if known.kind is Kind.IN_DOUBT:
        return known
    stopped = Outcome(Kind.CANCELLED, external_id=known.external_id)
    if found.get("state") == "CANCELED" or (is_paid and is_given_up(found)):
        return stopped
    if facts.get("total", order.total) != order.total and has_begun(found):
        return replace(rejected(Rejection.OTHER, _BEGUN), for_operator=True)
    if is_over(found) and not is_given_up(found):
        return rejected(Rejection.OTHER, _OVER)
    reply = send(_update(found, order, merchant, is_paid=is_paid))
    due = inside(found, "net_amount_due_money").get("amount")
    if reply.status in (400, 422) and not is_paid and due == 0 and not _is_outdated(reply):
        # An order of 0 does not show that it is paid.
        reply = send(_update(found, order, merchant, is_paid=True))
    return _updated(reply, stopped, order, merchant)


def _update(found: dict[str, Any], order: Order, merchant: Merchant, *, is_paid: bool) -> Request:
    version = found.get("version")
    content = {
        "location_id": merchant.pos["location_id"],
        "version": version,
        **({} if is_paid else {"state": "CANCELED"}),
        # Square wants an order's fulfillments cancelled with it.
        "fulfillments": [{"uid": uid, "state": "CANCELED"} for uid in open_fulfillments(found)],
    }
    # A new key for each version: an old key would change nothing.
    what = f"cancel fulfillments {version}" if is_paid else f"cancel {version}"
    change = {"idempotency_key": key(order, what), "order": content}
    return changing("PUT", order_url(found.get("id"), merchant), encoded(change), order)


def _updated(reply: Reply, stopped: Outcome, order: Order, merchant: Merchant) -> Outcome:
    """What the reply to an update says; ``stopped``: that the order is cancelled."""
    if reply.status == 200:
        after = answered(reply, order, merchant)
        if isinstance(after, Outcome):
            return after
        return stopped if is_given_up(after) else in_doubt("a 200, but the order is not cancelled")
    if _is_outdated(reply):
        return Outcome(Kind.RETRY, _OUTDATED, contact=CallResult.ANSWERED)
    if reply.status not in (400, 422):
        return by_status(reply, LIMITS.unprocessed)
    code, detail = error(reply)
    return refused(code, f"{code} {detail}")


def _is_outdated(reply: Reply) -> bool:
    return reply.status in (400, 409, 422) and error(reply)[0] in _MISMATCH


def _payments(
    found: dict[str, Any], order: Order, merchant: Merchant, send: Send
) -> list[dict[str, Any]] | Outcome:
    """The order's payments, all recorded by ``pay``; REJECTED: the shop has taken money."""
    payments = []
    for tender in tenders(found):
        url = f"{merchant.base_url}/v2/payments/{quote(payment_id(tender), safe='')}"
        reply = send(asking(url))
        if reply.status != 200:
            return no_answer(reply)
        payment = inside(json_object(reply), "payment")
        details = inside(payment, "external_details")
        if not payment.get("id"):
            return in_doubt("asked for the payment, Square answered something else")
        if payment.get("source_type") != "EXTERNAL" or details.get("source_id") != order.order_id:
            return rejected(Rejection.OTHER, _PAID)
        payments.append(payment)
    return payments


def _refunded(
    payments: list[dict[str, Any]], order: Order, merchant: Merchant, send: Send
) -> Outcome | None:
    """Record what is left of each payment as refunded; None: nothing is left.

    A refund that fails is in doubt, and recorded by the next attempt; one that is refused is the reason
    of the cancellation.
    """
    for payment in payments:
        known_as, whole = str(payment["id"]), inside(payment, "total_money")
        back = inside(payment, "refunded_money").get("amount", 0)
        if type(whole.get("amount")) is not int or type(back) is not int:
            return in_doubt("a payment without its amount")
        left = whole["amount"] - back
        if left <= 0:
            continue
        content = {
            "idempotency_key": short_key(order, f"refund {known_as} {left}"),
            "payment_id": known_as,
            "amount_money": {"amount": left, "currency": whole.get("currency")},
            "reason": "the order was cancelled",
        }
        reply = send(changing("POST", f"{merchant.base_url}/v2/refunds", encoded(content), order))
        refund = inside(json_object(reply), "refund")
        if reply.status == 200 and refund.get("status") in ("PENDING", "COMPLETED"):
            continue
        outcome = in_doubt("a 200 without a refund") if reply.status == 200 else by_status(reply)
        code, detail = error(reply)
        if outcome.kind not in (Kind.REJECTED, Kind.FAILED):
            return replace(outcome, kind=Kind.IN_DOUBT)
        if code != "REFUND_ALREADY_PENDING":
            words = f"cancelled at Square; refund payment {known_as} there: {code} {detail}"
            return Outcome(Kind.CANCELLED, Reason.of(NOT_REFUNDED, words))
    return None
