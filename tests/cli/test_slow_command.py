"""``pos-gateway merchants slow``: which merchants are in trouble, or why that is not known."""

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.administration import troubles
from pos_gateway.cli import merchants_slow
from pos_gateway.database.engine import open_database
from pos_gateway.reports.fleet_view import Fleet, LiveWorker
from pos_gateway.reports.report import GREEN, Trouble, WorkerReport
from testkit.patience import PATIENCE
from tests.cli.conftest import Program, on_terminal
from tests.cli.test_merchants_command import json_lines, merchant
from tests.reports.lab import LASTS, Reports

HANGS = Trouble(
    "pizza",
    since=130.0,
    breaker="open",
    breaker_for=12.0,
    half_opens_in=60.0,
    calls=10,
    timed_out=9,
    latest=4.1,
    usual=0.3,
    in_flight=1,
    limit=4,
    waiting=200,
    parked=12,
    error="timeout",
    error_ago=12.0,
    agreed=4,
)
WAITS = Trouble("sushi", since=5.0, in_flight=2, limit=2, waiting=1, agreed=2)


@pytest.fixture
def workers(migrated: Program) -> Iterator[Reports]:
    """The workers' reports, in the program's database, which has their merchants."""
    migrated.invoke(
        "merchants", "import", "-", stdin=json_lines(merchant("pizza"), merchant("sushi"))
    )
    engine = open_database(migrated.settings["POS_GATEWAY_DATABASE_URL"])
    yield Reports(engine)
    engine.dispose()


def test_the_worst_comes_first_in_words(migrated: Program, workers: Reports) -> None:
    workers.worker("a").report(WAITS, HANGS)
    workers.worker("b").report(HANGS._replace(waiting=0, parked=0))
    done = migrated.invoke("merchants", "slow")
    assert done.exit_code == 0
    heading, pizza, sushi = (line.split("\t") for line in done.stdout.splitlines())
    assert heading == ["MERCHANT", "STATE", "REPLY", "IN_FLIGHT", "WAITING", "PARKED", "SINCE", "LAST_ERROR"]  # fmt: skip
    assert pizza[0] == "pizza"
    assert pizza[1].startswith("breaker open for 1")
    assert "on all 2 workers: 18 of the last 20 calls timed out; tried again in " in pizza[1]
    assert pizza[2:7] == ["4.1 s / 0.3 s", "2 of 8", "200", "12", "2 min"]
    assert pizza[7].startswith("timeout, 1")
    assert sushi[:6] == ["sushi", "at its limit of 2: 1 order waits", "", "2 of 2", "1", "0"]


def test_it_is_json_for_programs(migrated: Program, workers: Reports) -> None:
    workers.worker("a").report(HANGS, in_trouble=3)
    done = migrated.invoke("merchants", "slow", "--json")
    [record] = map(json.loads, done.stdout.splitlines())
    assert (record["merchant_id"], record["waiting"], record["parked"]) == ("pizza", 200, 12)
    assert (record["breaker"], record["reply_seconds"], record["limit"]) == ("open", 4.1, 4)
    assert record["state"].startswith("breaker open")
    assert "there are at least 2 more; --limit N shows N" in done.stderr


def test_no_trouble_is_said(migrated: Program, workers: Reports) -> None:
    workers.worker("a").report()
    done = migrated.invoke("merchants", "slow")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no merchant is in trouble: 1 worker reports\n"


class Passing:
    """A clock whose time passes with each sleep; a worker reports again at a moment, with trouble or without."""

    def __init__(self, reports_at: float, trouble: str | None) -> None:
        self.at, self._reports_at, self._trouble = 100.0, 100.0 + reports_at, trouble

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds

    def look(self) -> Any:
        has_reported = self.at >= self._reports_at
        age = self.at - (self._reports_at if has_reported else 99.0)
        worker = LiveWorker("w", age, WorkerReport(GREEN, False, "1", 0.0))
        worst = [self._trouble] if has_reported and self._trouble else []
        return SimpleNamespace(worst=worst, fleet=Fleet([worker], {}))


@pytest.mark.parametrize(
    ("reports_at", "trouble", "found", "until"),
    [
        (1.5, "pizza", ["pizza"], 101.5),  # what has begun since its last report
        (0.0, "pizza", ["pizza"], 100.0),
        (1.0, None, [], 101.1),
        (60.0, "pizza", [], 102.5),  # it is paused, say
    ],
)
def test_none_is_in_trouble_only_by_the_next_report(
    reports_at: float, trouble: str | None, found: list[str], until: float
) -> None:
    clock = Passing(reports_at, trouble)
    assert merchants_slow._of_now(clock.look, clock.monotonic, clock.sleep).worst == found
    assert clock.at == pytest.approx(until, abs=0.15)


def test_what_the_next_report_says_is_listed(
    migrated: Program, workers: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is of before the command, and shows no trouble yet."""
    monkeypatch.setattr(merchants_slow, "NEXT_REPORT", PATIENCE)
    worker, at_once = workers.worker("a"), troubles.troubles

    def look(*arguments: Any) -> troubles.Troubles:
        found = at_once(*arguments)
        worker.report(HANGS)
        return found

    monkeypatch.setattr(troubles, "troubles", look)
    worker.report()
    workers.pass_time(LASTS / 2)
    done = migrated.invoke("merchants", "slow")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["MERCHANT", "pizza"]


def test_without_a_report_nothing_is_known_and_the_remedy_is_named(
    migrated: Program, workers: Reports
) -> None:
    done = migrated.invoke("merchants", "slow")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no green worker reports to this database. Is one running" in done.stderr
    assert "pos-gateway doctor" in done.stderr
    workers.worker("host-7").report(HANGS)
    workers.pass_time(LASTS)
    done = migrated.invoke("merchants", "slow", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.search(r"the last one, host-7, was lost \d+ min ago", done.stderr)


def test_what_a_worker_reports_is_text(migrated: Program, workers: Reports) -> None:
    """A POS's or an operator's words, or a foreign row in the database."""
    odd = "\x1b[2J\u202ex\x07"
    migrated.invoke("merchants", "pause", "sushi", "--reason", "a, [bold]b[/bold]")
    for show in (
        lambda: migrated.invoke("merchants", "slow").stdout,
        lambda: on_terminal(migrated, "merchants", "slow", NO_COLOR="1", COLUMNS="300"),
    ):
        workers.worker("a").report(HANGS._replace(error=odd, merchant_id=odd), WAITS)
        shown = show()
        assert not {"\x07", "\u202e"} & {*shown}
        assert "\x1b[2J" not in shown
        assert "(a, [bold]b[/bold])" in shown
