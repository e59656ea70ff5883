"""Merchants whose orders fail: from the events of the last minutes, which every outcome is recorded with.

Admission sees calls, and a POS that answers every call at once with 401, 404 or 422 is well for it.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, case, cast, func, select

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import events
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.ledger.payloads import readable_code

#: Seconds of outcomes that count, and the most events that are read: the latest.
WINDOW, ROWS = 600.0, 20_000
#: The fewest bad outcomes of a merchant in trouble; they are also more than half of its outcomes.
AT_LEAST = 3
#: Merchants that are named at most, those with most bad outcomes.
MAX_FAILING = 1_000
#: A later accept of an order in doubt is one more outcome: such orders are half bad, and so no trouble.
_BAD = (Kind.FAILED, Kind.REJECTED, Kind.EXPIRED, Kind.IN_DOUBT)
_OUTCOMES = [kind.value for kind in (*_BAD, Kind.ACCEPTED, Kind.CANCELLED)]


class Failing(NamedTuple):
    """A merchant's outcomes in the window."""

    total: int
    failed: int
    rejected: int
    expired: int
    in_doubt: int
    #: The most frequent reason code of each of the four, and ``, …`` if there are others; empty: it has none.
    failed_for: str = ""
    rejected_for: str = ""
    expired_for: str = ""
    in_doubt_for: str = ""

    @property
    def bad(self) -> int:
        """How many were not as wanted."""
        return self.failed + self.rejected + self.expired + self.in_doubt


def failing(connection: Connection) -> Mapping[str, Failing]:
    """The merchants most of whose orders fail, the most orders first: one query along the key."""
    row = events.c
    latest = (
        select(row.merchant_id, row.type, row.reason_code, row.occurred_at)
        .order_by(row.id.desc())
        .limit(ROWS)
        .subquery()
    )
    alike = (latest.c.merchant_id, latest.c.type, latest.c.reason_code)
    counts = (
        select(*alike, func.count().label("number"))
        .where(latest.c.occurred_at > Now() - WINDOW, latest.c.type.in_(_OUTCOMES))
        .group_by(*alike)
        .subquery()
    )
    merchant, kind, code, number = counts.c
    order = (number.desc(), code.is_(None), code)
    place = func.row_number().over(partition_by=(merchant, kind), order_by=order)
    ranked = select(*counts.c, place.label("place")).subquery().c
    numbers = [_sum(case((ranked.type == each.value, ranked.number), else_=0)) for each in _BAD]
    first = [
        func.max(case(((ranked.type == each.value) & (ranked.place == 1), ranked.reason_code)))
        for each in _BAD
    ]
    codes = [func.max(case((ranked.type == each.value, ranked.place))) for each in _BAD]
    total, bad = _sum(ranked.number), reduce(add, numbers)
    query = (
        select(ranked.merchant_id, total, *numbers, *first, *codes)
        .group_by(ranked.merchant_id)
        .having((bad >= AT_LEAST) & (bad * 2 > total))
        .order_by(bad.desc(), ranked.merchant_id)
        .limit(MAX_FAILING)
    )
    return {name: _failing(found) for name, *found in connection.execute(query)}


def _sum(numbers: ColumnElement[int]) -> ColumnElement[int]:
    return cast(func.sum(numbers), Integer)


def _failing(found: Sequence[Any]) -> Failing:
    total, of_kind, first, codes = found[0], found[1:5], found[5:9], found[9:]
    return Failing(total, *of_kind, *map(_most, first, codes))


def _most(code: str | None, codes: int | None) -> str:
    # A POS's own words, those of a rejection, may quote a customer.
    said = "" if code is None else readable_code(Reason(code, ""))
    return f"{said}, …" if said and codes != 1 else said
