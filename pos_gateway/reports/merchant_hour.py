"""A merchant's last hour, from the attempts that its orders' rows have.

No worker keeps a history by merchant: it would grow with the merchants. The attempts' times are by
their workers' clocks; where those are wrong, an attempt is in another minute.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine, select

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import orders
from pos_gateway.ledger.attempts import results

#: Minutes, and the most rows that are read: the latest.
MINUTES, ROWS = 60, 2000
#: Upper bounds in seconds of the reply times that are counted; one counter more is for longer ones.
REPLIES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class MerchantMinute:
    """The attempts that began in a minute."""

    #: Unix time of its beginning.
    at: float
    #: Attempts by outcome.
    outcomes: Counter[str] = field(default_factory=Counter)
    #: Calls by reply time: ``REPLIES`` has the upper bounds.
    replies: list[int] = field(default_factory=lambda: [0] * (len(REPLIES) + 1))


@dataclass(frozen=True, slots=True)
class MerchantHour:
    """A merchant's last minutes, oldest first, the present one last."""

    minutes: Sequence[MerchantMinute]
    #: It had more orders than are read: the earlier minutes lack some.
    is_cut: bool


def merchant_hour(engine: Engine, merchant_id: str) -> MerchantHour:
    """A merchant's last hour: one query, along its rows' key. Raises SQLAlchemyError."""
    began = Now() - 60.0 * MINUTES
    query = (
        select(orders.c.attempt_history, orders.c.updated_at, Now().label("now"))
        .where(orders.c.merchant_id == merchant_id, orders.c.updated_at >= began)
        .order_by(orders.c.updated_at.desc())
        .limit(ROWS)
    )
    with engine.connect() as connection:
        rows = connection.execute(query).all()
    if not rows:
        return MerchantHour([], is_cut=False)
    last = int(rows[0].now // 60)
    first = last - MINUTES + 1
    minutes = [MerchantMinute(minute * 60.0) for minute in range(first, last + 1)]
    for text, _, _ in rows:
        for at, outcome, seconds in results(text):
            # A clock that is ahead writes into the present minute.
            number = min(int(at // 60), last) - first
            if number >= 0:
                minutes[number].outcomes[outcome] += 1
                if seconds is not None:
                    minutes[number].replies[bisect_left(REPLIES, seconds)] += 1
    return MerchantHour(minutes, is_cut=len(rows) == ROWS)
