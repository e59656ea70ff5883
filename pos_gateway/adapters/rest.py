"""The reference POS API, as ``docs/wire-format.md`` and DESIGN describe it.

``POST {base_url}/orders`` with ``Idempotency-Key: <order_id>``; ``GET {base_url}/orders/{id}``.
"""

from typing import Any
from urllib.parse import quote

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.replies import by_status, json_object, retry_after
from pos_gateway.merchant import Merchant
from pos_gateway.order import Order
from pos_gateway.outcome import Kind, Outcome, Reason
from pos_gateway.transport.exchange import Reply, Request, Send

_DECIDED = {"accepted": Kind.ACCEPTED, "rejected": Kind.REJECTED, "cancelled": Kind.CANCELLED}


class RestAdapter:
    """Speaks the reference POS API, which honours the idempotency key."""

    name = "rest"
    guarantee = Guarantee.KEYED

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        reply = send(
            Request(
                "POST",
                f"{merchant.base_url}/orders",
                order.to_json(),
                {"Content-Type": "application/json", "Idempotency-Key": order.order_id},
            )
        )
        if reply.status in (200, 201, 202):
            return _decision(reply, order)
        if reply.status == 409:
            # "There is such an order already": whether it is this one, only asking tells.
            known = self.look_up(order, merchant, send)
            return known or Outcome(Kind.REJECTED, _error(reply, "conflict"))
        if reply.status in (400, 422):
            return Outcome(Kind.REJECTED, _error(reply, "rejected"))
        return by_status(reply)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        url = f"{merchant.base_url}/orders/{quote(order.order_id, safe='')}"
        reply = send(Request("GET", url))
        if reply.status == 404:
            return None
        if reply.status == 200:
            return _decision(reply, order)
        return Outcome(
            Kind.IN_DOUBT,
            Reason.of(
                f"http_{reply.status}", f"asked for the order, the POS answered {reply.status}"
            ),
            retry_after=retry_after(reply),
            contact=by_status(reply).contact,
        )


def _decision(reply: Reply, order: Order) -> Outcome:
    record = json_object(reply)
    if record is None:
        return _in_doubt(f"a {reply.status} whose body is not a JSON object")
    status = record.get("status")
    if reply.status == 202 or status == "pending":
        return Outcome(Kind.PENDING, external_id=_external_id(record))
    if record.get("order_id", order.order_id) != order.order_id:
        return _in_doubt("the reply is about another order")
    if status not in _DECIDED:
        return _in_doubt(f"a {reply.status} with the status {status!r}")
    kind = _DECIDED[status]
    reason = _error(reply, "rejected") if kind is Kind.REJECTED else None
    return Outcome(kind, reason, external_id=_external_id(record))


def _external_id(record: dict[str, Any]) -> str | None:
    value = record.get("id")
    return value[:256] if isinstance(value, str) else None


def _error(reply: Reply, otherwise: str) -> Reason:
    error = (json_object(reply) or {}).get("error")
    if isinstance(error, dict):
        return Reason.of(str(error.get("code") or otherwise), error.get("message") or "")
    return Reason.of(otherwise, f"the POS answered {reply.status}")


def _in_doubt(message: str) -> Outcome:
    return Outcome(Kind.IN_DOUBT, Reason.of("invalid_reply", message))
