"""A merchant's location as its POS describes it, and why the location cannot take an order.

A look at a location is optional: an order never fails, nor waits for long, because a look did. ``merchants
check`` says what the looks have found.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from pos_gateway.adapters import lines
from pos_gateway.adapters.hours import Hours, zone_of
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.replies import is_absent, json_object, replied_at
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome, Reason
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply, Request, Send

#: Seconds for a look.
SECONDS = 3.0
#: A merchant's setting: neglected hours would reject every order.
CLOSED_AS = PosField(
    "REJECTED or SENT: what becomes of an order for a time when the location is closed",
    "REJECTED|SENT",
    required=False,
    names_pos=False,
)


@dataclass(frozen=True, slots=True)
class LocationState:
    """A POS's words about a location. None: unknown."""

    currency: str | None = None
    hours: Hours | None = None
    #: The time by the POS's clock.
    now: datetime | None = None

    @classmethod
    def of(cls, reply: Reply | None, currency: Any, hours: Hours | None) -> "LocationState":
        """The state by the values in a reply; a currency of a different form is unknown."""
        is_code = isinstance(currency, str) and len(currency) == len("USD")
        return cls(currency if is_code else None, hours, replied_at(reply) if reply else None)

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

    def words(self) -> Iterator[str]:
        """The state now, for an operator."""
        yield f"its currency is {self.currency or 'unknown'}"
        if self.hours is None or self.now is None:
            yield "its hours are unknown"
        else:
            open_ = "open" if self.hours.are_open(self.now) else "closed"
            yield f"{open_} at {self.hours.local(self.now):%a %H:%M} ({self.hours.zone})"


def closed(order: Order, merchant: Merchant, looked: Callable[[], LocationState]) -> Outcome | None:
    """The rejection of an order for a closed location; None: no reason is known, or no look is wanted."""
    if merchant.pos.get("closed_as") != "REJECTED":
        return None
    reason = looked().refusal(order)
    return None if reason is None else Outcome(Kind.REJECTED, reason)


def advice(merchant: Merchant, zone: Any) -> Iterator[str]:
    """What an operator should know of a merchant's items, and of times in notes; ``zone`` is the POS's time zone."""
    if not merchant.catalog:
        yield "no catalog: a kitchen's printers may not route its items"
    is_noted = "scheduled_as" in merchant.pos or merchant.pos.get("dine_in_as") == "IN_STORE"
    ours, theirs = zone_of(merchant.pos.get("time_zone")), zone_of(zone)
    if is_noted and "time_zone" not in merchant.pos:
        yield "no pos.time_zone: times in notes have the backend's offset, UTC's say"
    # A zone has several names, as US/Eastern.
    elif ours and theirs and any(_at(ours, each) != _at(theirs, each) for each in (1, 7)):
        yield f"pos.time_zone is {ours}, and the POS's is {theirs}: which one is right?"


def _at(zone: ZoneInfo, month: int) -> datetime:
    return datetime(2026, month, 1, tzinfo=zone)


class LocationProblem(Exception):
    """Every order of a merchant's would fail, by the POS's own words. ``advice`` is the remedy."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


def asked(request: Request, send: Send, named: str) -> Reply | str:
    """The POS's 200 to a look, or why there is none, in words.

    Args:
        request: the look.
        send: to the POS.
        named: the fields of the merchant's record that name the location.

    Raises:
        LocationProblem: the POS refuses the credentials, or does not know the location.
    """
    path = urlsplit(request.url).path
    try:
        reply = send(request)
    except TransportError as error:
        return f"{path} was not looked at: {error}"
    if reply.status == 401:
        problem = f"{path}: the POS answered 401: it refuses the merchant's credentials"
        raise LocationProblem(problem, "is the credential right, and may it read the merchant?")
    if is_absent(reply):
        raise LocationProblem(f"{path}: the POS answered 404", f"is {named} right?")
    missing = " (is a scope missing?)" if reply.status == 403 else ""
    said = f"{path} was not looked at: the POS answered {reply.status}{missing}"
    return reply if reply.status == 200 else said


def found_in(reply: Reply | None) -> dict[str, Any]:
    """The object in a reply; empty: nothing is known."""
    return (json_object(reply) if reply else None) or {}


def look(request: Request, send: Send) -> Reply | None:
    """The reply to a look; None without a 200."""
    try:
        reply = send(request)
    except TransportError:  # whatever stops a call stops the next request, too
        return None
    return reply if reply.status == 200 else None
