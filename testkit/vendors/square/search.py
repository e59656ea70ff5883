"""SearchOrders and ListCatalog: filters, order, pages.

*Document*: a time filter needs the same field in ``sort``; 500 orders on a page unless ``limit`` says
less or more; a cursor belongs to a query.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

from testkit.vendors.square.refusals import Refused

Json = dict[str, Any]


def found(orders: Iterable[Json], given: Json) -> Json:
    """The reply of SearchOrders; without ``orders`` if no order is found. Raises Refused."""
    query = given.get("query") or {}
    filters, sort = query.get("filter") or {}, query.get("sort") or {}
    by = sort.get("sort_field", "CREATED_AT").lower()
    times = {name: each for name, each in (filters.get("date_time_filter") or {}).items() if each}
    if times and (set(times) != {by} or "sort_field" not in sort):
        detail = "sort_field must match the field of date_time_filter"
        raise Refused("BAD_REQUEST", detail, "query.sort.sort_field")
    chosen = [each for each in orders if _is_found(each, filters, times)]
    is_down = sort.get("sort_order", "DESC") == "DESC"
    chosen.sort(key=lambda each: str(each.get(by, "")), reverse=is_down)
    return page("orders", chosen, given.get("limit") or 500, given.get("cursor"), query)


def page(name: str, every: Sequence[Json], size: int, cursor: str | None, query: object) -> Json:
    """A page, and the cursor of the next. Raises Refused."""
    made_for = hashlib.sha256(json.dumps([query, size], sort_keys=True).encode()).hexdigest()[:16]
    given, _, number = (cursor or f"{made_for}.0").partition(".")
    if given != made_for or not number.isdigit():
        raise Refused("INVALID_CURSOR", "the cursor belongs to another query", "cursor")
    begin, end = int(number), int(number) + size
    reply: Json = {name: deepcopy(list(every[begin:end]))} if every[begin:end] else {}
    return {**reply, "cursor": f"{made_for}.{end}"} if end < len(every) else reply


def _is_found(order: Json, filters: Json, times: Mapping[str, Json]) -> bool:
    states = (filters.get("state_filter") or {}).get("states")
    sources = (filters.get("source_filter") or {}).get("source_names")
    fulfilling, parts = filters.get("fulfillment_filter") or {}, order.get("fulfillments", [])
    kinds = (("type", "fulfillment_types"), ("state", "fulfillment_states"))
    return (
        (not states or order["state"] in states)
        and (not sources or order.get("source", {}).get("name") in sources)
        and all(
            not fulfilling.get(name) or any(each[what] in fulfilling[name] for each in parts)
            for what, name in kinds
        )
        and all(_is_within(order.get(name), each) for name, each in times.items())
    )


def _is_within(when: str | None, span: Json) -> bool:
    if when is None:
        return False
    at, start, end = (
        None if each is None else datetime.fromisoformat(each)
        for each in (when, span.get("start_at"), span.get("end_at"))
    )
    assert at is not None
    return (start is None or at >= start) and (end is None or at <= end)
