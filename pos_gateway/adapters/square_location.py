"""A seller's location at Square, and the scopes that the seller has granted.

Sources, on developer.squareup.com: RetrieveTokenStatus, RetrieveLocation (Location, LocationStatus,
BusinessHours: no periods where the seller has set none).
"""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters import location
from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.location import (
    SECONDS,
    LocationProblem,
    LocationState,
    advice,
    asked,
    found_in,
    look,
)
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.square_api import asking
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Reply, Request, Send

#: Scopes of an order's way, undoing included.
_SCOPES = ("ORDERS_READ", "ORDERS_WRITE", "PAYMENTS_READ", "PAYMENTS_WRITE")


def closed(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The rejection of an order for a time when the seller is closed; None: no reason is known."""
    return location.closed(order, merchant, lambda: _state(look(_where(merchant), send)))


def described(merchant: Merchant, send: Send) -> list[str]:
    """The location in words. Raises LocationProblem."""
    named, where = "pos.location_id", _where(merchant)
    path = f"{merchant.base_url}/oauth2/token/status"
    token = asked(replace(where, method="POST", url=path, is_search=True), send, "base_url")
    granted = None if isinstance(token, str) else found_in(token).get("scopes")
    if isinstance(granted, list) and (missing := [each for each in _SCOPES if each not in granted]):
        problem = f"the seller has not granted {', '.join(missing)}"
        raise LocationProblem(
            problem, "have the seller authorize the application with these scopes"
        )
    reply = asked(where, send, named)
    if isinstance(reply, str):
        return [reply]
    found = inside(found_in(reply), "location")
    if found.get("status") == "INACTIVE":
        raise LocationProblem("the location is INACTIVE at Square", f"is {named} right?")
    unknown = [] if isinstance(granted, list) else ["its scopes are unknown"]
    return [*_state(reply).words(), *unknown, *advice(merchant, found.get("timezone"))]


def _where(merchant: Merchant) -> Request:
    url = f"{merchant.base_url}/v2/locations/{merchant.pos['location_id']}"
    return replace(asking(url), seconds=SECONDS)


def _state(reply: Reply | None) -> LocationState:
    found = inside(found_in(reply), "location")
    return LocationState.of(reply, found.get("currency"), _hours(found))


def _hours(found: dict[str, Any]) -> Hours | None:
    periods = inside(found, "business_hours").get("periods")
    week: list[list[tuple[Any, Any]]] = [[] for _ in DAYS]
    for each in periods if isinstance(periods, list) else ():
        period = inside({"": each}, "")
        day = str(period.get("day_of_week")).lower()
        for number, name in enumerate(DAYS):
            if name[:3] == day:
                week[number].append((period.get("start_local_time"), period.get("end_local_time")))
    return Hours.read(found.get("timezone"), week)
