"""The reference POS API, as in ``docs/adapters.md``.

``POST {base_url}/orders`` with ``Idempotency-Key: <order_id>``; ``GET {base_url}/orders/{id}``;
``POST {base_url}/orders/{id}/cancel``. Its error codes are passed on unchanged. Its callbacks are
Standard Webhooks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, ValidationError
from pydantic_core import from_json

from pos_gateway.adapters.pos_fields import problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    by_status,
    in_doubt,
    is_absent,
    json_object,
    merchant_gone,
    no_answer,
)
from pos_gateway.adapters.signatures import is_standard_key, keys_of, standard_webhook
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError, InvalidCallback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order, Time
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome, Reason
from pos_gateway.domain.record import WHOLE, Identifier, Record, field_errors
from pos_gateway.transport.exchange import Reply, Request, Send

_DECIDED = {"accepted": Kind.ACCEPTED, "rejected": Kind.REJECTED, "cancelled": Kind.CANCELLED}
#: What a callback's type means.
_MEANINGS: dict[str, Kind | Lifecycle] = {
    **{f"order.{name}": kind for name, kind in _DECIDED.items()},
    "order.preparing": Lifecycle.PREPARING,
    "order.ready": Lifecycle.READY,
    "order.completed": Lifecycle.COMPLETED,
}


class _Why(Record):
    """Why: a code for programs and a sentence for people."""

    code: Annotated[str, Field(min_length=1)]
    message: str = ""


class _Message(Record):
    """A callback's body. An unknown field is ignored: a POS may say more."""

    type: str
    order_id: Identifier
    external_id: Identifier | None = None
    reason: _Why | None = None
    occurred_at: Time


class RestAdapter:
    """Speaks the reference POS API, which honours the idempotency key."""

    name = "rest"
    guarantee = Guarantee.KEYED
    limits = Limits()

    def check(self, merchant: Merchant) -> list[FieldError]:
        found = problems(merchant, {}, self.limits)
        if not all(map(is_standard_key, keys_of(merchant))):
            problem = "must be a key of Standard Webhooks: whsec_ and Base64"
            found.append(FieldError("auth.webhook_signature_key", problem))
        return found

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
            # The POS has an order with this id: only a look-up shows whether it is this one.
            known = after_refusal(lambda: self.look_up(order, merchant, send))
            return known or Outcome(Kind.REJECTED, _error(reply, "conflict"), not_found=True)
        if reply.status in (400, 422):
            return Outcome(Kind.REJECTED, _error(reply, "rejected"))
        return merchant_gone(reply) if reply.status == 410 else by_status(reply)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        reply = send(Request("POST", f"{_url(order, merchant)}/cancel"))
        if reply.status == 200:
            after = _decision(reply, order)
            if after.kind in (Kind.ACCEPTED, Kind.PENDING):
                return in_doubt("a 200, but the order is not cancelled")
            is_not_made = after.kind is Kind.REJECTED
            return replace(after, kind=Kind.CANCELLED, reason=None) if is_not_made else after
        if is_absent(reply):
            return rejected(Rejection.UNKNOWN_ORDER, "the POS does not know the order")
        if reply.status in (400, 409, 422):
            return Outcome(Kind.REJECTED, _error(reply, "rejected"))
        return no_answer(reply) if reply.status == 404 else by_status(reply)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        reply = send(Request("GET", _url(order, merchant)))
        if is_absent(reply):
            return None
        return _decision(reply, order) if reply.status == 200 else no_answer(reply)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        event_id = standard_webhook(request, merchant)
        if event_id is None:
            return None
        try:
            said = _Message.model_validate(from_json(request.body, allow_inf_nan=False))
        except ValidationError as error:
            raise InvalidCallback(field_errors(error)) from None
        except ValueError as error:
            raise InvalidCallback([FieldError(WHOLE, f"is not JSON: {error}")]) from None
        meaning = _MEANINGS.get(said.type)
        if meaning is None:  # a later version of the API may have more
            return []
        return [
            Callback(
                event_id,
                meaning,
                said.order_id,
                said.external_id,
                said.occurred_at.timestamp(),
                None if (why := said.reason) is None else Reason.of(why.code, why.message),
            )
        ]


def _url(order: Order, merchant: Merchant) -> str:
    return f"{merchant.base_url}/orders/{quote(order.order_id, safe='')}"


def _decision(reply: Reply, order: Order) -> Outcome:
    record = json_object(reply)
    if record is None:
        return in_doubt(f"a {reply.status} whose body is not a JSON object")
    status = record.get("status")
    if record.get("order_id", order.order_id) != order.order_id:
        return in_doubt("the reply is about another order")
    if reply.status == 202 or status == "pending":
        return Outcome(Kind.PENDING, external_id=_external_id(record))
    if not isinstance(status, str) or status not in _DECIDED:
        return in_doubt(f"a {reply.status} without one of the statuses that are known")
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
