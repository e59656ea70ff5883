"""An adapter around a vendor's SDK that is built on requests.

``Shop`` stands for the SDK: it knows nothing of the gateway. It speaks the reference API of
``docs/adapters.md``, so that the adapter is tested like the gateway's own ones.
"""

from typing import Any
from urllib.parse import quote

import requests

from pos_gateway.adapters.pos_fields import problems
from pos_gateway.adapters.protocol import Guarantee, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import (
    after_refusal,
    by_status,
    decision,
    in_doubt,
    is_absent,
    json_object,
    no_answer,
)
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.transport.exchange import Reply, Send
from pos_gateway.transport.session import reply_of

STATES = {
    "accepted": Kind.ACCEPTED,
    "pending": Kind.PENDING,
    "rejected": Kind.REJECTED,
    "cancelled": Kind.CANCELLED,
}


class Shop:
    """The SDK: a session, a time limit of its own, and an exception for every refusal."""

    def __init__(self, url: str, session: requests.Session) -> None:
        self._url, self._session = url, session
        retries: Any = requests.adapters.HTTPAdapter(max_retries=3)
        session.mount("https://", retries)  # without effect: an order would be created twice

    def create(self, key: str, order: bytes) -> requests.Response:
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        return self._called("POST", "", data=order, headers=headers)

    def fetch(self, key: str) -> requests.Response:
        return self._called("GET", f"/{quote(key, safe='')}")

    def cancel(self, key: str) -> requests.Response:
        return self._called("POST", f"/{quote(key, safe='')}/cancel")

    def _called(self, method: str, path: str, **what: Any) -> requests.Response:
        reply = self._session.request(method, f"{self._url}/orders{path}", timeout=5, **what)
        reply.raise_for_status()
        return reply


class ShopAdapter:
    """Turns the SDK's answers and exceptions into outcomes."""

    name = "shop"
    guarantee = Guarantee.KEYED
    limits = Limits()

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, {}, self.limits)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        reply = _called(merchant, send, lambda shop: shop.create(order.order_id, order.to_json()))
        if reply.status in (200, 201, 202):
            return _decision(reply, order)
        if reply.status == 409:
            known = after_refusal(lambda: self.look_up(order, merchant, send))
            return known or Outcome(Kind.REJECTED, _why(reply), not_found=True)
        return (
            Outcome(Kind.REJECTED, _why(reply)) if reply.status in (400, 422) else by_status(reply)
        )

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        reply = _called(merchant, send, lambda shop: shop.fetch(order.order_id))
        if is_absent(reply):
            return None
        return _decision(reply, order) if reply.status == 200 else no_answer(reply)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        reply = _called(merchant, send, lambda shop: shop.cancel(order.order_id))
        if reply.status == 200:
            return _decision(reply, order)
        if is_absent(reply):
            return rejected(Rejection.UNKNOWN_ORDER, "the POS does not know the order")
        if reply.status in (400, 409, 422):
            return Outcome(Kind.REJECTED, _why(reply))
        return no_answer(reply) if reply.status == 404 else by_status(reply)


def _called(merchant: Merchant, send: Send, do: Any) -> Reply:
    """What the SDK has from the POS, or why it refused. Lets TransportError pass."""
    with send.session() as session:
        try:
            return reply_of(do(Shop(merchant.base_url, session)))
        except requests.HTTPError as refusal:  # a reply, which no failed exchange has
            return reply_of(refusal.response)


def _decision(reply: Reply, order: Order) -> Outcome:
    found = json_object(reply) or {}
    if found.get("order_id", order.order_id) != order.order_id:
        return in_doubt("the reply is about another order")
    state = "pending" if reply.status == 202 else found.get("status")
    return decision(STATES, state, found.get("id"))


def _why(reply: Reply) -> Reason:
    error = (json_object(reply) or {}).get("error")
    said = error if isinstance(error, dict) else {}
    return Reason.of(str(said.get("code") or "rejected"), said.get("message") or "")
