"""The measure of a worker on a part of a core: its quota, its stages, and what is judged of it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kombu import Connection

from loadtests.bench import __main__ as bench
from loadtests.bench import filling, slow_merchants
from loadtests.bench.attacks.figures import Cost, Latency
from loadtests.bench.attacks.plays import Load, SteadySize, steady
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.limited import PERIOD, Quota
from loadtests.bench.orders import place_many
from loadtests.bench.servers import Servers
from loadtests.bench.small_core import backlogs, cancelling, largest, measure
from loadtests.bench.small_core.adversaries import ADVERSARIES
from loadtests.bench.small_core.adversary import Adversary, Scene
from loadtests.bench.small_core.core import CORES, Core
from loadtests.bench.small_core.measure import SmallCore
from loadtests.bench.small_core.publishing import Publishing
from loadtests.bench.small_core.report import Played, line
from loadtests.bench.small_core.share import Alone, share
from loadtests.bench.small_core.trio import Seen, Trio
from loadtests.bench.stages import CLAIMED, QUEUED, SENT, STAGES, WHOLE, Stage, stages
from loadtests.bench.waiting import InvalidRunError, wait_until
from loadtests.bench.world import World
from pos_gateway.broker import topology, wire
from pos_gateway.domain.order import ITEMS, MODIFIERS, Order
from pos_gateway.settings import Settings
from testkit.patience import PATIENCE

#: The beginning of the wall clock's times here.
BEGAN = 1_700_000_000.0


def said(order_id: str = "o1", **more: object) -> str:
    """A line of a worker's log: taken 0.1 s after the beginning, its call begun 0.15 s after that."""
    line = {
        "timestamp": "2023-11-14T22:13:20.270000Z",  # 0.27 s after the beginning
        "event": "delivery.attempted",
        "order_id": order_id,
        "attempt": 1,
        "waited_seconds": 0.05,
        "claim_seconds": 0.1,
        "seconds": 0.02,
    }
    return json.dumps({**line, **more})


class TestStages:
    def test_they_make_up_the_whole_way(self) -> None:
        found = {
            each.name: each.p50 for each in stages([said()], {"o1": BEGAN}, {"o1": BEGAN + 0.251})
        }
        expected = dict(zip(STAGES, (0.1, 0.05, 0.1, 0.001, 0.251), strict=True))
        assert found == pytest.approx(expected, abs=1e-6)
        assert sum(found.values()) == pytest.approx(2 * found[WHOLE])

    def test_only_first_attempts_of_orders_that_arrived_count(self) -> None:
        printed = [
            "celery@host ready",
            "[]",
            said(event="breaker.opened"),
            said(attempt=2),
            said("never-arrived"),
            said("not-healthy"),
        ]
        arrived = {"o1": BEGAN + 1, "not-healthy": BEGAN + 1}
        assert stages(printed, {"o1": BEGAN, "never-arrived": BEGAN}, arrived) == []


class TestQuota:
    @pytest.mark.parametrize("version", [1, 2])
    def test_it_is_a_part_of_the_period(self, tmp_path: Path, version: int) -> None:
        if version == 1:
            (tmp_path / "cpu.cfs_quota_us").touch()
        quota = Quota(0.25, version_1=tmp_path, version_2=tmp_path)
        quota.make()
        folder = quota.processes.parent
        written = {each.name: each.read_text() for each in folder.iterdir()}
        assert written == (
            {"cpu.cfs_period_us": str(PERIOD), "cpu.cfs_quota_us": "25000"}
            if version == 1
            else {"cpu.max": f"25000 {PERIOD}"}
        )

    def test_who_may_make_none_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidRunError, match="which root may make"):
            Quota(0.5, version_1=tmp_path / "none", version_2=tmp_path / "none").make()


