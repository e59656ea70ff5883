"""An order's steps at Square: ``create``, then ``pay``. ``square_undo.py`` undoes both.

Sources, on developer.squareup.com: "CreateOrder", "UpdateOrder", "PayOrder", "CreatePayment",
"GetPayment" and "RefundPayment" in the API reference; "Create Orders", "Pay for Orders", "Take External
Payments", "Update Orders", "Refund Payments", "Idempotency".

A POS shows paid orders alone, so that the payment is recorded once the total is the agreed one. The payment
is of the type EXTERNAL: the money was taken elsewhere. A tip of the payment is the shop's staff's.
What the documents leave open:

- how long a key is known: ``pay`` is keyed for as long as keys are relied on, then looked up by the
  order's amount due. A second payment is refused, since nothing is due;
- whether a paid order of 0 shows that: PayOrder's reply says so. After a refusal an operator has to look;
- the state of a paid order whose fulfillment is cancelled: OPEN and COMPLETED are read as cancelled;
- whether the tip of a payment is in the order's total: the total may have it or not.
"""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters.lines import mispriced, request
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import after_refusal, by_status, in_doubt
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.square_api import (
    LIMITS,
    changing,
    encoded,
    error,
    order_url,
    refused,
    short_key,
)
from pos_gateway.adapters.square_location import closed
from pos_gateway.adapters.square_order import READS, REFERENCE, creation
from pos_gateway.adapters.square_search import answered, find
from pos_gateway.adapters.square_state import (
    fulfilling,
    is_paid,
    payment_id,
    standing,
    tenders,
)
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.order_parts import Payment
from pos_gateway.domain.outcome import Kind, Outcome, Reason, one_line
from pos_gateway.transport.exchange import Reply, Request, Send

#: Codes after which the order is looked up, since Square may have it. BAD_REQUEST is one: Square
#: has answered "Order … already exists" with it.
_ASK = frozenset({"IDEMPOTENCY_KEY_REUSED", "CONFLICT", "BAD_REQUEST"})
_UNSEEN = Reason(Rejection.OTHER, "the order at Square has no fulfillment: no POS would show it")
#: ExternalPaymentDetails.type by the order's ``payment.method``; OTHER by any other one.
_TYPES = {None: "EXTERNAL", "card": "CARD"}
#: How Square's reports name payments of a merchant without ``payment_source``.
_SOURCE = "Online order"
_NUMBER = "customer.phone: give a number like +14155552671, or the merchant pos.customer_phone"


