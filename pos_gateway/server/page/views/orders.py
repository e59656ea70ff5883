"""Orders: the search. It is a form that needs no script, and its pages can be bookmarked."""

import json
import re
from math import isfinite, nan
from typing import Any

from sqlalchemy import Engine

from pos_gateway.domain.record import identifier
from pos_gateway.ledger.order_search import (
    MAX_IDS,
    Count,
    OrderSearch,
    Place,
    SearchResults,
    Wanted,
)
from pos_gateway.ledger.states import State
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.links import link
from pos_gateway.server.page.view import Get, Nav, Page, View
from pos_gateway.server.page.views.order_life import shown_reason
from pos_gateway.server.page.views.order_words import STATES
from pos_gateway.server.page.visit import Visit
from pos_gateway.server.problems import Problem

#: Orders on a page.
MAX_LISTED = 50
#: What the form offers of ``since``; a link may have another length.
SINCE = {
    "5m": "5 minutes",
    "1h": "an hour",
    "6h": "6 hours",
    "1d": "a day",
    "7d": "7 days",
}
#: In place of a state: of those that would have ended.
_OVERDUE = "overdue"
_LENGTH = re.compile(r"([1-9]\d{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: The form's fields.
_FIELDS = ("order", "merchant", "state", "since")


class OrdersPage(View):
    """The search at ``/orders``."""

    nav = Nav("Orders", "/orders")

    def __init__(self, database: Engine, clock: Clock) -> None:
        self._search = OrderSearch(database)
        self._clock = clock
        self.routes = (
            Get("/orders", self._page),
            Get("/merchants/{merchant_id}/orders", self._page),
        )

    def _page(self, visit: Visit) -> Page:
        now = self._clock.now().timestamp()
        given = {name: visit.query[name].strip() for name in _FIELDS if visit.query.get(name)}
        given = {name: value for name, value in given.items() if value}
        if "merchant_id" in visit.values:
            given["merchant"] = visit.values["merchant_id"]
        found = self._search.find(
            _wanted(given, now), place_of(visit.query.get("after")), MAX_LISTED
        )
        return Page(
            "orders.html",
            "Orders",
            now=now,
            given=given,
            states=STATES,
            choices={**STATES, _OVERDUE: "past its time, not ended"},
            since=SINCE | ({given["since"]: given["since"]} if "since" in given else {}) | SINCE,
            found=found,
            listed=[
                (each, shown_reason(visit.role, each.state, each.reason_code, None))
                for each in found.orders
            ],
            counts=[_counted(each, given) for each in found.counts],
            every=link("/orders", **{k: v for k, v in given.items() if k != "state"}),
            is_later=visit.query.get("after") is not None,
            first=link("/orders", **given),
            more=_more(found, given),
            most_ids=MAX_IDS,
            whole=_whole(given),
        )


def _wanted(given: dict[str, str], now: float) -> Wanted:
    state, since = given.get("state"), given.get("since")
    if state is not None and state not in [*State, _OVERDUE]:
        names = ", ".join(State)
        raise Problem(422, "invalid_request", f"state: {state[:40]!r} is none of {names}")
    changed_since = None
    if since is not None:
        length = _LENGTH.fullmatch(since)
        if length is None:
            problem = f"since: {since[:40]!r} is no length of time; 90s, 30m, 2h or 7d is one"
            raise Problem(422, "invalid_request", problem)
        changed_since = now - int(length[1]) * _UNITS[length[2]]
    return Wanted(
        given.get("order"),
        given.get("merchant"),
        None if state is None or state == _OVERDUE else State(state),
        changed_since,
        overdue=state == _OVERDUE,
    )


def place_of(text: str | None) -> Place | None:
    if text is None:
        return None
    try:
        at, *ids = json.loads(text)
        merchant_id, order_id = map(identifier, ids)
        place = float(at)
    except (ValueError, TypeError, OverflowError, RecursionError):
        place = nan
    if not isfinite(place) or merchant_id is None or order_id is None:
        problem = "after: is no place in a list of orders; begin at its first page"
        raise Problem(422, "invalid_request", problem)
    return Place(place, merchant_id, order_id)


def _more(found: SearchResults, given: dict[str, str]) -> str | None:
    if not found.has_more:
        return None
    return link("/orders", **given, after=json.dumps(found.orders[-1].place))


def _counted(count: Count, given: dict[str, str]) -> dict[str, Any]:
    others = {name: value for name, value in given.items() if name != "state"}
    state = count.state.value
    return {
        "name": STATES[count.state],
        "count": count,
        "address": link("/orders", **others, state=state),
        "is_here": given.get("state") == state,
    }


def _whole(given: dict[str, str]) -> str | None:
    """Where the page of an order is that has come over HTTP, and that no worker has seen yet."""
    order_id, merchant_id = identifier(given.get("order")), identifier(given.get("merchant"))
    if order_id is None or merchant_id is None:
        return None
    return link("/merchants/{}/orders/{}", merchant_id, order_id)
