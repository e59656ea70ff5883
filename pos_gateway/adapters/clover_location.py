"""A merchant at Clover: currency and hours.

Sources, on docs.clover.com: the reference of merchants (properties: ``defaultCurrency``, ``timezone``) and of
opening hours (a list for each day, of ``start`` and ``end`` as 830 and 2400). Both need MERCHANT_R, and a
missing permission is a 401, as a refused token is.
"""

from typing import Any

from pos_gateway.adapters.clover_api import listed, url
from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.location import SECONDS, LocationState, ad_hoc, asked
from pos_gateway.adapters.replies import json_object, replied_at
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Request, Send


def location(merchant: Merchant, send: Send) -> list[str]:
    """The merchant in words. Raises LocationProblem."""
    properties, hours = (
        asked(Request("GET", url(merchant, path), seconds=SECONDS), send, "pos.merchant_id")
        for path in ("properties", "opening_hours")
    )
    if isinstance(properties, str):
        return [properties]
    found = json_object(properties) or {}
    currency, zone = found.get("defaultCurrency"), found.get("timezone")
    week = None if isinstance(hours, str) else _hours(zone, json_object(hours) or {})
    known = currency if isinstance(currency, str) else None
    words = [*LocationState(known, week, replied_at(properties)).words(), *ad_hoc(merchant)]
    return [*words, hours] if isinstance(hours, str) else words


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
    return Hours.read(zone, week) if sets else None


def _time(number: Any) -> str | None:
    """``HH:MM`` of a time like 830; 2400 is midnight."""
    if not isinstance(number, int):
        return None
    hour, minute = divmod(number % 2400, 100)
    return f"{hour:02}:{minute:02}"
