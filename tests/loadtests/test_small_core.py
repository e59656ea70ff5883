"""The measure of a worker on a part of a core: its quota, its stages, and what is judged of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtests.bench import small_core
from loadtests.bench.attacks.figures import Cost, Latency
from loadtests.bench.attacks.plays import SteadySize
from loadtests.bench.candidate import WATCHED
from loadtests.bench.limited import PERIOD, Quota
from loadtests.bench.small_core import CORES, Seen
from loadtests.bench.stages import CLAIMED, QUEUED, SENT, STAGES, WHOLE, Stage, stages
from loadtests.bench.waiting import InvalidRunError

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


class TestReport:
    def seen(self, core: int, beside: bool, p99: float, missing: int = 0) -> Seen:
        figures = Latency(400, 40.0, missing, 0.01, p99, p99, 0.0, Cost(), "nothing", held=0.3)
        where = [Stage(QUEUED, 0.001, p99), Stage(CLAIMED, 0.004, 0.02), Stage(SENT, 0.0, 0.0)]
        run = small_core.BESIDE if beside else small_core.UNDISTURBED
        return Seen(str(CORES[core]), run, figures, where)

    def words(self, *rounds: Sequence[Seen]) -> list[str]:
        return [each.word for each in small_core.judge(rounds, CORES[1])]

    def test_what_the_others_add_and_every_healthy_order_arejudge(self) -> None:
        alone = self.seen(1, beside=False, p99=0.08)
        assert self.words([alone, self.seen(1, beside=True, p99=0.13)]) == ["met", "met"]
        assert self.words([alone, self.seen(1, beside=True, p99=0.131)]) == ["MISSED", "met"]
        late = self.seen(1, beside=True, p99=0.1, missing=1)
        assert self.words([alone, late]) == ["met", "MISSED"]

    def test_it_shows_stages_and_the_others_orders(self) -> None:
        shown = small_core.report(
            [[self.seen(1, beside=False, p99=0.08), self.seen(1, beside=True, p99=0.5)]]
        )
        assert "60" in shown.split("others' orders/s")[1].split("\n")[3]
        assert "1.0 / 500.0" in shown
        assert "none came" in shown
        assert "0.25 core" not in shown

    def test_the_backlog_outlasts_a_run(self) -> None:
        size = SteadySize(20, 20, settle=10)
        for core in CORES:
            upon = small_core.attack(core, size)
            could = WATCHED.slots * core.part / small_core.SECONDS
            assert upon.backlog * small_core.MERCHANTS >= could * 50
            assert not upon.sifted
