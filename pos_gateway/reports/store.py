"""Stores workers' reports, and adds what they have counted to the present minute.

A worker has one row, which is replaced. It reports its counters since it started; the difference to
those in its row is added to its minute in the same transaction. So a report that is lost, or whose
commit is unknown, counts once, with the next one, whatever worker dies. Every time is the database's.

A worker that has counted nothing since its last report renews its row by one statement instead of
a transaction of several: most of an idle worker's CPU is for what it does every second or two.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, Table, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.clock import Now, ThisMinute
from pos_gateway.database.schema import COUNTED, worker_minutes, worker_reports
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.reports.counters import Counters
from pos_gateway.reports.trouble_minutes import Minutes

#: Minutes that are kept, and for how many seconds the last report of a worker that is gone.
KEPT, GONE = 120, 7200.0
#: Seconds, and minutes, by which a row may be ahead of the database's clock (it was set back, or
#: another machine's database has taken over): a worker that lives replaces its row.
AHEAD = 5.0
_MINUTES_AHEAD = 1


class ReportStore:
    """Writes reports. Raises SQLAlchemyError when the database is away: nothing was counted twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        is_sqlite = engine.dialect.name == "sqlite"
        insert: Any = sqlite.insert if is_sqlite else postgresql.insert
        self._add, self._replace = _adding(insert), _replacing(insert)
        #: The worker whose row is known to have counted this; None: not known.
        self._written: tuple[str, Counters] | None = None
        self._at_once = engine.execution_options(isolation_level="AUTOCOMMIT")

    def write(
        self,
        worker: str,
        report: str,
        counters: Counters,
        *,
        lasts: float,
        is_first: bool,
        minutes: Minutes | None = None,
    ) -> None:
        """Replace a worker's report. One worker's calls follow each other.

        Args:
            worker: its id, which no other process ever has.
            report: what it reports, as JSON.
            counters: what it has counted since it started.
            lasts: for how many seconds the report counts without another one.
            is_first: no earlier call is known to have succeeded. Else, if its row is gone, what it
                has counted before is unknown, and the next difference is taken from now.
            minutes: what it has seen of merchants in trouble.
        """
        written, self._written = self._written, None
        is_idle = written == (worker, counters) and not (minutes and minutes.has_any)
        if not (is_idle and self._renew(worker, lasts, report)):
            values = {"worker": worker, "lasts": lasts, "report": report, **counters}
            self._count(values, is_first=is_first, minutes=minutes)
        self._written = worker, dict(counters)

    def _renew(self, worker: str, lasts: float, report: str) -> bool:
        """Replace the report in the worker's row; whether there is one."""
        with self._at_once.connect() as connection:
            values = {"of": worker, "new_lasts": lasts, "new_report": report}
            return connection.execute(_RENEW, values).rowcount == 1

    def _count(self, values: Mapping[str, Any], *, is_first: bool, minutes: Minutes | None) -> None:
        """Replace the worker's row, and add to its minute what was counted since."""
        with self._engine.begin() as connection:
            found = connection.execute(_COUNTED, {"of": values["worker"]}).mappings().one_or_none()
            unknown = dict.fromkeys(COUNTED, 0) if is_first else values
            before: Mapping[Any, int] = found or unknown
            new = {name: values[name] - before[name] for name in COUNTED}
            troubles = minutes.of(found["minute"]) if minutes is not None and found else None
            if troubles or any(new.values()):
                added = {"worker": values["worker"], "troubles": troubles, **new}
                connection.execute(self._add, added)
            connection.execute(self._replace, values)

    def remove(self, worker: str) -> None:
        """Remove a worker's report: it stops."""
        with self._engine.begin() as connection:
            connection.execute(delete(worker_reports).where(worker_reports.c.worker == worker))


def prune_reports(engine: Engine) -> int:
    """Remove the minutes and the reports that are old, or ahead of time; returns how many rows.

    Workers report meanwhile: one that is late replaces its row, and stays.

    Raises:
        LedgerUnavailable: the database is away.
    """
    at, minute = worker_reports.c.at, worker_minutes.c.minute
    old_reports = or_(at < Now() - GONE, at > Now() + GONE)
    old_minutes = or_(minute < ThisMinute() - KEPT, minute > ThisMinute() + _MINUTES_AHEAD)
    old = delete(worker_reports).where(old_reports), delete(worker_minutes).where(old_minutes)
    try:
        with engine.begin() as connection:
            return sum(connection.execute(each).rowcount for each in old)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(str(error)) from error


#: What the worker ``of`` has counted, as of its report, and the present minute. The row is locked: an
#: earlier call whose commit is unknown may not be done yet.
_COUNTED = (
    select(ThisMinute().label("minute"), *(worker_reports.c[name] for name in COUNTED))
    .where(worker_reports.c.worker == bindparam("of"))
    .with_for_update()
)

#: Replaces the report of the worker ``of``, which has counted nothing since.
_RENEW = (
    update(worker_reports)
    .where(worker_reports.c.worker == bindparam("of"))
    .values(at=Now(), lasts=bindparam("new_lasts"), report=bindparam("new_report"))
)


def _adding(insert: Any) -> Any:
    """Adds to the worker's present minute."""
    new = insert(worker_minutes).values(
        minute=ThisMinute(), **_given("worker", "troubles", *COUNTED)
    )
    sums = {name: worker_minutes.c[name] + new.excluded[name] for name in COUNTED}
    changed = {**sums, "troubles": new.excluded.troubles}
    return new.on_conflict_do_update(index_elements=_key(worker_minutes), set_=changed)


def _replacing(insert: Any) -> Any:
    """Replaces the worker's row."""
    given = _given("worker", "lasts", "report", *COUNTED)
    new = insert(worker_reports).values(at=Now(), **given)
    every = (column.name for column in worker_reports.c if not column.primary_key)
    replaced = {name: new.excluded[name] for name in every}
    return new.on_conflict_do_update(index_elements=_key(worker_reports), set_=replaced)


def _given(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


def _key(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]
