"""A merchant at Clover: currency and hours.

Sources, on docs.clover.com: the reference of merchants (properties: ``defaultCurrency``, ``timezone``) and of
opening hours (a list for each day, of ``start`` and ``end`` as 830 and 2400). Both need MERCHANT_R, and a
missing permission is a 401, as a refused token is.
"""

from typing import Any

from pos_gateway.adapters import location
from pos_gateway.adapters.clover_api import listed, url
from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.location import SECONDS, LocationState, advice, asked, found_in, look
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Reply, Request, Send


def closed(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The rejection of an order for a time when the merchant is closed; None: no reason is known."""
    properties, hours = _looks(merchant)
    return location.closed(
        order, merchant, lambda: _state(look(properties, send), look(hours, send))
    )


def described(merchant: Merchant, send: Send) -> list[str]:
    """The merchant in words. Raises LocationProblem."""
    properties, hours = (asked(each, send, "pos.merchant_id") for each in _looks(merchant))
    if isinstance(properties, str):
        return [properties]
    unknown = [hours] if isinstance(hours, str) else []
    state = _state(properties, None if isinstance(hours, str) else hours)
    return [*state.words(), *advice(merchant, found_in(properties).get("timezone")), *unknown]


def _looks(merchant: Merchant) -> list[Request]:
    paths = "properties", "opening_hours"
    return [Request("GET", url(merchant, path), seconds=SECONDS) for path in paths]


def _state(properties: Reply | None, hours: Reply | None) -> LocationState:
    found = found_in(properties)
    week = _hours(found.get("timezone"), found_in(hours))
    return LocationState.of(properties, found.get("defaultCurrency"), week)


def _hours(zone: Any, found: dict[str, Any]) -> Hours | None:
    """All of the merchant's hours together; None if there are none, or one cannot be read."""
    sets = listed({"": found}, "")
    week = [
        [
            (_time(each.get("start")), _time(each.get("end")))
            for hours in sets
            for each in listed(hours, day)
        ]
        for day in DAYS
    ]
    return Hours.read(zone, week)


def _time(number: Any) -> str | None:
    """``HH:MM`` of a time like 830; 2400 is midnight."""
    if not isinstance(number, int):
        return None
    hour, minute = divmod(number % 2400, 100)
    return f"{hour:02}:{minute:02}"
