"""The breaker and the limit of merchants in trouble, minute by minute, as each worker saw them.

A worker adds up what its reports have of them, and writes it with the present minute's counters: at
most ``MAX_TROUBLES`` merchants, as JSON. A reader takes the worst of what the workers saw.
"""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, select

from pos_gateway.database.clock import ThisMinute
from pos_gateway.database.schema import worker_minutes
from pos_gateway.reports.report import MAX_TROUBLES, Trouble

#: Seconds that a report stands for at most: nothing is known of a longer silence.
LONGEST = 5.0


class TroubleMinute(NamedTuple):
    """A merchant's minute."""

    #: Seconds in which its breaker was open, and half-open.
    open: float = 0.0
    half_open: float = 0.0
    #: The lowest limit that was in force, and its own; 0: not known.
    limit: int = 0
    agreed: int = 0


class Minutes:
    """What one worker has seen in the present minute. One thread at a time."""

    def __init__(self) -> None:
        self._minute: int | None = None
        self._seen: dict[str, TroubleMinute] = {}
        self._last: tuple[Sequence[Trouble], float] = ((), 0.0)

    def see(self, troubles: Sequence[Trouble], seconds: float) -> None:
        """Add what a report has of them, for the seconds since the one before."""
        self._last = troubles, min(seconds, LONGEST)
        self._add()

    @property
    def has_any(self) -> bool:
        """Whether it has seen a merchant in trouble since the last minute without one."""
        return bool(self._seen)

    def of(self, minute: int) -> str | None:
        """All that was seen in this minute, as JSON; None: no merchant was in trouble."""
        if minute != self._minute:
            self._minute = minute
            self._seen.clear()
            self._add()
        return to_json(self._seen).decode() if self._seen else None

    def _add(self) -> None:
        troubles, seconds = self._last
        for each in troubles:
            before = self._seen.get(each.merchant_id)
            if before is not None or len(self._seen) < MAX_TROUBLES:
                seen = TroubleMinute(
                    open=seconds if each.breaker == "open" else 0.0,
                    half_open=seconds if each.breaker == "half_open" else 0.0,
                    limit=each.limit,
                    agreed=each.agreed,
                )
                self._seen[each.merchant_id] = seen if before is None else _sum(before, seen)


def minutes_of(connection: Connection, merchant_id: str, count: int) -> dict[int, TroubleMinute]:
    """The last minutes in which a worker saw the merchant in trouble: one query.

    Returns:
        By minute since 1970, by the database's clock: of each figure the worst that a worker saw.
    """
    key = to_json(merchant_id).decode()
    query = select(worker_minutes.c.minute, worker_minutes.c.troubles).where(
        worker_minutes.c.minute > ThisMinute() - count,
        worker_minutes.c.minute <= ThisMinute(),
        worker_minutes.c.troubles.contains(f"{key}:", autoescape=True),
    )
    worst: dict[int, TroubleMinute] = {}
    for minute, text in connection.execute(query):
        row = from_json(text).get(merchant_id)
        if row is not None:
            worst[minute] = _worse(worst.get(minute, TroubleMinute()), TroubleMinute(*row[:4]))
    return worst


def _sum(one: TroubleMinute, other: TroubleMinute) -> TroubleMinute:
    return TroubleMinute(
        round(one.open + other.open, 1),
        round(one.half_open + other.half_open, 1),
        _lower(one.limit, other.limit),
        max(one.agreed, other.agreed),
    )


def _worse(one: TroubleMinute, other: TroubleMinute) -> TroubleMinute:
    return TroubleMinute(
        max(one.open, other.open),
        max(one.half_open, other.half_open),
        _lower(one.limit, other.limit),
        max(one.agreed, other.agreed),
    )


def _lower(one: int, other: int) -> int:
    """Of two limits; 0: not known."""
    return min(filter(None, (one, other)), default=0)