class TestShare:
    HALF = CORES[1]

    def test_an_order_costs_what_it_took_alone_of_what_healthy_ones_leave(self) -> None:
        alone = Alone(rate=100.0, cpu=0.5, slots=0.5)
        assert alone.could(self.HALF, healthy=0.1) == pytest.approx(80.0)
        assert share(60.0, alone.could(self.HALF, healthy=0.1)) == pytest.approx(0.75)

    def test_no_more_is_possible_than_alone(self) -> None:
        alone = Alone(rate=100.0, cpu=0.2, slots=0.5)
        assert alone.could(self.HALF, healthy=0.1) == 100.0

    def test_where_nothing_is_left_nothing_is_asked(self) -> None:
        for alone in (Alone(100.0, 0.5, 0.5), Alone(0.0, 0.0, 0.0)):
            assert alone.could(self.HALF, healthy=0.6) == 0.0
        assert share(0.0, 0.0) == 1.0

    def test_alone_cpu_or_slots_are_used_up(self) -> None:
        assert Alone(100.0, cpu=0.49, slots=0.3).used(self.HALF) == pytest.approx(0.98)
        assert Alone(100.0, cpu=0.2, slots=0.96).used(self.HALF) == pytest.approx(1.0)


class TestAdversaries:
    def test_each_is_named_once_and_has_merchants_of_its_own(self) -> None:
        assert len({each.name for each in ADVERSARIES}) == len(ADVERSARIES) == 10
        for each in ADVERSARIES:
            spared = [name for name in each.attack.population.merchant_ids if "healthy" in name]
            assert len(spared) == 60
            assert all(map(each.attack.troubles, each.merchant_ids))
            assert not any(map(each.attack.troubles, spared))
            assert set(each.merchant_ids).isdisjoint(spared)

    @pytest.mark.parametrize("core", CORES, ids=str)
    @pytest.mark.parametrize(("merchants", "seconds"), slow_merchants.OTHERS[:2])
    def test_a_backlog_outlasts_a_run(
        self, monkeypatch: pytest.MonkeyPatch, core: Core, merchants: int, seconds: float
    ) -> None:
        queued: list[int] = []
        monkeypatch.setattr(backlogs, "put", lambda _, __, each: queued.append(each))
        adversary = Adversary("it", "", merchants)
        scene = Scene(adversary, core, SteadySize(20, 20, settle=10))
        backlogs.outlasting(seconds)(Mock(), scene)
        slots = WATCHED.slots / seconds
        assert queued[0] * merchants >= 50 * slots * min(1.0, 2 * core.part)

    def test_the_largest_order_is_valid_and_no_byte_shorter_than_allowed(self) -> None:
        placed = largest.largest("order-1", "others-1")
        order = Order.parse_json(placed.json)
        assert len(order.items) == ITEMS
        assert sum(len(item.modifiers) for item in order.items) == MODIFIERS
        body = WATCHED.message(placed).body
        assert len(body) == Settings.model_fields["max_order_bytes"].default
        wire.require_small(body, len(body))


@pytest.mark.parametrize(("rate", "come"), [(1000.0, 3), (0.001, 1)])
def test_orders_come_at_their_rate_until_the_block_is_over(
    servers: Servers, rate: float, come: int
) -> None:
    filling.declare(servers.rabbitmq.url)
    placed = place_many(["m1"] * 3)
    with Connection(servers.rabbitmq.url) as connection:
        topology.orders_queue(connection).purge()
        with Publishing(servers.rabbitmq.url, placed, rate):
            until = time.monotonic() + PATIENCE
            assert wait_until(
                lambda: filling.depth(connection, topology.orders_queue) == come, until
            )
    assert len(list(placed)) == 3 - come


