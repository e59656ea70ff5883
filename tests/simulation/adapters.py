"""Adapters for POSes without idempotency keys: one with a look-up, and one without."""

from typing import Any

from pos_gateway.adapters.protocol import Adapter, Guarantee, Limits
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.transport.exchange import Request, Send
from tests.simulation.pos import LONGEST


class Queryable(RestAdapter):
    """Creates another order for each repeated create."""

    name = "queryable"
    guarantee = Guarantee.QUERYABLE
    limits = Limits(longest_reply=LONGEST)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        def without_key(request: Request) -> Any:
            return send(Request(request.method, request.url, request.body))

        return super().submit(order, merchant, without_key)


class Blind(Queryable):
    """Has only a create."""

    name = "blind"
    guarantee = Guarantee.BLIND
    limits = Limits()

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        return Outcome(Kind.REJECTED, Reason("unsupported", "this POS cannot be asked to"))

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        raise AssertionError("this POS has no look-up")


ADAPTERS: dict[str, Adapter] = {each.name: each for each in (RestAdapter(), Queryable(), Blind())}
