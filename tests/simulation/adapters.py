"""Adapters: for POSes without idempotency keys, with a look-up and without, and for POSes with steps."""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters.protocol import Adapter, Guarantee, Limits
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.steps import Step
from pos_gateway.domain.facts import Facts
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.transport.exchange import Request, Send
from testkit.steps.adapters import (
    PaidAdapter,
    PrintedAdapter,
    cancel,
    create,
    find,
    paid,
    pay,
    refund,
)
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


def _create_without_key(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    return create(order, merchant, facts, Send(lambda asked: send(replace(asked, headers={}))))


def _pay_with_key(order: Order, merchant: Merchant, facts: Facts, send: Send) -> Outcome:
    key = {"Idempotency-Key": f"pay {order.order_id}"}
    return pay(order, merchant, facts, Send(lambda asked: send(asked.adding(key))))


class Billed(PaidAdapter):
    """Create, queryable; pay, keyed; a refund goes before a cancel."""

    name = "billed"
    limits = Limits(longest_reply=LONGEST)
    steps = (
        Step("create", Guarantee.QUERYABLE, _create_without_key, find, cancel),
        Step("pay", Guarantee.KEYED, _pay_with_key, paid, refund),
    )


_ALL = (RestAdapter(), Queryable(), Blind(), PaidAdapter(), PrintedAdapter(), Billed())
ADAPTERS: dict[str, Adapter] = {each.name: each for each in _ALL}
