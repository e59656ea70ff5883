"""Adapters of the POS with steps: ``paid`` with two steps, ``printed`` with three."""

import json
from typing import Any
from urllib.parse import quote

from pos_gateway.adapters.pos_fields import problems
from pos_gateway.adapters.protocol import Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import by_status, in_doubt, is_absent, json_object, no_answer
from pos_gateway.adapters.steps import COVERED, Step
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.transport.exchange import Reply, Request, Send


def create(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome:
    """Create the order under our id as key."""
    body = {"reference": order.order_id, "total": order.total}
    reply = _post(send, f"{merchant.base_url}/orders", body, {"Idempotency-Key": order.order_id})
    return _order(json_object(reply), order) if reply.status in _DONE else _refused(reply)


def find(order: Order, merchant: Merchant, _: Facts, send: Send) -> Outcome | None:
    """Ask for the order by our id: a standing one, if there is any."""
    reference = quote(order.order_id, safe="")
    reply = send(Request("GET", f"{merchant.base_url}/orders?reference={reference}"))
    found = (json_object(reply) or {}).get("orders")
    if reply.status != 200 or not isinstance(found, list):
        return no_answer(reply)
    found.sort(key=lambda each: each["state"] == "cancelled")
    return _order(found[0], order) if found else None


def pay(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Record a payment of the POS's total. The POS has no key for payments."""
    reply = _post(send, f"{_url(merchant, facts)}/payments", {"amount": facts["total"]})
    return _payment(json_object(reply)) if reply.status in _DONE else _refused(reply)


def paid(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome | None:
    """Ask for the order's first payment."""
    reply = send(Request("GET", _url(merchant, facts)))
    if is_absent(reply):
        return None
    if reply.status != 200:
        return no_answer(reply)
    found = (json_object(reply) or {}).get("payments")
    if not isinstance(found, list):
        return in_doubt("an order without a list of payments")
    return _payment(found[0]) if found else None


def print_(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Print the order in the kitchen. The POS says of no order whether it was printed."""
    reply = _post(send, f"{_url(merchant, facts)}/prints", {"payment": facts["payment"]})
    if reply.status not in _DONE:
        return _refused(reply)
    ticket = (json_object(reply) or {}).get("ticket")
    if not isinstance(ticket, str):
        return in_doubt("a print without a ticket")
    kind = Kind.PENDING if reply.status == 202 else Kind.ACCEPTED
    return Outcome(kind, facts={"ticket": ticket})


def cancel(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Cancel an unpaid order. The POS refuses to cancel a paid one."""
    return _undone(_post(send, f"{_url(merchant, facts)}/cancel", {}))


def cancel_and_refund(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Cancel an order, paid or not."""
    return _undone(_post(send, f"{_url(merchant, facts)}/cancel", {"refund": True}))


def refund(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    """Refund the order's payments."""
    return _undone(_post(send, f"{_url(merchant, facts)}/refund", {}))


class PaidAdapter:
    """Create, keyed; pay, queryable. Cancelling an order refunds its payment."""

    name = "paid"
    guarantee = Guarantee.QUERYABLE
    limits = Limits()
    steps: tuple[Step, ...] = (
        Step("create", Guarantee.KEYED, create, find, cancel_and_refund),
        Step("pay", Guarantee.QUERYABLE, pay, paid, COVERED),
    )

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, {}, self.limits)


class PrintedAdapter(PaidAdapter):
    """Create, keyed; pay, queryable; print, blind. A print cannot be undone."""

    name = "printed"
    guarantee = Guarantee.BLIND
    steps = (
        Step("create", Guarantee.KEYED, create, find, cancel),
        Step("pay", Guarantee.QUERYABLE, pay, paid, refund),
        Step("print", Guarantee.BLIND, print_, None),
    )


_DONE = (200, 201, 202)
_STATES = {
    "open": Kind.ACCEPTED,
    "done": Kind.ACCEPTED,
    "pending": Kind.PENDING,
    "cancelled": Kind.CANCELLED,
    "refunded": Kind.CANCELLED,
}


def _url(merchant: Merchant, facts: Facts) -> str:
    return f"{merchant.base_url}/orders/{facts['pos_id']}"


def _post(send: Send, url: str, body: object, headers: dict[str, str] | None = None) -> Reply:
    kind = {"Content-Type": "application/json"}
    return send(Request("POST", url, json.dumps(body).encode(), {**kind, **(headers or {})}))


def _order(found: Any, order: Order) -> Outcome:
    match found:
        case {
            "id": str(known_as),
            "reference": order.order_id,
            "total": int(total),
            "state": state,
        }:
            facts: Facts = {"pos_id": known_as, "total": total}
        case _:
            return in_doubt("a reply without the order")
    if total != order.total and state != "cancelled":
        reason = Reason(Rejection.PRICE_MISMATCH, f"the POS says {total} instead of {order.total}")
        return Outcome(Kind.REJECTED, reason, known_as, facts=facts)
    return Outcome(_STATES[state], external_id=known_as, facts=facts)


def _payment(found: Any) -> Outcome:
    match found:
        case {"id": str(known_as), "state": state}:
            return Outcome(_STATES[state], facts={"payment": known_as})
    return in_doubt("a reply without the payment")


def _undone(reply: Reply) -> Outcome:
    return Outcome(Kind.CANCELLED) if reply.status == 200 else _refused(reply)


def _refused(reply: Reply) -> Outcome:
    error = (json_object(reply) or {}).get("error")
    said = error if isinstance(error, dict) else {}
    if is_absent(reply):
        return rejected(Rejection.UNKNOWN_ORDER, said.get("message") or "not there")
    if reply.status in (400, 409, 422):
        reason = Reason.of(str(said.get("code") or "rejected"), said.get("message") or "refused")
        return Outcome(Kind.REJECTED, reason)
    return by_status(reply)
