"""Workers that report to a database, and rows whose age the test decides."""

from typing import Any

from sqlalchemy import Engine, func, select, update

from pos_gateway.database.schema import worker_minutes, worker_reports
from pos_gateway.reports.counters import counters
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.reports.report import Trouble, WorkerReport
from pos_gateway.reports.reporter import Figures, Reporter
from tests.tokens.conftest import HandClock

#: Seconds for which a report counts here: no test is slower, as on a busy machine one is than a lease.
LASTS = 300.0


class Worker:
    """A worker that reports what the test says."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        clock: HandClock | None = None,
        lasts: float = LASTS,
    ) -> None:
        self.name = name
        self.clock = clock or HandClock()
        self.fields: dict[str, Any] = {}
        self.recorded: dict[str, int] = {}
        self.waits = [0] * 11
        self.taken = 0
        self.reporter = Reporter(
            engine, lambda: self.name, self._figures, lasts=lasts, clock=self.clock
        )

    def ends(self, orders: int, kind: str = "accepted") -> None:
        """This many orders come, and end."""
        self.taken += orders
        self.recorded[kind] = self.recorded.get(kind, 0) + orders

    def report(self, *troubles: Trouble, **fields: Any) -> None:
        self.fields = {"troubles": list(troubles), **fields}
        self.reporter.report()

    def _figures(self) -> Figures:
        counted = counters(self.taken, self.recorded, self.waits)
        return Figures(WorkerReport(**self.fields), counted)


class Reports:
    """The tables, and the view of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.view = FleetView(engine)

    def worker(self, name: str, clock: HandClock | None = None) -> Worker:
        return Worker(self.engine, name, clock)

    def pass_time(self, seconds: float) -> None:
        """As if the rows were older by this; a minute's rows by whole minutes."""
        minutes = int(seconds // 60)
        with self.engine.begin() as connection:
            connection.execute(update(worker_reports).values(at=worker_reports.c.at - seconds))
            # Far away first: two rows of a worker must not meet.
            for shift in (-minutes - 10**6, 10**6):
                connection.execute(
                    update(worker_minutes).values(minute=worker_minutes.c.minute + shift)
                )

    def store(self, name: str, text: str) -> None:
        """Replace a worker's JSON."""
        with self.engine.begin() as connection:
            change = update(worker_reports).where(worker_reports.c.worker == name)
            connection.execute(change.values(report=text))

    def rows(self, table: Any) -> int:
        with self.engine.connect() as connection:
            count: int = connection.scalar(select(func.count()).select_from(table)) or 0
            return count

    def total(self, name: str = "accepted") -> int:
        """What the hour's minutes say of a counter."""
        return sum(minute.counts[name] for minute in self.view.history())

    def names(self) -> list[str]:
        """The workers that live."""
        return sorted(each.worker for each in self.view.now().workers)
