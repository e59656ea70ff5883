"""The benchmark: what it computes, and that it measures what happens.

Nothing here asserts on how fast anything was: a figure of a busy machine says nothing.
"""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtests.bench import filling, orders
from loadtests.bench.__main__ import main
from loadtests.bench.accounting import account
from loadtests.bench.attacks.attack import Group, Population
from loadtests.bench.attacks.figures import LAST, Cost, Window, limited_by, window
from loadtests.bench.candidate import OURS, PLAIN, PREFORK, THREADS, WATCHED
from loadtests.bench.cases import (
    CASES,
    FIGURES,
    FIRST,
    Case,
    Entry,
    Result,
    Target,
    judge,
    report,
    run,
)
from loadtests.bench.gauge import LEFT, MACHINE, WAITED, Gauge, Reading, used_between
from loadtests.bench.micro.cases import MICROS
from loadtests.bench.report import table
from loadtests.bench.servers import Servers
from loadtests.bench.worker import Worker, WorkerEndedError
from pos_gateway.domain.order import Order
from testkit.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
FEW = Population((Group("healthy", 20, 1.0),), orders=0, quick_orders=0)


def entry(candidate: Any = OURS, number: int = 200) -> Entry:
    return Entry("it", candidate, 0.02, number, PATIENCE, number, PATIENCE, FEW)


def result(**figures: Any) -> Result:
    plain = Result(
        *(100, 1.0, True, 100.0, 0.5, Cost(), "its CPU", 5000.0),
        entry="it",
        of_slots=0.5,
        memory=100.0,
        unfinished=False,
    )
    return replace(plain, **figures)


def event(order_id: str, kind: str = "order.accepted") -> dict[str, Any]:
    return {"order_id": order_id, "type": kind}


def record(order_id: str, *, creates: int = 1, requests: int = 1) -> dict[str, Any]:
    return {"order_id": order_id, "creates": creates, "requests": requests}


def test_a_worker_is_given_a_core_of_those_that_we_may_use() -> None:
    core = min(os.sched_getaffinity(0))
    program = (
        "from loadtests.bench.cores import *; keep_off_the_workers_core(); "
        "print(*left_cores(), *on_the_workers_core(['it']))"
    )
    command = ["taskset", "--cpu-list", str(core), sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{core} it\n"


def test_where_nothing_is_pinned_all_cores_are_used_in_the_block_alone() -> None:
    program = (
        "from loadtests.bench.cores import *; keep_off_the_workers_core(); import os\n"
        "before = os.sched_getaffinity(0)\n"
        "with nothing_pinned(): print(*sorted(os.sched_getaffinity(0)))\n"
        "assert os.sched_getaffinity(0) == before == left_cores()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(core) for core in sorted(os.sched_getaffinity(0))]


class TestTheWindow:
    def test_start_up_and_stragglers_are_left_out(self) -> None:
        slow_start = [0.0] * 9
        steady = [10 + number / 100 for number in range(81)]
        stragglers = [50.0 + number for number in range(10)]
        arrivals = slow_start + steady + stragglers
        for times in (arrivals, arrivals[::-1]):
            measured = window(times, planned=100, ended=99.0, first=FIRST)
            assert measured == Window(start=10.0, end=10.8, orders=80, complete=True)
            assert measured.rate == pytest.approx(100)

    def test_a_worker_that_stops_after_a_burst_is_measured_until_time_is_up(self) -> None:
        burst = [number / 1000 for number in range(200)]
        measured = window(burst, planned=1000, ended=20.099, first=FIRST)
        assert measured is not None
        assert not measured.complete
        assert measured.rate == pytest.approx(100 / 20)

    def test_without_even_a_tenth_it_begins_with_the_first_order(self) -> None:
        measured = window([5.0, 6.0, 7.0], planned=1000, ended=8.0, first=FIRST)
        assert measured == Window(start=5.0, end=8.0, orders=2, complete=False)

    def test_it_begins_with_the_trouble(self) -> None:
        arrivals = [number / 10 for number in range(100)]
        assert window(arrivals, 100, 20.0, struck=5.0) == Window(5.0, 8.9, 39, True)
        assert window(arrivals, 100, 20.0) == Window(1.9, 8.9, 70, True)
        assert window(arrivals[:50], 100, 20.0, struck=4.5) == Window(4.5, 20.0, 4, False)

    @pytest.mark.parametrize("arrivals", [[], [1.0], [1.0, 1.0]])
    def test_there_may_be_nothing_to_measure(self, arrivals: list[float]) -> None:
        assert window(arrivals, planned=2, ended=1.0) is None


class TestTheGauge:
    def test_between_two_readings_the_use_is_taken_as_even(self) -> None:
        readings = [
            Reading(0.0, {"worker": 10.0}),
            Reading(2.0, {"worker": 11.0}),
            Reading(4.0, {"worker": 15.0}),
        ]
        assert used_between(readings, 1.0, 3.0) == {"worker": pytest.approx(2.5)}

    def test_outside_the_readings_nothing_is_made_up(self) -> None:
        readings = [Reading(1.0, {"worker": 1.0}), Reading(2.0, {"worker": 3.0})]
        assert used_between(readings, 0.0, 9.0) == {"worker": pytest.approx(2.0)}
        assert used_between([], 0.0, 9.0) == {}

    def test_the_work_of_children_counts(self) -> None:
        work = "sum(range(5 * 10**6)); print(flush=True); input()"
        command = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, "-c", command], stdin=pipe, stdout=pipe) as parent:
            assert parent.stdout is not None
            parent.stdout.readline()  # the child has done its work
            with Gauge({"parent": parent.pid}, waiting="parent") as gauge:
                alone = psutil.Process(parent.pid).cpu_times()
            parent.communicate(b"\n")
        used = gauge.readings[-1].used
        assert used.keys() == {MACHINE, LEFT, WAITED, "parent"}
        assert used["parent"] > alone.user + alone.system


