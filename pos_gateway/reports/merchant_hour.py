"""A merchant's last hour: the attempts that its orders' rows have, and what workers saw of its trouble.

No worker keeps a history of every merchant: it would grow with the merchants. The attempts' times are by
their workers' clocks; where those are wrong, an attempt is in another minute.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Select, select, union_all

from pos_gateway.database.clock import Now, ThisMinute
from pos_gateway.database.schema import orders
from pos_gateway.ledger.attempts import results
from pos_gateway.ledger.states import State
from pos_gateway.reports.trouble_minutes import TroubleMinute, minutes_of

#: Minutes, and the most rows that are read: the latest.
MINUTES, ROWS = 60, 2000
#: Upper bounds in seconds of the reply times that are counted; one counter more is for longer ones.
REPLIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class MerchantMinute:
    """The attempts that began in a minute, and how its breaker and its limit were."""

    #: Unix time of its beginning.
    at: float
    #: Attempts by outcome.
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Calls by reply time: ``REPLIES`` has the upper bounds.
    replies: list[int] = field(default_factory=lambda: [0] * (len(REPLIES) + 1))
    #: None: no worker reported it as in trouble.
    trouble: TroubleMinute | None = None


@dataclass(frozen=True, slots=True)
class MerchantHour:
    """A merchant's last minutes, oldest first, the present one last."""

    minutes: Sequence[MerchantMinute]
    #: It had more orders than are read: the earlier minutes lack some.
    is_cut: bool


def merchant_hour(engine: Engine, merchant_id: str, *, by_state: bool = False) -> MerchantHour:
    """A merchant's last hour: three queries, along keys. Raises SQLAlchemyError.

    Args:
        engine: the database.
        merchant_id: the merchant's id.
        by_state: whether the merchant has too many orders to sort: each state is read by itself.
    """
    with engine.connect() as connection:
        last = connection.execute(select(ThisMinute())).scalar_one()
        states = [[each] for each in State] if by_state else [[*State]]
        parts = [_of_states(merchant_id, each) for each in states]
        newest = union_all(*parts).subquery()
        query = select(newest.c.attempt_history).order_by(newest.c.updated_at.desc()).limit(ROWS)
        rows = connection.execute(query).all()
        troubles = minutes_of(connection, merchant_id, MINUTES)
    if not rows and not troubles:
        return MerchantHour([], is_cut=False)
    first = last - MINUTES + 1
    minutes = [
        MerchantMinute(minute * 60.0, trouble=troubles.get(minute))
        for minute in range(first, last + 1)
    ]
    for (text,) in rows:
        for at, outcome, seconds in results(text):
            # A clock that is ahead writes into the present minute.
            number = min(int(at // 60), last) - first
            if number >= 0:
                minutes[number].outcomes[outcome] += 1
                if seconds is not None:
                    minutes[number].replies[bisect_left(REPLIES, seconds)] += 1
    return MerchantHour(minutes, is_cut=len(rows) == ROWS)


def _of_states(merchant_id: str, states: Sequence[State]) -> Select[Any]:
    """The latest orders of a merchant in these states."""
    row = orders.c
    is_recent = (row.merchant_id == merchant_id) & (row.updated_at >= Now() - 60.0 * MINUTES)
    wanted = select(row.attempt_history, row.updated_at).where(is_recent)
    if len(states) == 1:  # else all are: no index is needed
        wanted = wanted.where(row.state == states[0])
    return select(wanted.order_by(row.updated_at.desc()).limit(ROWS).subquery())
