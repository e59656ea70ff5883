"""A merchant's location as its POS describes it, and why the location cannot take an order.

A look at a location is optional: an order never fails, nor waits for long, because a look did.
"""

from dataclasses import dataclass
from datetime import datetime

from pos_gateway.adapters import lines
from pos_gateway.adapters.hours import Hours
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Reason
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply, Request, Send

#: Seconds for a look.
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class LocationState:
    """A POS's words about a location. None: unknown."""

    currency: str | None = None
    hours: Hours | None = None
    #: The time by the POS's clock.
    now: datetime | None = None

    def refusal(self, order: Order) -> Reason | None:
        """Why the location cannot be paid for the order, or is closed when the order is due; None: no reason is known."""
        if self.currency is not None and self.currency.upper() != order.currency:
            return lines.mispriced(order, order.total, self.currency)
        when = order.scheduled_for or self.now
        if self.hours is None or when is None or self.hours.are_open(when):
            return None
        local = self.hours.local(when)
        problem = f"the location is closed on {local:%A %Y-%m-%d at %H:%M} ({self.hours.zone})"
        return Reason.of(Rejection.STORE_CLOSED, problem)


def look(request: Request, send: Send) -> Reply | None:
    """The reply to a look; None without a 200."""
    try:
        reply = send(request)
    except TransportError:  # whatever stops a call stops the next request, too
        return None
    return reply if reply.status == 200 else None
