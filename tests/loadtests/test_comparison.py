"""The gateway beside what a user would pick instead: messages, memory, verdicts and charts."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtests import baselines
from loadtests.bench import (
    bursts,
    charts,
    holding,
    one_hangs,
    orders,
    overhead,
    slow_merchants,
    steady,
)
from loadtests.bench.__main__ import main
from loadtests.bench.attacks.comparison import UNDISTURBED
from loadtests.bench.attacks.figures import Cost, Latency
from loadtests.bench.attacks.plays import SteadySize
from loadtests.bench.bench import COMPARISON, Bench
from loadtests.bench.bursts import Burst
from loadtests.bench.candidate import (
    ASYNCIO,
    BY_NAME,
    DRAMATIQ,
    OURS,
    PLAIN,
    WATCHED,
    RivalMissingError,
)
from loadtests.bench.cases import CASES
from loadtests.bench.holding import Weight
from loadtests.bench.observing import PERIOD, Scraping, held
from loadtests.bench.one_hangs import ATTACK, ATTACKED, LOAD, ONE_HANGS
from loadtests.bench.overhead import Added, Overhead, added
from loadtests.bench.report import Verdict
from loadtests.bench.servers import Servers
from loadtests.bench.slow_merchants import SLOW_MERCHANTS
from testkit.servers.process import free_port

MIB = 2**20


class TestTheMessages:
    [PLACED] = orders.place_many(["healthy-1"])
    ORDER = json.loads(PLACED.json)

    def test_every_candidate_gets_the_same_order_from_the_same_queue(self) -> None:
        for candidate in BY_NAME.values():
            message = candidate.message(self.PLACED)
            assert message.routing_key == "orders"
            assert self.PLACED.json in message.body or candidate is DRAMATIQ

    def test_celery_is_asked_for_its_own_task(self) -> None:
        ours, plain = OURS.message(self.PLACED), PLAIN.message(self.PLACED)
        assert plain.body == ours.body
        assert plain.headers == {**ours.headers, "task": baselines.TASK}

    def test_dramatiq_gets_its_envelope(self) -> None:
        envelope = json.loads(DRAMATIQ.message(self.PLACED).body)
        assert envelope["args"] == [self.ORDER]
        assert (envelope["queue_name"], envelope["actor_name"]) == ("orders", baselines.ACTOR)
        assert envelope.keys() == {
            *("queue_name", "actor_name", "args", "kwargs", "options"),
            *("message_id", "message_timestamp"),
        }

    def test_asyncio_gets_the_order_alone(self) -> None:
        assert json.loads(ASYNCIO.message(self.PLACED).body) == self.ORDER


class TestAPackageThatIsMissing:
    MISSING = replace(OURS, name="rival", needs=("json", "no_such_package"))

    def test_is_named_with_what_would_do(self) -> None:
        with pytest.raises(RivalMissingError, match="rival needs no_such_package: `make bench`"):
            self.MISSING.check()

    def test_ends_the_benchmark_before_it_begins(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(one_hangs, "RIVALS", (self.MISSING,))
        affinity = os.sched_getaffinity(0)
        try:
            assert main(["--only", ONE_HANGS.NAME]) == 1
        finally:
            os.sched_setaffinity(0, affinity)
        assert "requirements-bench.txt" in capsys.readouterr().err

    def test_is_not_missed_where_it_does_not_play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(one_hangs, "RIVALS", (self.MISSING,))
        quick, whole = (Bench([ONE_HANGS.NAME], None, quick=quick) for quick in (True, False))
        with pytest.raises(RivalMissingError):
            whole.check()
        quick.check()


class TestTheMemory:
    ALLOCATE = "x = bytearray(64 * 2**20); x[::4096] = b'x' * len(x[::4096])"

    @contextmanager
    def parent_and_child(self, first: str, then: str) -> Iterator[int]:
        """A process that does something, forks, and does something more in the child."""
        code = (
            f"import os; {first}\nif not os.fork():\n    {then}\nprint(flush=True); os.read(0, 1)"
        )
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            for _ in range(2):
                process.stdout.readline()
            yield process.pid
            process.communicate(b"xx")

    def test_what_a_child_takes_counts(self) -> None:
        with self.parent_and_child("pass", self.ALLOCATE) as pid:
            alone = psutil.Process(pid).memory_info().rss / MIB
            assert held(pid) > alone + 64

    def test_what_both_share_counts_once(self) -> None:
        with self.parent_and_child(self.ALLOCATE, "pass") as pid:
            alone = psutil.Process(pid).memory_info().rss / MIB
            assert alone > 64
            assert held(pid) < alone + 32


class TestTheScraping:
    @pytest.fixture
    def asked(self) -> Iterator[tuple[int, list[str]]]:
        """A port, and what it is asked for."""
        paths: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                paths.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            yield server.server_port, paths
            server.shutdown()
            thread.join()

    def test_it_asks_now_and_then(self, asked: tuple[int, list[str]]) -> None:
        (port, paths), now = asked, [0.0]
        scraping = Scraping(port, lambda: now[0])
        for moment in (0.0, PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD):
            now[0] = moment
            scraping.look()
        assert paths == ["/metrics", "/metrics"]

    def test_it_waits_for_a_worker_that_starts_without_a_prompt(
        self, asked: tuple[int, list[str]]
    ) -> None:
        for port in (0, free_port()):
            now = [0.0]
            scraping = Scraping(port, lambda now=now: now[0])  # type: ignore[misc]
            now[0] = PERIOD
            scraping.look()
        assert asked[1] == []


def latency(p99: float, **figures: Any) -> Latency:
    nothing = Cost()
    plain = Latency(900, 100.0, 0, 0.005, p99, 2 * p99, 0.001, nothing, "nothing")
    return replace(plain, **figures)


class TestOneThatHangs:
    @staticmethod
    def round(calm: float, hit: float, **figures: Any) -> dict[str, Latency]:
        return {UNDISTURBED: latency(calm), ATTACKED: latency(hit, **figures)}

    def test_a_ratio_is_taken_within_each_round(self) -> None:
        rounds = [self.round(0.01, 0.0105), self.round(0.02, 0.021), self.round(0.01, 0.02)]
        [verdict] = ONE_HANGS.judge(rounds)
        assert verdict.values == pytest.approx([1.05, 1.05, 2.0])
        assert verdict.word == "met"

    def test_a_round_that_says_nothing_is_left_out_and_named(self) -> None:
        rounds = [self.round(0.01, 0.01), self.round(0.01, 0.5, fault="the producer fell behind")]
        assert ONE_HANGS.faults(rounds) == ["the producer fell behind"]
        assert ONE_HANGS.judge(rounds)[0].values == [1.0]
        assert "Invalid: the producer fell behind." in ONE_HANGS.report(rounds)

    def test_the_rivals_have_their_lines(self) -> None:
        played = {**self.round(0.01, 0.01), "plain Celery, one hangs": latency(21.0)}
        shown = ONE_HANGS.report([played, self.round(0.01, 0.01)])
        assert "plain Celery, one hangs" in shown
        assert "21,000" in shown

    def test_the_one_that_hangs_asks_for_more_slots_than_there_are(self) -> None:
        assert ATTACK.timeout is not None
        [group] = [group for group in ATTACK.population.groups if group.name in ATTACK.troubled]
        assert LOAD.rate * group.share * ATTACK.timeout > OURS.slots


class TestMerchantsThatAreSlow:
    CROWD = "100 at 1 s"

    def judge(self, *hits: Latency) -> list[Verdict]:
        return SLOW_MERCHANTS.judge([{UNDISTURBED: latency(0.01), self.CROWD: hit} for hit in hits])

    def test_what_they_add_is_judged_in_milliseconds_and_no_order_may_be_missing(self) -> None:
        hits = [latency(p99, held=0.9) for p99 in (0.025, 0.035, 0.02)]
        judged = self.judge(*hits[:2], replace(hits[2], missing=3))
        assert judged[0].values == pytest.approx([15.0, 25.0, 10.0])
        assert [each.word for each in judged] == ["met"] * 3
        late = self.judge(latency(0.031, missing=1, held=0.9))
        assert [each.word for each in late] == ["MISSED", "MISSED", "met"]

    @pytest.mark.parametrize(("merchants", "seconds"), slow_merchants.OTHERS)
    def test_their_backlog_outlasts_a_run(self, merchants: int, seconds: float) -> None:
        size = SteadySize(5, 20)
        upon = slow_merchants.attack(merchants, seconds, size)
        work = upon.backlog * merchants * seconds / OURS.slots
        assert work > size.warm_up + size.measured + size.settle


class TestBursts:
    def test_the_merchants_own_time_and_a_quarter_and_a_second_may_pass(self) -> None:
        burst = Burst(500, 0.2, 10)
        assert (burst.work, burst.wanted) == (10.0, 13.5)
        played = [{burst.name: seconds} for seconds in (13.0, 13.5, 99.0)]
        assert bursts.judge(played, burst).word == "met"
        assert bursts.judge(played[2:], burst).word == "MISSED"


class TestWhatTheGatewayAdds:
    def test_the_merchants_own_time_is_left_out(self) -> None:
        published = {f"o{number}": float(number) for number in range(100)}
        reached = {order_id: at + 0.4 + 0.001 * at for order_id, at in published.items()}
        p50, p99 = added(published, reached, 0.4)
        assert (p50, p99) == (pytest.approx(49), pytest.approx(98))

    def test_the_outcome_is_what_counts(self) -> None:
        one = Added(300.0, 0.6, 0.01, (4.0, 9.0), (7.0, 12.0), (20.0, 31.0))
        late, disturbed = replace(one, to_outcome=(8.1, 12.0)), replace(one, waited=0.2)
        assert overhead.judge(Overhead([one])).word == "met"
        assert overhead.judge(Overhead([late])).word == "MISSED"
        assert overhead.judge(Overhead([disturbed])).word == "met (doubtful)"

    def test_a_round_whose_events_did_not_come_says_nothing(self) -> None:
        shown = overhead.report(Overhead([], ["8,945 of 18,000 events came"]))
        assert "INVALID" in shown
        assert "Invalid: 8,945 of 18,000 events came." in shown


class TestWhatAWorkerHolds:
    def test_the_gateways_weight_is_judged(self) -> None:
        rounds = [[Weight("gateway", 119.0, 225, 2025), Weight("plain Celery", 300.0, 200, 600)]]
        shown = holding.report(rounds)
        assert "met" in shown
        assert "MISSED" not in shown

    def test_what_it_holds_between_two_waves_does_not_count(self) -> None:
        moments = [(110.0, 200, 2050), (118.0, 225, 2025), (119.0, 20, 2100)]
        assert holding.heaviest(moments) == (118.0, 225, 2025)
        assert holding.heaviest([(250.0, 10, 446)]) is None

    def test_its_window_has_as_many_as_are_asked_for(self) -> None:
        assert holding.SLOTS >= holding.IN_FLIGHT
        assert 9 * holding.SLOTS >= holding.WAITING


class TestTheSteadyRate:
    @staticmethod
    def a_round(worker: float, plain: float, idle: float) -> steady.Round:
        ours = steady.Seen("gateway, PostgreSQL", 100.0, worker, 0.5, 0.4, "nothing")
        theirs = steady.Seen("plain Celery", 100.0, plain, 0.5, 0.0, "nothing")
        return steady.Round([ours, theirs], {"gateway, PostgreSQL": idle})

    def test_the_worker_alone_its_stores_and_the_rival_are_judged(self) -> None:
        shown = steady.report([self.a_round(1.1, 1.2, 0.9)])
        assert (
            "| 100      | gateway, PostgreSQL |   1.10 |     0.50 |       0.40 |   2.00 |" in shown
        )
        assert (shown.count(" met "), "MISSED" in shown) == (4, False)
        missed = steady.report([self.a_round(1.4, 1.2, 1.1)])
        assert (missed.count(" met "), missed.count("MISSED")) == (0, 4)

    def test_a_round_whose_orders_came_late_says_so(self) -> None:
        late = self.a_round(1.0, 1.2, 0.9)
        faulty = replace(late.seen[0], fault="the producer fell behind its schedule")
        rounds = [replace(late, seen=[faulty])]
        assert steady.faults(rounds) == ["the producer fell behind its schedule"]
        assert "Invalid: the producer fell behind its schedule." in steady.report(rounds)


class TestTheCharts:
    @staticmethod
    def figures() -> dict[str, Any]:
        def result(entry: str, rate: float) -> dict[str, Any]:
            return {"entry": entry, "rate": rate, "cpu_ms": 1000 / rate, "of_slots": rate / 1000}

        rounds = [[result("gateway", 900.0 + turn), result("plain", 700.0)] for turn in range(3)]
        p99 = [
            {"gateway": {"p99": 0.01}, "plain Celery": {"p99": 20.0}},
            {"gateway": {"p99": 0.02}},
        ]
        return {"cases": {"20ms": rounds, "200ms": rounds}, ONE_HANGS.NAME: p99}

    def test_there_is_one_for_each_case_that_was_played(self, tmp_path: Path) -> None:
        written = tmp_path / "bench.json"
        written.write_text(json.dumps(self.figures()))
        charts.main([str(written), str(tmp_path / "images")])
        drawn = {path.name: path.read_text() for path in (tmp_path / "images").iterdir()}
        assert drawn.keys() == {"cpu.svg", "slots.svg", "one-hangs.svg"}
        assert all(text.rstrip().endswith("</svg>") for text in drawn.values())

    def test_what_was_not_played_has_none(self, tmp_path: Path) -> None:
        charts.draw({"cases": {}}, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_the_same_figures_make_the_same_file(self, tmp_path: Path) -> None:
        for folder in ("one", "other"):
            charts.draw(self.figures(), tmp_path / folder)
        texts = [(tmp_path / folder / "cpu.svg").read_text() for folder in ("one", "other")]
        assert texts[0] == texts[1]

    def test_bars_are_by_name_with_every_round(self) -> None:
        figures = self.figures()
        assert charts.of_entries(figures["cases"]["20ms"], "rate") == {
            "gateway": [900.0, 901.0, 902.0],
            "plain": [700.0] * 3,
        }
        assert charts.of_latencies(figures[ONE_HANGS.NAME]) == {
            "gateway": [0.01, 0.02],
            "plain Celery": [20.0],
        }


def test_the_comparison_is_what_is_played_unless_told_otherwise() -> None:
    assert [
        *(case.name for case in CASES),
        *(ONE_HANGS.NAME, overhead.NAME, SLOW_MERCHANTS.NAME, bursts.NAME, holding.NAME),
        steady.NAME,
    ] == COMPARISON


def test_a_worker_that_holds_all_it_may_is_weighed(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may hold a fifth."""
    few = replace(WATCHED, slots=45, settings={"POS_GATEWAY_SLOTS": "45"})
    sizes = {"_CANDIDATES": (few,), "IN_FLIGHT": 40, "WAITING": 400, "_ORDERS": 800}
    for name, value in sizes.items():
        monkeypatch.setattr(holding, name, value)
    [[weight]] = holding.measure(servers, 1, quick=True)
    assert weight.candidate == WATCHED.name
    assert weight.in_flight >= holding.IN_FLIGHT
    assert weight.waiting >= holding.WAITING
    assert weight.mib > 20
