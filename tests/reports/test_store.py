"""Reports in the database: what each adversary must not be able to do.

| adversary | must not | test |
|---|---|---|
| a worker dies between two reports | make the sums jump back | `a_worker_that_dies_leaves_what_it_counted` |
| a worker is suspended for minutes | be counted as alive, count twice, or be forgotten | `a_suspended_worker_is_lost_and_comes_back` |
| … for longer than its row is kept | add what it had counted before to one minute | `after_its_row_is_pruned_nothing_counts_twice` |
| a worker restarts with the same host and process id | continue the counters of the one before | `a_restarted_worker_begins_anew` |
| clocks of workers differ by minutes | move a report or a minute | `workers_clocks_do_not_count` |
| the database's clock is set back, or a failover's differs | keep a dead worker alive | `a_row_from_the_future_is_no_live_worker` |
| a commit whose answer is lost | count orders twice, or not at all | `a_report_whose_commit_is_unknown_counts_once` |
| the database is away | queue reports, or lose what was counted | `a_report_that_cannot_be_stored_is_dropped` (test_reporter.py) |
| the leader prunes while workers report | remove a live worker | `pruning_races_reports` |
| 200 workers | make sums wrong, or cost more than a query | `two_hundred_workers` (test_fleet_view.py) |
| 10,000 merchants in trouble | make a report large, or dear | `ten_thousand_merchants` (test_trouble_watch.py) |
| ids with quotation marks, markup, 128 characters | break the JSON, or the limit of 16 KiB | `odd_ids_and_the_limit` (test_report.py) |
| a report of a later release | be an error, or hide the others | `a_later_releases_report` (test_report.py) |
"""

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.exc import OperationalError

from pos_gateway.database.clock import Now, ThisMinute
from pos_gateway.database.schema import worker_minutes, worker_reports
from pos_gateway.reports import store as subject
from pos_gateway.reports.store import GONE, KEPT, prune_reports
from testkit.patience import PATIENCE
from tests.reports.lab import LASTS, Reports
from tests.tokens.conftest import HandClock


def test_a_worker_that_dies_leaves_what_it_counted(reports: Reports) -> None:
    dead, alive = reports.worker("dead"), reports.worker("alive")
    for _ in range(3):
        dead.ends(10)
        dead.report()
        alive.ends(1)
        alive.report()
    assert reports.total() == 33
    reports.pass_time(LASTS)
    alive.ends(1)
    alive.report()
    assert reports.names() == ["alive"]
    assert reports.total() == 34


