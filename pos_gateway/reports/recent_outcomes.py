"""Merchants whose orders fail: from the events of the last minutes, which every outcome is recorded with.

Admission sees calls, and a POS that answers every call at once with 401, 404 or 422 is well for it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, func, select

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import events
from pos_gateway.domain.outcome import Kind

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
    #: Reason codes of those that failed, the first and the last by name; None: none failed.
    code: str | None = None
    other_code: str | None = None

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
    total = func.count()
    numbers = [_sum(latest.c.type == kind.value) for kind in _BAD]
    # A POS's own codes, those of a rejection, may quote a customer.
    code = case((latest.c.type == Kind.FAILED.value, latest.c.reason_code))
    bad: ColumnElement[int] = _sum(latest.c.type.in_([kind.value for kind in _BAD]))
    query = (
        select(latest.c.merchant_id, total, *numbers, func.min(code), func.max(code))
        .where(latest.c.occurred_at > Now() - WINDOW, latest.c.type.in_(_OUTCOMES))
        .group_by(latest.c.merchant_id)
        .having((bad >= AT_LEAST) & (bad * 2 > total))
        .order_by(bad.desc(), latest.c.merchant_id)
        .limit(MAX_FAILING)
    )
    return {merchant: Failing(*numbers) for merchant, *numbers in connection.execute(query)}


def _sum(condition: ColumnElement[bool]) -> Any:
    return func.sum(case((condition, 1), else_=0))
