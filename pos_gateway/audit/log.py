"""Reads the audit: any number of lines, a page at a time, and new ones as they are written."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, or_, select

from pos_gateway.audit.note import Changes
from pos_gateway.database.schema import audit
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

#: Lines read at once.
PAGE = 500
#: Seconds by which a line may become visible after later ones: its transaction took longer, or the
#: HTTP server had to wait for the database.
LATE = 60.0
#: Lines that are kept in mind of those that were listed before new ones are waited for.
KEPT = 1000


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line of the audit."""

    id: int
    #: Unix time, by the clock of the machine on which it was done.
    at: float
    operator: str
    what: str
    merchant_id: str
    order_id: str
    details: str
    reason: str | None
    changes: Changes

    @property
    def in_words(self) -> str:
        """What was changed, and the details, in one line."""
        return "; ".join(filter(None, (changes_in_words(self.changes), self.details)))


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines to read: those that match all that is given."""

    merchant_id: str | None = None
    order_id: str | None = None
    operator: str | None = None
    #: Unix time.
    since: float | None = None
    #: What was done: ``merchants.pause``, or all of ``merchants``.
    what: str | None = None

    def condition(self) -> ColumnElement[bool]:
        """As SQL."""
        parts: list[ColumnElement[bool]] = [audit.c.id > 0]
        if self.merchant_id is not None:
            parts.append(audit.c.merchant_id == self.merchant_id)
        if self.order_id is not None:
            parts.append(audit.c.order_id == self.order_id)
        if self.operator is not None:
            parts.append(audit.c.operator == self.operator)
        if self.since is not None:
            parts.append(audit.c.at >= self.since)
        if self.what is not None:
            inside = audit.c.what.startswith(f"{self.what}.", autoescape=True)
            parts.append(or_(audit.c.what == self.what, inside))
        return and_(*parts)


class AuditLog:
    """Reads the audit. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def last(self, wanted: AuditFilter, most: int, before: int | None = None) -> list[AuditLine]:
        """The last lines, the newest last; ``before``: of those with a lower id."""
        condition = wanted.condition()
        if before is not None:
            condition = and_(condition, audit.c.id < before)
        query = select(audit).where(condition).order_by(audit.c.id.desc()).limit(most)
        with self._engine.connect() as connection:
            return lines(connection, query)[::-1]

    def all(self, wanted: AuditFilter, after: int = 0) -> Iterator[AuditLine]:
        """Every line with a higher id than ``after``, the newest last."""
        while True:
            query = select(audit).where(wanted.condition(), audit.c.id > after)
            with self._engine.connect() as connection:
                page = lines(connection, query.order_by(audit.c.id).limit(PAGE))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def end(self) -> int:
        """The highest id there is; 0 without a line."""
        query = select(audit.c.id).order_by(audit.c.id.desc()).limit(1)
        with self._engine.connect() as connection:
            return connection.scalar(query) or 0


class AuditTail:
    """New lines, each once. For one caller at a time.

    Ids become visible out of order, since transactions end out of order: each look also reads again
    what came in the last minute.

    Args:
        log: the audit.
        wanted: which lines.
        listed: lines that are known already, the newest last: all that there were after the first
            of them.
    """

    def __init__(
        self,
        log: AuditLog,
        wanted: AuditFilter,
        listed: Sequence[AuditLine] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._log, self._wanted, self._clock = log, wanted, clock
        self._seen = {each.id for each in listed}
        #: Nothing up to this id is read again.
        self._floor = min(self._seen) if self._seen else max(0, log.end() - KEPT)
        #: Ends of the audit, and when each was seen.
        self._ends: deque[tuple[float, int]] = deque()

    def look(self) -> list[AuditLine]:
        """The lines that became visible since the last look, in the order of their ids."""
        now = self._clock.monotonic()
        self._ends.append((now, self._log.end()))  # before the lines: what is after it is read anew
        while len(self._ends) > 1 and now - self._ends[0][0] >= LATE:
            self._floor = max(self._floor, self._ends.popleft()[1])
        found = self._log.all(self._wanted, after=self._floor)
        new = [each for each in found if each.id not in self._seen]
        self._seen = {each for each in self._seen if each > self._floor}
        self._seen.update(each.id for each in new)
        return new


def lines(connection: Connection, query: Select[Any]) -> list[AuditLine]:
    """The lines that a query of the whole table finds."""
    found = connection.execute(query).mappings()
    return [AuditLine(**{**row, "changes": _changes(row["changes"])}) for row in found]


def changes_in_words(changes: Changes) -> str:
    """``max_concurrency: 4 -> 8, auth.token: changed``."""
    return ", ".join(_in_words(name, change) for name, change in changes.items())


def _changes(text: str | None) -> Changes:
    if text is None:
        return {}
    return {
        name: each if isinstance(each, str) else tuple(each)
        for name, each in json.loads(text).items()
    }


def _in_words(name: str, change: Any) -> str:
    if isinstance(change, str):
        return f"{name}: {change}"
    before, after = map(_value, change)
    return f"{name}: {before} -> {after}"


def _value(value: Any) -> str:
    match value:
        case None:
            return "(none)"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
