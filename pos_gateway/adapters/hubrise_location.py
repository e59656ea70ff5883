"""A location at HubRise: currency, hours, and whether the shop takes orders now.

Source, on hubrise.com/developers/api: "Locations, Accounts and Users" (``account.currency``, ``timezone.name``, ``opening_hours`` of a
day as ``from`` and ``to``, ``order_acceptance``). HubRise documents no refusal of an order for a closed or paused location.
"""

from typing import Any

from pos_gateway.adapters import location
from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.hubrise_api import location_url
from pos_gateway.adapters.location import SECONDS, LocationState, asked, found_in, look
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.signatures import inside
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome, one_line
from pos_gateway.transport.exchange import Reply, Request, Send


def closed(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The rejection of an order for a closed or paused location; None: no reason is known."""
    if merchant.pos.get("closed_as") != "REJECTED":
        return None
    reply = look(_look(merchant), send)
    paused = _paused(reply)
    if paused and order.scheduled_for is None:
        return rejected(Rejection.STORE_CLOSED, paused)
    return location.closed(order, merchant, lambda: _state(reply))


def described(merchant: Merchant, send: Send) -> list[str]:
    """The location in words. Raises LocationProblem."""
    reply = asked(_look(merchant), send, "pos.location_id")
    if isinstance(reply, str):
        return [reply]
    paused = _paused(reply)
    return [*_state(reply).words(), *([paused] if paused else [])]


def _look(merchant: Merchant) -> Request:
    return Request("GET", location_url(merchant), seconds=SECONDS)


def _paused(reply: Reply | None) -> str:
    """Why the location takes no orders now; empty: HubRise names no reason."""
    now = inside(found_in(reply), "order_acceptance")
    said = f": {one_line(str(now['reason']))}" if now.get("reason") else ""
    return f"the location is paused at HubRise{said}" if now.get("mode") == "paused" else ""


def _state(reply: Reply | None) -> LocationState:
    found = found_in(reply)
    hours = inside(found, "opening_hours")
    days = [hours.get(day) for day in DAYS]
    week = [[_span(each) for each in day] if isinstance(day, list) else [] for day in days]
    zone = inside(found, "timezone").get("name")
    return LocationState.of(reply, inside(found, "account").get("currency"), Hours.read(zone, week))


def _span(given: Any) -> tuple[Any, Any]:
    span = inside(given)
    return span.get("from"), span.get("to")