class TestWhatLimitedARun:
    @staticmethod
    def limit(candidate: Any = OURS, rate: float = 500.0, **shares: float) -> str:
        return limited_by(candidate, 0.2, rate, replace(Cost(worker=0.5, simulator=0.3), **shares))

    def test_a_busy_simulator_is_named_before_all(self) -> None:
        assert self.limit(simulator=0.95, worker=0.99) == "SIMULATOR"

    def test_the_slots_are_when_they_are_all_taken(self) -> None:
        assert self.limit(rate=950.0, worker=0.9) == "its 200 slots"

    def test_a_worker_without_a_core_of_its_own_is_told_from_a_slow_one(self) -> None:
        assert self.limit(worker=0.8, waited=0.2) == "CORES (shared)"
        assert self.limit(worker=0.95, waited=0.02) == "its CPU"

    def test_a_worker_that_uses_nothing_waits(self) -> None:
        assert self.limit(PLAIN, rate=10.0, worker=0.05) == "its waiting"


class TestTheAccounts:
    def test_one_create_and_one_event_each_add_up(self) -> None:
        accounting = account(["a", "b"], [record("a"), record("b")], [event("a"), event("b")])
        assert accounting.adds_up
        assert str(accounting) == "2 orders, 2 events: adds up"

    @pytest.mark.parametrize(
        ("records", "events", "fault"),
        [
            ([], [event("a")], "1 never created"),
            ([record("a", creates=2)], [event("a")], "1 created twice"),
            ([record("a")], [], "1 without an event"),
            ([record("a")], [event("a", "order.pending")], "1 without an event"),
            ([record("a")], [event("a"), event("a", "order.failed")], "1 events too many"),
        ],
    )
    def test_every_fault_is_named(
        self, records: list[dict[str, Any]], events: list[dict[str, Any]], fault: str
    ) -> None:
        accounting = account(["a"], records, events)
        assert not accounting.adds_up
        assert fault in str(accounting)

    def test_an_order_that_was_sent_again_with_its_key_adds_up_and_shows(self) -> None:
        accounting = account(["a"], [record("a", requests=2)], [event("a")])
        assert accounting.adds_up
        assert "1 sent again" in str(accounting)

    def test_orders_of_others_are_left_out(self) -> None:
        assert account(["a"], [record("a"), record("x")], [event("a"), event("x")]).adds_up


class TestTheReport:
    CASE = Case("c", "A case", (replace(entry(), name="ours"), replace(entry(), name="plain")))

    def test_a_ratio_is_taken_within_each_round_before_the_median(self) -> None:
        # The machine was half as fast in the second round: the ratio has not changed.
        rounds = [
            {"ours": result(rate=800.0), "plain": result(rate=1000.0)},
            {"ours": result(rate=400.0), "plain": result(rate=500.0)},
            {"ours": result(rate=900.0), "plain": result(rate=1000.0)},
        ]
        target = Target("ours", "plain", at_least=0.85)
        assert judge(target, rounds).values == pytest.approx([0.8, 0.8, 0.9])
        shown = report(replace(self.CASE, targets=(target,)), rounds)
        assert "0.80 0.80 0.90" in shown
        assert "MISSED" in shown

    def test_a_target_that_is_met_says_so(self) -> None:
        rounds = [{"ours": result(rate=1200.0), "plain": result()}]
        shown = report(replace(self.CASE, targets=(Target("ours", at_least=1000),)), rounds)
        assert ">= 1,000" in shown
        assert "met" in shown

    def test_a_figure_may_be_wanted_small(self) -> None:
        rounds = [{"ours": result(cpu_ms=0.5), "plain": result(cpu_ms=1.0)}]
        for target, word in (
            (Target("ours", figure="cpu_ms", at_most=0.6), "met"),
            (Target("ours", figure="cpu_ms", at_most=0.4), "MISSED"),
            (Target("ours", "plain", figure="cpu_ms", at_most=0.5), "met"),
            (Target("ours", "plain", figure="per_mib"), ""),
        ):
            assert judge(target, rounds).word == word

    def test_a_quick_run_leaves_entries_out_and_what_is_said_of_them(self) -> None:
        entries = (self.CASE.entries[0], replace(self.CASE.entries[1], quick_orders=0))
        targets = (Target("ours"), Target("ours", "plain"))
        case = replace(self.CASE, entries=entries, targets=targets)
        assert case.of_size(quick=False) == case
        assert case.of_size(quick=True).entries == entries[:1]
        assert case.of_size(quick=True).targets == targets[:1]

    def test_a_run_that_could_not_be_accounted_for_is_named(self) -> None:
        rounds = [{"ours": result(unfinished=True, complete=False), "plain": result()}]
        shown = report(self.CASE, rounds)
        assert "Not accounted for" in shown
        assert "(time was up)" in shown

    def test_a_table_is_markdown_with_figures_to_the_right(self) -> None:
        assert table(("", "orders/s"), [["gateway", "12"], ["plain", "1,234"]]).splitlines() == [
            "|         | orders/s |",
            "|---------|---------:|",
            "| gateway |       12 |",
            "| plain   |    1,234 |",
        ]

    def test_every_target_is_about_an_entry_of_its_case(self) -> None:
        for case in CASES:
            names = {each.name for each in case.entries}
            for target in case.targets:
                assert {target.entry, target.against or target.entry} <= names
                assert target.figure in FIGURES
                assert hasattr(result(), target.figure)

    def test_where_the_slots_are_the_limit_whole_waves_are_measured(self) -> None:
        for case in CASES[1:]:
            for each in case.entries:
                for number in filter(None, (each.orders, each.quick_orders)):
                    assert number * (LAST - FIRST) % each.candidate.slots == pytest.approx(0)


