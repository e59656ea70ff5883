"""Reports this process every two seconds, beside its work.

A report that cannot be stored is dropped; the next report has its counters, too. While the database is
away only this thread waits.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.ledger.lease import LEASE
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.reports.counters import Counters
from pos_gateway.reports.report import WorkerReport, encoded
from pos_gateway.reports.store import ReportStore
from pos_gateway.reports.trouble_minutes import Minutes
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Seconds from one report to the next.
EVERY = 2.0
#: Seconds that ``stop`` waits for the last report.
GRACE = 4.0


class Figures(NamedTuple):
    """What a process reports."""

    report: WorkerReport
    counters: Counters


class Reporter:
    """Reports one process. The constructor does no I/O.

    Args:
        engine: the database.
        worker: the process's id: see ``Lease.worker``.
        figures: returns what to report; may yield to other green threads.
        run: runs blocking calls, as for the ledger.
        lasts: seconds for which a report counts without another one.
    """

    def __init__(
        self,
        engine: Engine,
        worker: Callable[[], str],
        figures: Callable[[], Figures],
        *,
        run: Run = here,
        lasts: float = LEASE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = ReportStore(engine)
        self._worker, self._figures = worker, figures
        self._run, self._lasts, self._clock = run, lasts, clock
        self._is_first = True
        self._minutes, self._seen_at = Minutes(), clock.monotonic()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Report every two seconds, on a thread. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._report_on, name="reports", daemon=True)
            self._thread.start()

    def report(self) -> None:
        """Report once. Raises SQLAlchemyError."""
        report, counters = self._figures()
        text, worker, is_first = encoded(report), self._worker(), self._is_first
        before, self._seen_at = self._seen_at, self._clock.monotonic()
        self._minutes.see(report.troubles, self._seen_at - before)
        self._run(
            lambda: self._store.write(
                worker,
                text,
                counters,
                lasts=self._lasts,
                is_first=is_first,
                minutes=self._minutes,
            )
        )
        self._is_first = False

    def stop(self) -> None:
        """Report a last time, and remove the report: this process is not lost. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(GRACE)

    def _report_on(self) -> None:
        while not self._stopping.wait(EVERY):
            self._succeeds(self.report)
        self._leave()

    def _leave(self) -> None:
        worker = self._worker()
        if self._succeeds(self.report):
            self._succeeds(lambda: self._run(lambda: self._store.remove(worker)))

    @staticmethod
    def _succeeds(do: Callable[[], Any]) -> bool:
        try:
            do()
        except SQLAlchemyError as error:
            log.debug("report.dropped", error=str(error))  # the ledger warns
        except Exception:  # no error here may affect an order
            log.exception("report.mistake")
        else:
            return True
        return False
