"""An order's steps at Clover: ``create``, ``pay``, ``print``. ``clover_undo.py`` undoes all.

Sources, on docs.clover.com: "Create an atomic order", "Calculate order totals", "Create a payment record on an
order", "Print orders with the REST API", "Get all tenders".

Clover prints an order of the API only on request, and a till asks the guest to pay an unpaid order. The payment is
a record with an external tender: the money was taken elsewhere. The payment's tip is the shop's staff's. Clover
knows no idempotency key for any of the calls. The documents leave open

- how soon an order can be found. An order in doubt and not found is made a second time. Before the payment all other
  orders with our reference are deleted; a double with which the shop has begun is left to an operator;
- whether a paid order refuses a second payment. The order's payments are looked up before a payment is repeated, and
  payments at the till count, too;
- whether a print event exists after a lost reply. Each event prints the order once more, and a kitchen would cook
  twice: the event is sent once, and then the lines' ``printed`` is waited for. If nothing is ever printed, an
  operator decides;
- how long a ticket takes. Clover discards a printed event, keeps a FAILED event, and says nothing of an offline
  device: the order is pending until all lines are printed.
"""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.adapted import texts
from pos_gateway.adapters.clover_api import (
    LIMITS,
    asking,
    encoded,
    harmless,
    has_failed,
    listed,
    order_url,
    posting,
    refused,
    url,
    words,
)
from pos_gateway.adapters.clover_location import closed
from pos_gateway.adapters.clover_order import (
    READS,
    Cart,
    is_ours,
    paid_words,
    payment_reference,
    was_ours,
)
from pos_gateway.adapters.clover_search import find, referenced
from pos_gateway.adapters.clover_state import (
    amount_paid,
    is_on_paper,
    is_open,
    is_printed,
    payments,
    standing,
)
from pos_gateway.adapters.clover_undo import delete_doubles, for_operator
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.replies import after_refusal, in_doubt, json_object
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply, Send

#: Longest note of a payment.
_PAYMENT_NOTE = 255
#: The key of the tender for money taken elsewhere.
_EXTERNAL = "com.clover.tender.external_payment"
_NO_TENDER = Reason(
    "no_tender",
    "the merchant has no tender external_payment that is enabled: enable it at Clover, or give pos.tender",
)
_NOT_PRINTED = Reason("not_printed", "Clover has the order, and its ticket is not out yet")
_HALF_PRINTED = "a part of it is on paper, and the rest is not: print the rest at Clover"
_NOT_PAID = "the order has a payment at Clover, of less than its total"
_NOT_SHOWN = "the order is locked at Clover as if paid, and no payment is shown"


