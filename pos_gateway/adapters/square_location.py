"""A seller's location at Square, and the scopes that the seller has granted.

Sources, on developer.squareup.com: RetrieveTokenStatus, RetrieveLocation (Location, LocationStatus,
BusinessHours: no periods where the seller has set none).
"""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.location import SECONDS, LocationProblem, LocationState, ad_hoc, asked
from pos_gateway.adapters.replies import json_object, replied_at
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.square_api import asking
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Send

#: Scopes of an order's way, undoing included.
_SCOPES = ("ORDERS_READ", "ORDERS_WRITE", "PAYMENTS_READ", "PAYMENTS_WRITE")


def location(merchant: Merchant, send: Send) -> list[str]:
    """The location in words. Raises LocationProblem."""
    named, look = "pos.location_id", replace(asking(merchant.base_url), seconds=SECONDS)
    status = replace(look, method="POST", url=f"{look.url}/oauth2/token/status", is_search=True)
    token = asked(status, send, "base_url")
    granted = None if isinstance(token, str) else (json_object(token) or {}).get("scopes")
    if isinstance(granted, list) and (missing := [each for each in _SCOPES if each not in granted]):
        problem = f"the seller has not granted {', '.join(missing)}"
        raise LocationProblem(
            problem, "have the seller authorize the application with these scopes"
        )
    where = f"{look.url}/v2/locations/{merchant.pos['location_id']}"
    reply = asked(replace(look, url=where), send, named)
    if isinstance(reply, str):
        return [reply]
    found = inside(json_object(reply), "location")
    if found.get("status") == "INACTIVE":
        raise LocationProblem("the location is INACTIVE at Square", f"is {named} right?")
    currency = found.get("currency")
    state = LocationState(
        currency if isinstance(currency, str) else None, _hours(found), replied_at(reply)
    )
    unknown = [] if isinstance(granted, list) else ["its scopes are unknown"]
    return [*state.words(), *unknown, *ad_hoc(merchant)]


def _hours(found: dict[str, Any]) -> Hours | None:
    periods = inside(found, "business_hours").get("periods")
    week: list[list[tuple[Any, Any]]] = [[] for _ in DAYS]
    for each in periods if isinstance(periods, list) else ():
        period = inside({"": each}, "")
        day = str(period.get("day_of_week")).lower()
        for number, name in enumerate(DAYS):
            if name[:3] == day:
                week[number].append((period.get("start_local_time"), period.get("end_local_time")))
    return Hours.read(found.get("timezone"), week) if any(week) else None
