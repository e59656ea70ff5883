"""What Toast's orders API does not check, asked before an order is made: currency, hours, stock.

Sources, on doc.toasttab.com: "Creating orders" (availability and stock are not checked), the restaurants
API's definition (General, Schedules, DaySchedule, WeekSchedule: null is closed), "Getting stock
information using the stock API" (an unlisted item is in stock; a modifier is listed by its item), "Dates and
timestamps". Toast's own clock, the reply's ``Date``, tells the time. The documents leave open whether
restaurants without configured hours have null for each day: their hours are unknown here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.hours import DAYS, Hours
from pos_gateway.adapters.location import (
    SECONDS,
    LocationProblem,
    LocationState,
    asked,
    found_in,
    look,
)
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.replies import json_objects
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.toast_api import headers
from pos_gateway.adapters.toast_order import known_as
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import AnyModifier, Item, Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import BODY_LIMIT, Reply, Request, Send


def not_now(order: Order, merchant: Merchant, send: Send) -> Outcome | None:
    """The refusal of an order that the restaurant cannot make, or be paid for; None: no reason is known."""
    of_restaurant, of_stock = _looks(merchant)
    place = located(look(of_restaurant, send))
    reason = place.refusal(order)
    is_closed = reason is not None and reason.code == Rejection.STORE_CLOSED
    if reason is not None and not (is_closed and merchant.pos.get("closed_as") == "SENT"):
        return Outcome(Kind.REJECTED, reason)
    if _is_another_day(order, place):
        return None
    return _sold_out(order, merchant, stock(look(of_stock, send)))


def described(merchant: Merchant, send: Send) -> list[str]:
    """The restaurant in words. Raises LocationProblem."""
    found, left = (asked(each, send, "pos.restaurant") for each in _looks(merchant))
    words = [found] if isinstance(found, str) else [*located(found).words()]
    if not isinstance(found, str) and inside(found_in(found), "general").get("archived") is True:
        raise LocationProblem("the restaurant is archived", "is pos.restaurant right?")
    if isinstance(left, str):
        return [*words, left]
    return [*words, f"{sum(each <= 0 for each in stock(left).values())} sold out"]


def located(reply: Reply | None) -> LocationState:
    """The restaurant, by the reply to a look."""
    found = found_in(reply)
    general, schedules = inside(found, "general"), inside(found, "schedules")
    hours = _hours(general.get("timeZone"), schedules.get("daySchedules"), schedules)
    return LocationState.of(reply, general.get("currencyCode"), hours)


def stock(reply: Reply | None) -> dict[str, float]:
    """The number left by GUID, of items sold out or counted; empty: none is known."""
    left: dict[str, float] = {}
    for each in (json_objects(reply) if reply else None) or ():
        status, number = each.get("status"), each.get("quantity")
        if status == "OUT_OF_STOCK":
            number = 0
        if isinstance(number, int | float) and status in ("OUT_OF_STOCK", "QUANTITY"):
            left[str(each.get("guid")).lower()] = number
    return left


def _sold_out(order: Order, merchant: Merchant, left: Mapping[str, float]) -> Outcome | None:
    wanted = Counter[str]()
    for each, number in _portions(lines.cooperatively(order), 1) if left else ():
        guid = known_as(each, merchant).rpartition("/")[2].lower()
        wanted[guid] += number
        if wanted[guid] > left.get(guid, wanted[guid]):
            problem = (
                f"{lines.shortened(each.name, 100)!r} ({each.sku}): Toast has {left[guid]:g} left"
            )
            return rejected(Rejection.ITEM_UNAVAILABLE, problem)
    return None


def _portions(
    parts: Iterable[Item | AnyModifier], times: int
) -> Iterator[tuple[Item | AnyModifier, int]]:
    """Each item and modifier, with the number of portions."""
    for each in parts:
        yield each, times * each.quantity
        yield from _portions(each.modifiers or (), times * each.quantity)


def _is_another_day(order: Order, place: LocationState) -> bool:
    """Whether the order is for a different day than the stock."""
    if order.scheduled_for is None or place.hours is None or place.now is None:
        return False
    local = place.hours.local
    return local(order.scheduled_for).date() != local(place.now).date()


def _hours(zone: Any, days: Any, schedules: dict[str, Any]) -> Hours | None:
    """The restaurant's hours; None if they cannot be read."""
    week = schedules.get("weekSchedule")
    if not (isinstance(week, dict) and isinstance(days, dict)) or not week.keys() >= {*DAYS}:
        return None
    named = [[] if week[day] is None else [inside(days, str(week[day]))] for day in DAYS]
    return Hours.read(
        zone, [[(each.get("openTime"), each.get("closeTime")) for each in day] for day in named]
    )


def stock_request(merchant: Merchant) -> Request:
    """Asks for the stock of all items that are sold out or counted."""
    return _look("stock/v1/inventory", merchant)


def _looks(merchant: Merchant) -> list[Request]:
    """The requests for the restaurant, and for the stock."""
    restaurant = f"restaurants/v1/restaurants/{merchant.pos['restaurant']}"
    return [_look(restaurant, merchant), stock_request(merchant)]


def _look(path: str, merchant: Merchant) -> Request:
    url = f"{merchant.base_url}/{path}"
    return Request("GET", url, None, headers(merchant), BODY_LIMIT, seconds=SECONDS)