def create(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome:
    """Preview the cart, then make the order if Clover's total is ours."""
    cart = _cart(order, merchant)
    if isinstance(cart, Outcome):
        return cart
    refusal = _previewed(cart, order, merchant, send) or closed(order, merchant, send)
    if refusal is None and order.total:
        tender = _tender(merchant, send)
        refusal = tender if isinstance(tender, Outcome) else None
    if refusal is not None:
        return refusal
    reply = send(posting(url(merchant, "atomic_order/orders"), cart))
    if reply.status == 200:
        made = _made(reply, order)
        return _agreed(made, order) if isinstance(made, dict) else made
    if reply.status == 409:
        known = after_refusal(lambda: created(order, merchant, {}, send))
        return known or in_doubt("a 409, but no such order can be found")
    return refused(reply)


def created(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """The order at Clover, as ``create`` returns the order; None: Clover does not know the order."""
    found = find(order, merchant, facts, send)
    return _agreed(found, order) if isinstance(found, dict) else found


def pay(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Delete doubles of the order, then record a payment of the total; an order of 0 has no payment."""
    known_as, total = facts["order"], facts["total"]
    settled = _single(order, merchant, facts, send)
    if settled is not None or not total:
        return settled or Outcome(Kind.ACCEPTED, external_id=str(known_as))
    tender = _tender(merchant, send)
    if isinstance(tender, Outcome):
        return tender
    mark = payment_reference(order, known_as)
    content: dict[str, Any] = {"tender": {"id": tender}, "amount": total, "externalPaymentId": mark}
    if order.tip:
        content["tipAmount"] = order.tip
    if said := lines.shortened(" ".join(texts(paid_words(order))), _PAYMENT_NOTE):
        content["note"] = said
    path = f"{order_url(known_as, merchant)}/payments"
    reply = send(posting(path, encoded(content)))
    if reply.status == 200:
        return _paid_with(json_object(reply) or {}, order, facts)
    if reply.status not in (400, 404):
        return refused(reply)
    known = after_refusal(lambda: paid(order, merchant, facts, send))
    why = f"Clover takes no payment of the order: {words(reply)}"
    is_refused = reply.status == 400
    return known or (rejected(Rejection.PAYMENT_REQUIRED, why) if is_refused else refused(reply))


def paid(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """The paid order at Clover, as ``pay`` returns the order; None: the order is not paid."""
    found = find(order, merchant, facts, send, "payments")
    return _settled(found, order, facts) if isinstance(found, dict) else found


def ask_to_print(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Send a print event: the default device's order printer prints the order, unless staff have.

    PENDING until the order is on paper.
    """
    known = _begun_to_print(order, merchant, facts, send)
    if known is not None:
        return known
    content = encoded({"orderRef": {"id": facts["order"]}})
    reply = send(posting(url(merchant, "print_event"), content))
    if reply.status in (400, 404):
        found = find(order, merchant, facts, harmless(send))
        known = standing(found) if isinstance(found, dict) else refused(reply)
        return known if known.kind is Kind.CANCELLED else refused(reply)  # deleted by the shop
    if reply.status != 200:
        return refused(reply)
    event = identifier((json_object(reply) or {}).get("id"))
    if event is None:
        return in_doubt("a 200 without a print event")
    return _asked(order, merchant, {**facts, "print_event": event}, send)


def _asked(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """The outcome after a print event, with the event's id: as ``printed``; in doubt without an answer."""
    try:
        known = printed(order, merchant, facts, send)
    except TransportError as error:  # Clover has the event
        known = Outcome(Kind.IN_DOUBT, Reason.of(error.code, error))
    if known is None or known.kind is Kind.RETRY:
        known = in_doubt("the ticket is asked for, and could not be looked at")
    return replace(known, facts={"print_event": facts["print_event"]})


def printed(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """ACCEPTED once the order is on paper, PENDING until then; REJECTED with facts: the printer has failed.

    None: Clover does not know the order.
    """
    found = find(order, merchant, facts, send, "lineItems")
    if not isinstance(found, dict):
        return found
    known = standing(found)
    if known.kind is not Kind.ACCEPTED or is_printed(found):
        return known
    if "print_event" in facts:
        failed = has_failed(facts["print_event"], merchant, send)
        if isinstance(failed, Outcome):
            return failed
        if failed:
            event = facts["print_event"]
            refusal = rejected(Rejection.OTHER, f"{event} has failed at the printer")
            return replace(refusal, facts={"print_event": event})
    return Outcome(Kind.PENDING, _NOT_PRINTED, known.external_id)


def _cart(order: Order, merchant: Merchant) -> bytes | Outcome:
    """The body of a preview and of a creation, or our own rejection."""
    if (refusal := lines.refusal(order, READS)) is not None:
        return refusal
    try:
        cart = Cart(order, merchant)
    except Refused as error:
        return error.outcome
    return lines.oversize(cart.size, LIMITS) or cart.encoded()


def _previewed(cart: bytes, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """Why an order cannot be made at our total; None: Clover's total is ours. Makes nothing."""
    preview = posting(url(merchant, "atomic_order/checkouts"), cart, is_search=True)
    reply = harmless(send)(preview)
    if reply.status != 200:
        return _nothing_done(refused(reply))
    total = (json_object(reply) or {}).get("total")
    if type(total) is not int:
        return Outcome(Kind.RETRY, Reason.of("invalid_reply", "a preview without its total"))
    reason = lines.mispriced(order, total)
    return None if reason is None else Outcome(Kind.REJECTED, reason)


def _tender(merchant: Merchant, send: Send) -> str | Outcome:
    """The id of the tender for money taken elsewhere."""
    if "tender" in merchant.pos:
        return merchant.pos["tender"]
    reply = harmless(send)(asking(url(merchant, "tenders?limit=1000")))
    if reply.status != 200:
        return _nothing_done(refused(reply))
    for each in listed({"tenders": json_object(reply)}, "tenders"):
        known_as = identifier(each.get("id"))
        if each.get("labelKey") == _EXTERNAL and each.get("enabled") is not False and known_as:
            return known_as
    return Outcome(Kind.FAILED, _NO_TENDER)


def _nothing_done(outcome: Outcome) -> Outcome:
    """The outcome of a failed request for reading: no doubt is left."""
    is_in_doubt = outcome.kind is Kind.IN_DOUBT
    return replace(outcome, kind=Kind.RETRY) if is_in_doubt else outcome


def _made(reply: Reply, order: Order) -> dict[str, Any] | Outcome:
    found = json_object(reply)
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("note") is not None and not (is_ours(found, order) or was_ours(found, order)):
        return in_doubt("the reply is about another order")
    return found


def _agreed(found: dict[str, Any], order: Order) -> Outcome:
    """The outcome of an order at Clover: REJECTED with facts at another total than the agreed total.

    Clover adds the merchant's taxes. An accepted order had our total then: the shop may have changed the
    order since.
    """
    known, total, currency = standing(found), found.get("total"), found.get("currency")
    facts: Facts = {"order": known.external_id or "", "total": order.total}
    if known.kind is not Kind.ACCEPTED:
        return known
    if order.external_id is not None:
        return replace(known, facts=facts)
    if type(total) is not int or not isinstance(currency, str | None):
        return in_doubt("an order without its total")
    reason = lines.mispriced(order, total, currency)
    if reason is None:
        return replace(known, facts=facts)
    return replace(known, kind=Kind.REJECTED, reason=reason, facts={**facts, "total": total})


def _single(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """Delete all doubles of the order. None: the order is single, and has no payment."""
    every = referenced(order, merchant, harmless(send), expand="payments,lineItems")
    if isinstance(every, Outcome):
        return _nothing_done(every)
    ours = [each for each in every if each.get("id") == facts["order"]]
    left = delete_doubles(every, facts["order"], merchant, send)
    return left or (_settled(ours[0], order, facts) if ours else None)


def _begun_to_print(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """The outcome of an order that staff have printed or deleted; None: nothing is on paper."""
    found = find(order, merchant, facts, harmless(send), "lineItems")
    if not isinstance(found, dict):
        return found and _nothing_done(found)
    known = standing(found)
    if known.kind is not Kind.ACCEPTED or is_printed(found):
        return _nothing_done(known)
    return for_operator(_HALF_PRINTED) if is_on_paper(found) else None


def _settled(found: dict[str, Any], order: Order, facts: Facts) -> Outcome | None:
    """The outcome of an order with a payment, ours or the shop's; None: it is open and has none."""
    known = standing(found)
    if known.kind is not Kind.ACCEPTED:
        return known
    every, mark = payments(found), payment_reference(order, facts["order"])
    if not every and facts["total"]:
        return None if is_open(found) else in_doubt(_NOT_SHOWN)
    if not every:
        return known
    if amount_paid(found) < int(facts["total"]):
        return for_operator(_NOT_PAID)
    ours = [each for each in every if each.get("externalPaymentId") == mark]
    payment = identifier((ours or every)[0].get("id"))
    if payment is None:
        return in_doubt("a payment without an id")
    return replace(known, facts={"payment": payment})


def _paid_with(payment: dict[str, Any], order: Order, facts: Facts) -> Outcome:
    """ACCEPTED: the payment is ours, and of the agreed amount."""
    known_as, amount = identifier(payment.get("id")), payment.get("amount")
    mark = payment_reference(order, facts["order"])
    is_its = payment.get("externalPaymentId") == mark and amount == facts["total"]
    if known_as is None or not is_its or payment.get("result", "SUCCESS") != "SUCCESS":
        return in_doubt(f"a payment of {amount} with the id {known_as}")
    return Outcome(Kind.ACCEPTED, external_id=str(facts["order"]), facts={"payment": known_as})
