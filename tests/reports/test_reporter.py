"""The thread that reports, and the process that has none."""

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.database.schema import worker_reports
from pos_gateway.ledger.lease import LEASE
from pos_gateway.reports import reporter as subject
from testkit.patience import PATIENCE
from tests.reports.lab import Reports, Worker


def away(*_: Any, **__: Any) -> None:
    raise OperationalError("insert", None, Exception("the server is away"))


def test_a_report_that_cannot_be_stored_is_dropped(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it counted comes with the next one."""
    worker = reports.worker("w")
    with monkeypatch.context() as patch:
        patch.setattr(worker.reporter._store, "write", away)
        for _ in range(3):
            worker.ends(1)
            with pytest.raises(OperationalError):
                worker.report()
    worker.report()
    assert reports.total() == 3


def test_a_report_counts_for_as_long_as_a_lease(engine: Engine) -> None:
    Worker(engine, "w", lasts=LEASE).report()
    with engine.connect() as connection:
        assert connection.scalar(select(worker_reports.c.lasts)) == LEASE


def test_the_thread_reports_until_it_is_stopped(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a mistake, and while the database is away."""
    monkeypatch.setattr(subject, "EVERY", 0.01)
    worker, tried = reports.worker("w"), threading.Semaphore(0)
    write, failures = worker.reporter._store.write, [away, lambda *_, **__: 1 // 0]

    def fails_first(*arguments: Any, **named: Any) -> None:
        tried.release()
        (failures.pop() if failures else write)(*arguments, **named)

    monkeypatch.setattr(worker.reporter._store, "write", fails_first)
    with capture_logs() as logs:
        worker.reporter.start()
        worker.reporter.start()
        for _ in range(4):  # at the fourth the third is stored
            assert tried.acquire(timeout=PATIENCE)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["report.mistake"]
    assert reports.names() == ["w"]
    worker.reporter.stop()
    assert not reports.view.now().workers


def test_stopping_waits_for_no_database(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "GRACE", 0.0)
    worker, answers = reports.worker("w"), threading.Event()
    monkeypatch.setattr(worker.reporter._store, "write", lambda *_, **__: answers.wait(PATIENCE))
    worker.reporter.start()
    worker.reporter.stop()  # would hang
    answers.set()


def test_a_process_that_ends_before_its_first_report_is_counted(reports: Reports) -> None:
    """A synchronous worker's child may end after a task."""
    worker = reports.worker("w")
    worker.ends(7)
    worker.reporter.start()
    worker.reporter.stop()
    assert reports.total() == 7


def test_without_its_tables_nothing_but_reports_fail(engine: Engine) -> None:
    """A restored database may lack them."""
    with engine.begin() as connection:
        connection.execute(text("drop table worker_reports"))
    worker = Reports(engine).worker("w")
    worker.reporter.start()
    worker.reporter.stop()