def create(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome:
    """CreateOrder under an ``idempotency_key`` (at most 192 characters), which Square honours."""
    content = request(order, LIMITS, lambda: creation(order, merchant), READS)
    if not isinstance(content, Outcome):
        content = closed(order, merchant, send) or content
    if isinstance(content, Outcome):
        return content
    reply = send(changing("POST", f"{merchant.base_url}/v2/orders", content, order))
    if reply.status == 200:
        made = answered(reply, order, merchant)
        return made if isinstance(made, Outcome) else _agreed(made, order)
    if reply.status not in (400, 409, 422):
        return _by_status(reply)
    code, detail = error(reply)
    is_asked = reply.status == 409 or code in _ASK
    if is_asked:
        known = after_refusal(lambda: created(order, merchant, {}, send))
        if known is not None:
            return known
        if reply.status == 409 or code != "BAD_REQUEST":
            return in_doubt(f"{code} {detail}, but no such order can be found")
    words = f"{code} {detail}"
    if code == "INVALID_PHONE_NUMBER" or "recipient.phone_number" in detail:
        words = f"{_NUMBER}; {words}"
    return replace(refused(code, words), not_found=is_asked)


def created(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """The order as Square has it, as ``create`` returns it; None: Square does not have it."""
    found = find(order, merchant, facts, send)
    return _agreed(found, order) if isinstance(found, dict) else found


def pay(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """CreatePayment of Square's total, which is ours; for an order of 0 PayOrder without payments."""
    reply = send(_payment(order, merchant, facts))
    if reply.status == 200:
        return after_refusal(lambda: _confirmed(reply, order, merchant, facts, send)) or in_doubt(
            "Square has the payment, and the order is not paid"
        )
    outcome = _by_status(reply)
    if outcome.kind is not Kind.REJECTED and reply.status != 409:
        return outcome
    code, detail = error(reply)
    # An earlier attempt may have paid, whatever the refusal is.
    known = after_refusal(lambda: paid(order, merchant, facts, send))
    if known is not None:
        return known
    words = f"Square takes no payment of the order: {code} {detail}"
    if not facts["total"]:  # an order of 0 does not show whether it is paid
        why = Reason.of("blind", f"{words}; see there whether it is paid")
        return Outcome(Kind.IN_DOUBT, why, for_operator=True)
    if reply.status == 409 or code == "IDEMPOTENCY_KEY_REUSED":
        return in_doubt(words)
    return replace(rejected(Rejection.PAYMENT_REQUIRED, words), not_found=True)


def paid(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """The paid order as Square has it, as ``pay`` returns it; None: the order is not paid."""
    found = find(order, merchant, facts, send)
    return _settled(found, is_paid(found)) if isinstance(found, dict) else found


def _agreed(found: dict[str, Any], order: Order) -> Outcome:
    """The outcome of an order as Square has it: REJECTED with facts if it is not the agreed one.

    Square calculates totals itself. An order that was accepted before had ours then: the shop may
    have changed it since.
    """
    known, (amount, currency) = standing(found), _total(found, order)
    facts: Facts = {"order": known.external_id or "", "total": order.total}
    if known.kind in (Kind.IN_DOUBT, Kind.CANCELLED):
        return known
    if known.reason is not None or order.external_id is not None:
        return replace(known, facts=facts)
    if amount is None or currency is None:
        return in_doubt("an order without its total")
    if reason := mispriced(order, amount, currency) or (None if fulfilling(found) else _UNSEEN):
        return replace(known, kind=Kind.REJECTED, reason=reason, facts={**facts, "total": amount})
    return replace(known, facts=facts)


def _total(found: dict[str, Any], order: Order) -> tuple[int | None, str | None]:
    """Square's total and currency; None where the order has none.

    Without the tip of its payment, which may be in the total or not.
    """
    money, tip = inside(found, "total_money"), inside(found, "total_tip_money").get("amount")
    amount, currency = money.get("amount"), money.get("currency")
    if type(amount) is not int:
        return None, None
    if amount != order.total and type(tip) is int:
        amount -= tip
    return amount, currency if isinstance(currency, str) else None


def _settled(found: dict[str, Any], is_settled: bool | None) -> Outcome | None:
    """The outcome of an order that is paid, or None; ACCEPTED once a POS shows the order."""
    known, payments = standing(found), tenders(found)
    if known.kind in (Kind.IN_DOUBT, Kind.CANCELLED):
        return known
    facts: Facts = {"payment": payment_id(payments[0]) if payments else ""}
    if known.kind is Kind.REJECTED:
        return replace(known, facts=facts)
    if is_settled is None:
        return in_doubt("an order with a payment, and without its amount due")
    if is_settled and not fulfilling(found):
        return replace(in_doubt(_UNSEEN.message), for_operator=True)
    return replace(known, facts=facts) if is_settled else None


def _confirmed(
    reply: Reply, order: Order, merchant: Merchant, facts: Facts, send: Send
) -> Outcome | None:
    """The outcome after a payment was taken: by the order, asked for once more."""
    found = find(order, merchant, facts, send)
    if not isinstance(found, dict):
        return found
    # PayOrder answers with the order; nothing else shows that an order of 0 is paid.
    is_free = not facts["total"] and isinstance(answered(reply, order, merchant), dict)
    return _settled(found, is_free or is_paid(found))


def _payment(order: Order, merchant: Merchant, facts: Facts) -> Request:
    known_as, total = facts["order"], facts["total"]
    # Of Square's order: ours may be made there a second time, after the first was undone.
    content: dict[str, Any] = {"idempotency_key": short_key(order, f"pay {known_as}")}
    if not total:
        content["payment_ids"] = []
        url = f"{order_url(known_as, merchant)}/pay"
        return changing("POST", url, encoded(content), order)
    paid_by = order.payment or Payment()
    content |= {
        "source_id": "EXTERNAL",
        "amount_money": {"amount": total, "currency": order.currency},
        "order_id": known_as,
        "location_id": merchant.pos["location_id"],
        "external_details": {
            "type": _TYPES.get(paid_by.method, "OTHER"),
            "source": one_line(paid_by.source or "") or merchant.pos.get("payment_source", _SOURCE),
            "source_id": order.order_id,
        },
    }
    if order.tip:
        content["tip_money"] = {"amount": order.tip, "currency": order.currency}
    if paid_by.reference or len(order.order_id) <= REFERENCE:
        content["reference_id"] = paid_by.reference or order.order_id
    return changing("POST", f"{merchant.base_url}/v2/payments", encoded(content), order)


def _by_status(reply: Reply) -> Outcome:
    """As ``by_status``; with Square's words of what was not found, or not allowed."""
    outcome = by_status(reply, LIMITS.unprocessed)
    if reply.status not in (403, 404):
        return outcome
    return replace(outcome, reason=Reason.of(f"http_{reply.status}", " ".join(error(reply))))
