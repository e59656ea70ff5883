"""Clover's lists: filters, pages and expansions.

Documented ("Apply filters", "Expand fields", "Paginate elements", the change log of May 2023): all filters
apply; a header has the fields that may be filtered; most filters reach back 90 days; a page has 100
elements, or ``limit``, up to 1,000; three expansions at most, of 100 elements each. A hidden order is found
by its id alone (Android SDK).

Judgement: a filter of another field, or of a number by a text, is a 400; states compare in either case.
"""

import operator
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from testkit.vendors.clover.refusal import Body, Refusal
from testkit.vendors.http import VendorReply, VendorRequest

#: Fields of orders that may be filtered: the reference's, without those of other records.
FIELDS = (
    *("id", "note", "title", "state", "payType", "testMode", "externalReferenceId", "total"),
    *("createdTime", "modifiedTime", "clientCreatedTime", "deletedTime"),
)
_NUMBERS = frozenset(FIELDS[7:])
#: Milliseconds that a search reaches back, and the filters that reach further alone.
_REACH, _FURTHER = 90 * 86_400_000, {"id", "modifiedTime", "clientCreatedTime"}
#: Elements of an expanded list, and expansions of a request.
_NESTED, _EXPANSIONS = 100, 3

_FILTER = re.compile(r"([A-Za-z]+)(>=|<=|!=|=|>|<)(.*)", re.DOTALL)
_COMPARE = {
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def found(
    orders: Iterable[Body], request: VendorRequest, ignored: Collection[str], now: int
) -> list[Body]:
    """The orders that pass all filters of the request.

    Args:
        orders: all, deleted ones, too.
        request: with its filters.
        ignored: fields whose filters do nothing.
        now: Unix time in milliseconds.
    """
    clauses = [_parsed(each) for each in request.query.get("filter", ())]
    names = {name for name, _, _ in clauses}
    since = now - _REACH if names - _FURTHER else 0
    return [
        each
        for each in orders
        if each["state"] is not None
        and ("deletedTime" not in each or "deletedTime" in names)
        and each["createdTime"] >= since
        and all(_passes(each, *clause) for clause in clauses if clause[0] not in ignored)
    ]


def _parsed(clause: str) -> tuple[str, str, str]:
    match = _FILTER.fullmatch(clause)
    if match is None or match[1] not in FIELDS:
        raise Refusal(400, "bad_request", f"filter {clause!r}")
    if match[1] in _NUMBERS and not match[3].isdecimal():
        raise Refusal(400, "bad_request", f"filter {clause!r}: no number")
    return match[1], match[2], match[3]


def _passes(order: Body, name: str, how: str, value: Any) -> bool:
    has = order.get(name)
    if name in _NUMBERS:
        value = int(value)
    elif name == "state":
        has, value = str(has).lower(), value.lower()
    return how == "!=" if has is None else bool(_COMPARE[how](has, value))


def page(
    records: Sequence[Body], request: VendorRequest, headers: dict[str, str] | None = None
) -> VendorReply:
    """The page of the list that the request asks for."""
    limit, offset = _number(request, "limit", 100), _number(request, "offset", 0)
    elements = records[offset : offset + min(limit, 1000)]
    return VendorReply(200, {"elements": elements}, headers or {})


def _number(request: VendorRequest, name: str, default: int) -> int:
    value = request.query.get(name, [str(default)])[0]
    if not value.isdecimal():
        raise Refusal(400, "bad_request", f"{name} {value!r}: no number")
    return int(value)


def expansions(request: VendorRequest, known: Collection[str]) -> set[str]:
    """What the request wants expanded, by commas or several times. Raises Refusal."""
    names = [each for value in request.query.get("expand", ()) for each in value.split(",")]
    if len(names) > _EXPANSIONS or not set(names) <= set(known):
        raise Refusal(400, "bad_request", f"expand {','.join(names)!r}")
    return set(names)


def expanded(records: Sequence[Body]) -> Body:
    """A list within a record."""
    return {"elements": list(records[:_NESTED])}
