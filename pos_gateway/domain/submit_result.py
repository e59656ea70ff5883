"""The result of submitting one order of several."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pos_gateway.domain.errors import InvalidOrder, PosGatewayError
from pos_gateway.domain.order import Order

#: The state of an order that the broker has stored, until a worker has it.
SUBMITTED = "submitted"


@dataclass(frozen=True, slots=True)
class SubmitResult:
    """One order's result in ``submit_many``."""

    #: As the order has it; empty if it has none.
    order_id: str
    #: Its state, if it is taken, or has ended.
    state: str | None
    #: Why it is not taken; ``BrokerUnavailable`` means: submit it again.
    error: PosGatewayError | None = None


def parsed_or_refused(order: Order | Mapping[str, Any]) -> Order | SubmitResult:
    """The order, or the result that says why it is invalid."""
    try:
        return Order.parse(order)
    except InvalidOrder as error:
        found = order.get("order_id") if isinstance(order, Mapping) else None
        return SubmitResult(found if isinstance(found, str) else "", None, error)