def test_a_suspended_worker_is_lost_and_comes_back(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.ends(5)
    worker.report()
    reports.pass_time(LASTS)
    fleet = reports.view.now()
    assert not fleet.workers
    assert LASTS <= fleet.lost["w"] < LASTS + PATIENCE
    worker.ends(2)
    worker.report()
    fleet = reports.view.now()
    assert [each.worker for each in fleet.workers] == ["w"]
    assert not fleet.lost
    assert reports.total() == 7


def test_after_its_row_is_pruned_nothing_counts_twice(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.ends(1000)
    worker.report()
    reports.pass_time(GONE + 60)
    prune_reports(reports.engine)
    assert reports.rows(worker_reports) == 0
    worker.ends(3)
    worker.report()  # what has come since its last report is unknown
    worker.ends(4)
    worker.report()
    assert reports.total() == 4


def test_a_restarted_worker_begins_anew(reports: Reports) -> None:
    before = reports.worker("pod-1-7-aaaaaaaaaaaa")
    before.ends(100)
    before.report()
    after = reports.worker("pod-1-7-bbbbbbbbbbbb")
    after.ends(5)
    after.report()
    assert reports.total() == 105
    reports.pass_time(LASTS)
    after.report()
    assert reports.names() == ["pod-1-7-bbbbbbbbbbbb"]


def test_workers_clocks_do_not_count(reports: Reports) -> None:
    clocks = [HandClock(), HandClock(), HandClock()]
    clocks[1].step += 300.0
    clocks[2].step -= 300.0
    for number, clock in enumerate(clocks):
        worker = reports.worker(f"w{number}", clock)
        worker.ends(1)
        worker.report()
    assert reports.names() == ["w0", "w1", "w2"]
    assert [each.age < PATIENCE for each in reports.view.now().workers] == [True] * 3
    assert sum(minute.counts["accepted"] for minute in reports.view.history(2)) == 3


def test_a_row_from_the_future_is_no_live_worker(reports: Reports) -> None:
    dead, alive = reports.worker("dead"), reports.worker("alive")
    dead.ends(1)
    dead.report()
    alive.report()
    reports.pass_time(-3600)  # the database's clock goes back by an hour
    alive.ends(1)
    alive.report()
    assert reports.names() == ["alive"]
    assert reports.total() == 1  # the minutes ahead are no history
    assert prune_reports(reports.engine) == 1
    assert reports.rows(worker_minutes) == 1
    reports.pass_time(-2 * GONE)
    assert prune_reports(reports.engine) == 3


def test_a_report_whose_commit_is_unknown_counts_once(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not it was done, also if it was the first."""
    worker = reports.worker("w")
    for is_done in (True, False, True):
        worker.ends(10)
        with monkeypatch.context() as patch:
            patch.setattr(
                worker.reporter._store, "write", _unknown(worker.reporter._store, is_done)
            )
            with pytest.raises(OperationalError):
                worker.report()
    worker.report()
    worker.report()
    assert reports.total() == 30


def _unknown(store: Any, is_done: bool) -> Any:
    write = store.write

    def answer_lost(*arguments: Any, **named: Any) -> None:
        if is_done:
            write(*arguments, **named)
        raise OperationalError("commit", None, Exception("server closed the connection"))

    return answer_lost


def test_a_stopped_worker_is_not_lost(reports: Reports) -> None:
    worker, quiet = reports.worker("w"), reports.worker("never reported")
    worker.report()
    worker.ends(1)
    worker.reporter.start()
    worker.reporter.stop()
    quiet.ends(1)
    quiet.reporter.stop()
    fleet = reports.view.now()
    assert (list(fleet.workers), dict(fleet.lost)) == ([], {})
    assert reports.total() == 1


def test_what_is_old_is_pruned(reports: Reports) -> None:
    worker = reports.worker("w")
    for _ in range(3):
        worker.ends(1)
        worker.report()
        reports.pass_time((KEPT // 2 + 1) * 60)
    assert prune_reports(reports.engine) == 2
    assert reports.rows(worker_minutes) == 1
    assert reports.rows(worker_reports) == 1


def test_an_idle_worker_renews_its_report_by_one_statement(reports: Reports) -> None:
    worker = reports.worker("w")
    statements = list[str]()
    event.listen(reports.engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    worker.ends(1)
    worker.report(parked=1)
    reports.pass_time(PATIENCE)
    statements.clear()
    worker.report(parked=2)
    assert len(statements) == 1
    [shown] = reports.view.now().workers
    assert (shown.report.parked, shown.age < PATIENCE) == (2, True)
    reports.pass_time(GONE + 1)
    prune_reports(reports.engine)
    worker.report()
    assert reports.names() == ["w"]
    worker.ends(1)
    worker.report()
    assert reports.total() == 1  # the hour before is not shown any more


def test_a_statement_with_the_databases_time_is_compiled_once(engine: Engine) -> None:
    """An idle worker executes one with each report."""
    compiled: dict[Any, Any] = {}
    with engine.connect() as connection:
        connection.execution_options(compiled_cache=compiled)
        for each in (Now, ThisMinute):
            connection.execute(select(each()))
    assert len(compiled) == 2


def test_a_minute_without_an_order_takes_no_row(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.report()
    worker.report()
    assert reports.rows(worker_minutes) == 0
    assert reports.view.history() == []


def test_pruning_races_reports(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is about to be too old whenever it is pruned."""
    monkeypatch.setattr(subject, "GONE", -1.0)
    reports = Reports(engine)
    workers = [reports.worker(f"w{number}") for number in range(4)]
    stop = threading.Event()

    def prune() -> None:
        while not stop.is_set():
            prune_reports(engine)

    pruning = threading.Thread(target=prune)
    pruning.start()
    try:
        for _ in range(10):
            for worker in workers:
                worker.ends(1)
                worker.report()
    finally:
        stop.set()
        pruning.join()
    # A worker whose row was removed may lose what it counted since, and never counts it twice.
    assert 4 <= reports.total() <= 40
    for worker in workers:
        worker.report()
    assert reports.names() == ["w0", "w1", "w2", "w3"]
