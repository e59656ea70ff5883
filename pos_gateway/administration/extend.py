"""Extends an open order's ``deliver_by``."""

from datetime import datetime

from pos_gateway.domain.errors import AdminError, InvalidOrder
from pos_gateway.domain.order import Order
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Entry, State
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock, shown
from pos_gateway.runtime.vault import CannotOpen

#: Why an order gets no new time while it is undone.
BEING_UNDONE = (
    "it is being undone at its POS, and cannot be given new time: it ends once nothing of it is left "
    "there. Have the backend submit it again, with another order_id"
)


class Extension:
    """Writes the new deadline. Nothing is published: the worker that gets the order's message with
    the old one, at the latest when that is over, republishes it with the new one.
    """

    def __init__(
        self,
        ledger: OrderAdmin,
        operator: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        reason: str | None = None,
    ) -> None:
        self._ledger = ledger
        self._operator = operator
        self._reason = reason
        self._clock = clock

    def extend(self, order: OrderStanding, until: datetime) -> str:
        """Give it time until then; what was done, as a sentence's end.

        Raises:
            AdminError: it is not open, or the time is no later one.
            OrderChanged: it changed since it was read; nothing is written.
        """
        require_extendable(order)
        now = self._clock.now()
        if until <= now:
            raise AdminError(f"deliver_by: {until.isoformat()} is not in the future")
        if order.deliver_by is not None and until.timestamp() <= order.deliver_by:
            raise AdminError(
                f"deliver_by: the order has time until {shown(order.deliver_by)} already; "
                "a later moment extends it"
            )
        extended = self._order(order, until)
        entry = Entry(
            order.state,
            now.timestamp(),
            order.attempts,
            order.doubt_since,
            order.pending,
            external_id=order.external_id,
            keeps_reason=True,
        )
        self._ledger.change(
            order,
            entry,
            operator=self._operator,
            what="orders.extend",
            details=f"deliver_by {until.isoformat()}",
            order_json=extended.source,
            deliver_by=until.timestamp(),
            reason=self._reason,
        )
        return f"has time until {shown(until.timestamp())}"

    def _order(self, order: OrderStanding, until: datetime) -> Order:
        try:
            order_json = self._ledger.order_json(order.key)
        except CannotOpen as error:
            raise AdminError(f"the order itself, which has its deliver_by, is {error}") from None
        if order_json is None:
            raise AdminError("the order itself is not kept: only a cancel request for it came")
        try:
            return Order.parse_json(order_json).until(until)
        except InvalidOrder:
            raise AdminError(
                f"deliver_by: {until.isoformat()} is not after the order's placed_at"
            ) from None


def require_extendable(order: OrderStanding) -> None:
    """Raises AdminError, which says why, and what can be done."""
    if order.state in (State.FAILED, State.EXPIRED):
        raise AdminError(f"it is {order.state.value}: replay it, with new time")
    if order.state.is_final:
        raise AdminError(f"it is {order.state.value}, and needs no time")
    if order.is_leased:
        raise AdminError(
            f"a worker ({order.owner}) has it at this moment, so it cannot be given new time; try again"
        )
    if order.is_being_undone:
        raise AdminError(BEING_UNDONE)
    if order.is_in_doubt:
        raise AdminError(
            "it is in doubt, and cannot be given new time: the POS may have it. Ask the merchant, and "
            "resolve it; with new time, if it was not sent"
        )
    if order.cancellation is not None:
        raise AdminError("it has a cancel request, which new time would only delay")