class TestSelection:
    def play(self, monkeypatch: pytest.MonkeyPatch, case: SmallCore, **how: Any) -> list[str]:
        """The scenes that are played, in their order."""
        played: list[str] = []

        def play(_: Any, scene: Scene, *, backwards: bool) -> Trio:
            played.append(f"{scene.core.part:g} {scene.adversary.name} {backwards}")
            raise InvalidRunError("not played")

        monkeypatch.setattr(measure, "play", play)
        rounds = case.measure(Servers(Mock()), **how)
        assert len(case.faults(rounds)) == len(played)
        assert "not played" in case.report(rounds)
        return played

    def test_every_other_round_is_played_backwards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        case = SmallCore(ADVERSARIES[:2], CORES[:2])
        first = [
            f"{part} {name} False" for part in ("0.25", "0.5") for name in ("backlog", "slower")
        ]
        second = [each.replace("False", "True") for each in reversed(first)]
        assert self.play(monkeypatch, case, rounds=2, quick=False) == first + second

    def test_all_are_played_unless_some_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert len(self.play(monkeypatch, SmallCore(), rounds=1, quick=False)) == 30
        quick = self.play(monkeypatch, SmallCore(), rounds=1, quick=True)
        assert quick == [f"0.5 {each.name} False" for each in ADVERSARIES]

    def test_the_command_line_names_some(self) -> None:
        options = bench._parser().parse_args(["--adversaries", "expired,backlog", "--cores", "1"])
        assert [each.name for each in options.adversaries] == ["expired", "backlog"]
        assert options.cores == [CORES[2]]

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            (["--adversaries", "backlog,other"], "--adversaries: 'other' is none of backlog, "),
            (["--cores", "0.75"], "--cores: '0.75' is none of 0.25, 0.5, 1"),
        ],
    )
    def test_a_name_that_is_unknown_is_refused_with_those_that_are_not(
        self, given: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            bench.main(given)
        assert why in capsys.readouterr().err


class TestReport:
    def seen(self, p99: float, missing: int = 0, others: float = 0.0, fault: str = "") -> Seen:
        figures = Latency(
            *(400, 40.0, missing, 0.01, p99, p99, 0.0, Cost(worker=0.1), "nothing"), fault=fault
        )
        where = [Stage(QUEUED, 0.001, p99), Stage(CLAIMED, 0.004, 0.02), Stage(SENT, 0.0, 0.0)]
        return Seen(figures, where, others)

    def trio(self, p99: float = 0.13, others: float = 60.0, **more: Any) -> Trio:
        alone = Alone(more.pop("alone", 100.0), more.pop("cpu", 0.5), 0.5)
        beside = self.seen(p99, others=others, **more)
        return Trio(CORES[1], "it", "an adversary", self.seen(0.08), beside, alone)

    def words(self, *trios: Trio) -> str:
        return line(trios)[-1]

    def test_each_limit_is_judged(self) -> None:
        assert self.words(self.trio(others=48.0)) == "met"
        assert self.words(self.trio(p99=0.131)) == "MISSED: added"
        assert self.words(self.trio(missing=1)) == "MISSED: missing"
        assert self.words(self.trio(others=47.9)) == "MISSED: share"
        assert self.words(self.trio(cpu=0.47)) == "MISSED: used alone"
        assert self.words(self.trio(fault="late")) == "INVALID"

    def test_every_round_has_to_meet_them(self) -> None:
        assert self.words(self.trio(), self.trio(), self.trio(p99=0.2)) == "MISSED: added"

    def test_an_adversary_whose_orders_come_at_a_rate_may_leave_cpu(self) -> None:
        assert self.words(replace(self.trio(cpu=0.2, alone=60.0), at_a_rate=True)) == "met"

    def test_it_shows_limits_rounds_and_stages(self) -> None:
        rounds = [Played([self.trio()]), Played([self.trio(p99=0.2)])]
        shown = SmallCore().report(rounds)
        [row] = [each for each in shown.splitlines() if "an adversary" in each]
        cells = [each.strip() for each in row.split("|")[2:-1]]
        assert cells[:8] == [
            *("10.0", "10.0", "80.0", "165.0", "85.0 (50.0 120.0)", "50", "0 (0 0)", "60")
        ]
        assert cells[8:] == [
            *("80", "0.75 (0.75 0.75)", "100", "1.00 (1.00 1.00)", "MISSED: added")
        ]
        assert "1.0 / 165.0" in shown
        assert "none came" in shown


@pytest.mark.usefixtures("forked")
def test_an_adversary_alone_is_prepared_sent_and_counted(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "REQUESTS", 20)
    before: list[int] = []

    @contextmanager
    def sent(place: World) -> Iterator[None]:
        before.append(cancelling.decided(place))
        with cancelling.requested(place):
            until = time.monotonic() + PATIENCE
            assert wait_until(lambda: cancelling.decided(place) == 20, until)
            yield

    prepared: list[World] = []
    adversary = Adversary(
        "it",
        "",
        cancelling.MERCHANTS,
        prepare=lambda place, _: prepared.append(place),
        send=sent,
        done=cancelling.decided,
    )
    scene, attack = Scene(adversary, CORES[1], SteadySize(0.1, 0.1)), adversary.attack
    trial = Trial(WATCHED, attack.population, attack)
    seen = steady(servers, trial, scene.size, Load(0.0, 0.02), beside=scene)
    assert (len(prepared), before) == (1, [0])
    assert seen.others > 0
    assert seen.scheduled.published == {}
    assert seen.fault == ""