class TestTheOrders:
    def test_an_order_is_a_valid_one(self) -> None:
        [placed] = orders.place_many(["healthy-1"])
        order = Order.parse_json(placed.json)
        assert (order.order_id, order.merchant_id) == ("order-0", "healthy-1")

    def test_the_merchants_have_as_many_each_and_in_no_pattern(self) -> None:
        ids = orders.spread(900, ["a", "b", "c"])
        assert {each: ids.count(each) for each in ("a", "b", "c")} == {"a": 300, "b": 300, "c": 300}
        assert ids[:6] != ["a", "b", "c"] * 2

    def test_everybody_gets_the_same_sequence(self) -> None:
        assert orders.spread(50, ["a", "b"]) == orders.spread(50, ["a", "b"])

    def test_orders_that_follow_others_are_numbered_on(self) -> None:
        assert [order.order_id for order in orders.place_many("ab", first=7)] == [
            "order-7",
            "order-8",
        ]


class TestForReal:
    def test_a_run_accounts_for_every_order_of_the_gateway(self, servers: Servers) -> None:
        measured = run(servers, entry(WATCHED, number=300), quick=True)
        assert measured.accounting is not None
        assert (measured.accounting.orders, measured.accounting.events) == (300, 300)
        assert measured.memory > 20
        assert min(measured.cost.worker, measured.cost.simulator, measured.cost.postgresql) > 0

    @pytest.mark.parametrize("candidate", [PLAIN, THREADS, PREFORK], ids=lambda each: each.name)
    def test_plain_celery_takes_the_same_orders(self, servers: Servers, candidate: Any) -> None:
        measured = run(servers, entry(candidate, number=300), quick=True)
        assert measured.complete
        assert measured.accounting is None

    def test_a_queue_that_was_not_empty_is_noticed(self, broker_url: str) -> None:
        message = OURS.message(next(orders.place_many(["healthy-0"])))
        assert filling.fill(broker_url, [message] * 3) > 0
        with pytest.raises(filling.QueueNotFilledError, match="holds 4"):
            filling.fill(broker_url, [message], patience=0.2)

    def test_a_worker_that_does_not_start_ends_the_run_with_what_it_said(
        self, tmp_path: Path
    ) -> None:
        worker = Worker(["-m", "celery", "-A", "no_such_module", "worker"], {}, tmp_path)
        with worker, pytest.raises(WorkerEndedError, match="no_such_module"):
            while True:
                worker.check()

    def test_the_command_line_names_the_cases(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["--only", "nonsense"])
        assert "hanging" in capsys.readouterr().err


class TestMicroBenchmarks:
    def test_figures_are_compared_within_each_round(self) -> None:
        [exchange] = [each for each in MICROS if each.NAME == "exchange"]
        rounds = [{"gateway": 0.05, "requests": 0.1}, {"gateway": 0.15, "requests": 0.3}]
        shown = exchange.report(rounds)
        assert re.search(r"gateway +\| +0\.100 \| +0\.050 0\.150 \| +<= 0\.120 \| +met \|", shown)
        assert re.search(r"gateway / requests +\| +0\.50 \| +0\.50 0\.50 \|", shown)

    @pytest.mark.parametrize("case", ["logging", "tracing"])
    def test_a_case_plays_its_rounds_in_a_patched_process(
        self, servers: Servers, case: str
    ) -> None:
        [micro] = [each for each in MICROS if case == each.NAME]
        rounds = replace(micro, sizes={True: (20, 2)}).measure(servers, 1, quick=True)
        assert len(rounds) == 2
        assert all(figure >= 0 for figure in rounds[0].values())
        assert set(micro.at_most) <= rounds[0].keys()
