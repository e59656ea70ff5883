"""The benchmark's attacks: what they compute, and that they measure what happens.

Nothing here asserts on how fast anything was: a figure of a busy machine says nothing.
"""

import math
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from kombu import Connection, Queue
from kombu.transport.native_delayed_delivery import (
    CELERY_DELAYED_DELIVERY_EXCHANGE,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from loadtests.bench import catalogue, filling
from loadtests.bench.attacks import bout as bouts
from loadtests.bench.attacks import plays
from loadtests.bench.attacks.attack import ATTACKS, THOUSAND, Attack, Group, Population, group_of
from loadtests.bench.attacks.backlog import (
    FIRST_ORDER,
    RECOVERED_AFTER,
    Backlog,
    BacklogSize,
    busiest,
    full_since,
    made_between,
    play_backlog,
)
from loadtests.bench.attacks.backlog import judge as judge_backlog
from loadtests.bench.attacks.backlog import report as backlog_report
from loadtests.bench.attacks.bout import Bout, Pair, judge, report
from loadtests.bench.attacks.figures import (
    Cost,
    Latency,
    Throughput,
    disturbed_by,
    latency,
    throughput,
)
from loadtests.bench.attacks.plays import (
    PROBE,
    SHARE,
    Load,
    Observation,
    SteadySize,
    full_queue,
    steady,
)
from loadtests.bench.attacks.producer import Production, Schedule, lateness
from loadtests.bench.attacks.series import series, slots, steps, summed
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.bench import LETTERS, NAMES
from loadtests.bench.candidate import OURS, PLAIN
from loadtests.bench.catalogue import HOSTILE
from loadtests.bench.gauge import Reading
from loadtests.bench.report import Verdict
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import wait_until
from pos_gateway.domain.merchant import Merchant
from pos_gateway.simulated_merchants.profiles import parse_profile
from testkit.hostile.catalogue import CATALOGUE
from testkit.hostile.client import HostilePeers
from testkit.patience import PATIENCE

FEW = Population((Group("ill", 1, 0.1), Group("healthy", 20, 0.9)), orders=1000, quick_orders=300)
ONE_ILL = Attack("ill", "x", "one is ill", FEW, troubled=("ill",), mid_run=False)
IN_MID_RUN = replace(ONE_ILL, mid_run=True)

FREE = Cost(
    worker=0.5, waited=0.0, simulator=0.1, rabbitmq=0.3, postgresql=0.1, machine=1.0, producer=0.1
)
FAST = Throughput(100, 1.0, True, 1000.0, 0.7, FREE, "its CPU", 9000.0)
PROMPT = Latency(100, 600.0, 0, 0.010, 0.020, 0.030, 0.001, FREE, "nothing")


def attack(letter: str) -> Attack:
    [found] = [each for each in ATTACKS if each.letter == letter]
    return found


def troubled(letter: str) -> list[str]:
    it = attack(letter)
    return [each for each in it.population.merchant_ids if it.troubles(each)]


def seen(*orders: tuple[str, float | None], **more: Any) -> Observation:
    """A run of orders: their merchants and the moments at which they arrived."""
    given: dict[str, Any] = {
        "trial": Trial(OURS, FEW, ONE_ILL),
        "merchant_of": {f"order-{n}": merchant for n, (merchant, _) in enumerate(orders)},
        "arrived": {f"order-{n}": at for n, (_, at) in enumerate(orders) if at is not None},
        "readings": [Reading(0.0, {"worker": 0.0}), Reading(100.0, {"worker": 50.0})],
        "began": 0.0,
        "ended": 100.0,
        "struck": None,
        "levels": {},
        **more,
    }
    return Observation(**given)


def bout(candidate: str = OURS.name, rate: float = 1000.0, p99: float = 0.020, **more: Any) -> Bout:
    attacked = replace(PROMPT, p99=p99, **more)
    return Bout(candidate, Pair(FAST, replace(FAST, rate=rate)), Pair(PROMPT, attacked))


class TestTheAttacks:
    def test_each_has_a_name_and_a_letter_of_its_own(self) -> None:
        assert sorted(LETTERS) == ["a", "b", "c", "d", "e", "f"]
        assert len(set(NAMES)) == len(NAMES)

    @pytest.mark.parametrize(
        ("letter", "in_trouble", "of"),
        [("a", 1, 201), ("b", 100, 1000), ("c", 300, 1000), ("e", 1, 201), ("f", 500, 1000)],
    )
    def test_as_many_merchants_get_into_trouble_as_the_title_says(
        self, letter: str, in_trouble: int, of: int
    ) -> None:
        assert len(troubled(letter)) == in_trouble
        assert len(attack(letter).population.merchant_ids) == of

    def test_one_provider_has_all_merchants_that_hang_with_it_and_no_others(self) -> None:
        agreed = attack("c").terms
        owners = {each for each in troubled("c") if agreed[group_of(each)]["provider"] == "vendor"}
        assert len(owners) == 300
        assert not any(agreed[group.name] for group in THOUSAND.groups if group.name != "vendor")

    def test_the_one_that_is_always_just_in_time_has_a_limit_of_five_seconds(self) -> None:
        assert attack("e").terms["busy"]["request_timeout"] == 5.0
        assert "request_timeout" not in attack("a").terms["busy"]

    def test_those_that_flap_hang_first_and_from_the_moment_on_that_they_are_told(self) -> None:
        profile = attack("f").profile_at(1000.0, 0.2)
        assert (profile["since"], profile["every"]) == (1000.0, 10.0)
        assert profile["alternate"] == [{"kind": "hang"}, {"kind": "accept", "latency": 0.2}]

    @pytest.mark.parametrize("it", ATTACKS, ids=lambda it: it.name)
    def test_merchants_can_play_it_and_the_gateway_can_store_them(self, it: Attack) -> None:
        parse_profile("custom", it.profile_at(0.0, 0.2))
        for group, terms in it.terms.items():
            Merchant.parse({"id": group, "base_url": "http://pos.example.com", **terms})

    def test_a_group_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ValueError, match="no such group: unknown"):
            replace(ONE_ILL, troubled=("unknown",))


class TestThePopulation:
    def test_orders_are_shared_out_by_group_and_evenly_within_it(self) -> None:
        whose = FEW.whose(200)
        assert whose.count("ill-0") == 20
        assert {whose.count(f"healthy-{number}") for number in range(20)} == {9}

    def test_everybody_gets_the_same_sequence_in_no_pattern(self) -> None:
        assert FEW.whose(200) == FEW.whose(200)
        assert FEW.whose(200) != sorted(FEW.whose(200))

    def test_shares_that_do_not_make_up_the_whole_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"must make up 1 \(got 0\.9\)"):
            Population((Group("healthy", 1, 0.9),), 1, 1)


class TestTheSchedule:
    def test_orders_come_at_an_even_pace(self) -> None:
        schedule = Schedule(600.0, 0.7)
        assert schedule.orders == 420
        assert [schedule.due(number) for number in (0, 1, 300)] == [0.0, 1 / 600, 0.5]

    def test_one_late_order_in_a_hundred_does_not_make_a_producer_that_fell_behind(self) -> None:
        schedule = Schedule(10.0, 20.0)
        times = [100 + schedule.due(number) for number in range(200)]
        times[7] += 5.0
        assert lateness(schedule, 100.0, times) == pytest.approx(0.0, abs=1e-6)
        times[8:11] = [each + 0.2 for each in times[8:11]]
        late = lateness(schedule, 100.0, times)
        assert late == pytest.approx(0.2)
        assert Production(100.0, {}, late).fell_behind


class TestThroughput:
    def test_there_may_be_nothing_to_measure(self) -> None:
        assert "0 of 1 orders came" in throughput(seen(("healthy-0", None)), ONE_ILL).fault

    def test_it_is_that_of_the_healthy_ones_also_without_merchants_in_trouble(self) -> None:
        orders = [(f"healthy-{number}", 1.0 + number) for number in range(10)]
        undisturbed = seen(*orders, ("ill-0", 1.5), trial=Trial(OURS, FEW))
        assert throughput(undisturbed, ONE_ILL).rate == pytest.approx(1.0)
        assert throughput(undisturbed, ONE_ILL).planned == 10


class TestLatency:
    @staticmethod
    def published(*moments: float, late: float = 0.0) -> Production:
        return Production(0.0, {f"order-{n}": at for n, at in enumerate(moments)}, late)

    def test_it_is_from_queue_to_merchant_for_healthy_ones_after_the_warm_up(self) -> None:
        run = seen(
            ("healthy-0", 9.0),  # in the warm-up
            ("healthy-1", 10.2),
            ("healthy-2", 11.1),
            ("ill-0", 50.0),
            production=self.published(1.0, 10.0, 11.0, 12.0),
        )
        figures = latency(run, ONE_ILL, warm_up=5.0)
        assert (figures.orders, figures.missing) == (2, 0)
        assert (figures.p50, figures.worst) == pytest.approx((0.1, 0.2))

    def test_it_begins_with_the_trouble_if_that_came_later(self) -> None:
        run = seen(
            ("healthy-0", 6.5),
            ("healthy-1", 8.1),
            production=self.published(6.0, 8.0),
            struck=7.0,
        )
        assert latency(run, ONE_ILL, warm_up=5.0).orders == 1

    def test_an_order_that_did_not_come_counts_as_on_its_way_until_time_was_up(self) -> None:
        run = seen(("healthy-0", 10.1), ("healthy-1", None), production=self.published(10.0, 11.0))
        figures = latency(run, ONE_ILL, warm_up=5.0)
        assert (figures.missing, figures.worst) == (1, pytest.approx(89.0))

    def test_what_else_may_have_delayed_orders_is_named(self) -> None:
        assert disturbed_by(FREE, fell_behind=False) == "nothing"
        assert disturbed_by(FREE, fell_behind=True) == "PRODUCER"
        assert disturbed_by(replace(FREE, simulator=0.95), fell_behind=False) == "SIMULATOR"
        assert disturbed_by(replace(FREE, waited=0.2), fell_behind=False) == "CORES (shared)"
        assert disturbed_by(replace(FREE, worker=0.99), fell_behind=False) == "its CPU"


class TestVerdicts:
    def test_the_median_of_the_rounds_decides(self) -> None:
        assert Verdict("it", [0.9, 0.98, 0.99], at_least=0.97).word == "met"
        assert Verdict("it", [1.2, 1.05, 1.11], at_most=1.10).word == "MISSED"
        assert Verdict("it", [1.2]).word == ""
        assert Verdict("it", [1.2], doubtful=True).word == "doubtful"

    def test_without_a_round_that_says_something_there_is_none(self) -> None:
        assert Verdict("it", [], ["the producer fell behind"], at_most=1.1).word == "INVALID"

    def test_a_run_that_something_else_than_the_worker_disturbed_leaves_doubts(self) -> None:
        _, delays = judge(OURS.name, [bout(), bout(disturbed_by="CORES (shared)")])
        assert delays.word == "met (doubtful)"
        _, delays = judge(OURS.name, [bout(disturbed_by="its CPU")])
        assert delays.word == "met"

    def test_so_does_an_undisturbed_run_that_did_not_keep_up(self) -> None:
        late = replace(PROMPT, missing=3)
        _, delays = judge(OURS.name, [replace(bout(), latency=Pair(late, PROMPT))])
        assert delays.doubtful

    def test_what_never_happened_is_too_late(self) -> None:
        verdict = Verdict("it", [math.inf], at_most=60.0)
        assert verdict.line() == ["it", "never", "never", "<= 60.00", "MISSED"]

    def test_targets_are_the_gateways_and_ratios_are_taken_within_a_round(self) -> None:
        rates, delays = judge(OURS.name, [bout(rate=960.0, p99=0.021)])
        assert (list(rates.values), rates.word) == ([0.96], "MISSED")
        assert (delays.values[0], delays.word) == (pytest.approx(1.05), "met")
        assert [each.word for each in judge(PLAIN.name, [bout(PLAIN.name, rate=100.0)])] == ["", ""]

    def test_a_round_that_cannot_be_compared_is_left_out_and_named(self) -> None:
        rounds = [[bout(p99=0.5, fault="the producer fell behind")], [bout(p99=0.020)]]
        [_, delays] = judge(OURS.name, [each for [each] in rounds])
        assert list(delays.values) == [1.0]
        assert "Invalid: gateway: p99: the producer fell behind." in report(ONE_ILL, rounds)

    def test_the_tables_show_orders_that_did_not_come(self) -> None:
        shown = report(ONE_ILL, [[bout(missing=50)]])
        assert "## ill (x): one is ill" in shown
        assert "nothing (50.0% had not come)" in shown

    def test_a_latency_that_was_not_measured_has_no_table(self) -> None:
        shown = report(ONE_ILL, [[replace(bout(PLAIN.name), latency=None)]])
        assert "full queue" in shown
        assert "60 % load" not in shown


class TestARound:
    """Which runs are played, in which order; the runs themselves are made up."""

    ANOTHER = replace(ONE_ILL, name="another", letter="y")
    loads: list[Load]

    def play(
        self, monkeypatch: pytest.MonkeyPatch, turn: int = 0, *, quick: bool = False, late: int = 0
    ) -> tuple[list[str], dict[str, list[Bout]]]:
        played, behind = [], iter([1.0] * late)
        loads = self.loads = []

        def full_queue(_: Any, trial: Trial, **__: Any) -> Observation:
            played.append(f"full queue: {trial}")
            return seen(("healthy-0", 1.0), ("healthy-1", 2.0), trial=trial)

        def steady(_: Any, trial: Trial, __: Any, load: Load, **___: Any) -> Observation:
            played.append(f"60 % load: {trial}")
            loads.append(load)
            production = Production(0.0, {"order-0": 50.0}, next(behind, 0.0))
            return seen(("healthy-0", 51.0), trial=trial, production=production)

        monkeypatch.setattr(bouts, "full_queue", full_queue)
        monkeypatch.setattr(plays, "steady", steady)
        monkeypatch.setattr(bouts, "calibrated", lambda *_: Load(120.0, 1.0))
        attacks = [ONE_ILL, self.ANOTHER]
        results = bouts.play_round(
            None,  # type: ignore[arg-type]
            attacks,
            turn,
            quick=quick,
            watcher=lambda *_: None,
        )
        return played, results

    def test_attacks_on_the_same_merchants_share_the_undisturbed_runs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, results = self.play(monkeypatch, turn=2)
        assert played == [
            f"{kind}: gateway, {name}"
            for kind in ("full queue", "60 % load")
            for name in ("undisturbed", "ill", "another")
        ]
        assert {name: len(each) for name, each in results.items()} == {"ill": 1, "another": 1}

    def test_every_other_round_goes_backwards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        played, _ = self.play(monkeypatch, turn=1)
        assert [each.rpartition(" ")[2] for each in played[:3]] == ["another", "ill", "undisturbed"]

    def test_plain_celery_plays_in_the_first_round_and_without_latency_if_quick(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, results = self.play(monkeypatch, quick=True)
        assert sum("plain" in each for each in played) == 3
        ours, plain = results["ill"]
        assert (ours.candidate, plain.candidate) == (OURS.name, PLAIN.name)
        assert ours.latency is not None
        assert plain.latency is None

    def test_a_run_whose_producer_fell_behind_is_played_once_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        played, _ = self.play(monkeypatch, turn=2, late=2)
        assert [each.rpartition(" ")[2] for each in played[3:]] == [
            "undisturbed",
            "undisturbed",
            "ill",
            "another",
        ]

    def test_all_of_a_populations_runs_have_one_load(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play(monkeypatch)
        assert set(self.loads) == {Load(120.0, 1.0)}

    def test_the_load_is_a_share_of_the_core_and_of_the_slots(self) -> None:
        load = Load.share_of(PROBE, cpu=0.8)
        assert load.rate == pytest.approx(PROBE * SHARE / 0.8)
        assert load.rate * load.latency == pytest.approx(SHARE * OURS.slots)

    def test_however_little_an_order_costs_the_slots_are_the_limit(self) -> None:
        assert Load.share_of(PROBE, cpu=0.01) == Load(600.0, 0.2)


class TestTheDrain:
    MADE = tuple((float(second), 100 if second < 20 else 190) for second in range(60))

    def test_it_begins_when_enough_came_in_the_seconds_before(self) -> None:
        assert full_since(self.MADE, 0.0, width=10.0, wanted=1800) == 28.0
        assert full_since(self.MADE, 0.0, width=10.0, wanted=2000) is None

    def test_a_burst_at_the_beginning_is_no_drain_before_the_stretch_is_over(self) -> None:
        assert full_since([(1.0, 5000)], 0.5, width=10.0, wanted=1800) == 10.5

    def test_the_best_stretch_and_what_came_in_another(self) -> None:
        assert busiest(self.MADE, 10.0) == 1900
        assert busiest([], 10.0) == 0
        assert made_between(self.MADE, 0.0, 2.0) == 200

    def test_targets_that_a_run_did_not_come_to_are_missed(self) -> None:
        slow = {"sifted, orders/s": 100.0, FIRST_ORDER: math.inf}
        run = Backlog(OURS.name, 20_000, slow)
        assert {verdict.word for verdict in judge_backlog([run])} == {"MISSED"}
        shown = backlog_report([[run, replace(run, candidate=PLAIN.name)]])
        assert "not in time" in shown
        assert "20,000" in shown


class TestTheSeries:
    def test_a_level_lasts_until_it_changes(self) -> None:
        assert steps([(10.1, 3), (10.3, 1)], 10.0, 10.5) == [0, 3, 3, 1, 1]
        assert steps([(9.0, 4), (9.5, 3)], 10.0, 10.2) == [3, 3]

    def test_groups_of_a_class_are_taken_together(self) -> None:
        assert summed([[1, 2], [3, 4]]) == [4, 6]

    def test_a_class_to_which_nothing_came_held_no_slots(self) -> None:
        assert slots({"ill": [(0.0, 2)]}, {"ill"}, 0.0, 0.2) == {
            "healthy": [0, 0],
            "troubled": [2, 2],
        }

    def test_a_run_is_told_by_class_of_merchant(self) -> None:
        run = seen(
            ("healthy-0", 0.15),
            ("ill-0", 0.25),
            ended=0.4,
            levels={"healthy": [(0.1, 1), (0.3, 0)], "ill": [(0.2, 1)]},
        )
        told = series("full queue", run)
        assert told["slots"] == {"healthy": [0, 1, 1, 0], "troubled": [0, 0, 1, 1]}
        assert told["arrivals"] == {"healthy": [0, 1, 0, 0], "troubled": [0, 0, 1, 0]}
        assert told["struck_after"] == 0.0


@pytest.mark.usefixtures("forked")
class TestForReal:
    def test_a_full_queue_is_delivered_past_a_merchant_that_hangs(self, servers: Servers) -> None:
        run = full_queue(servers, Trial(OURS, FEW, ONE_ILL), 300, PATIENCE)
        assert run.accounting is not None
        assert (run.accounting.orders, run.accounting.events) == (270, 270)
        assert throughput(run, ONE_ILL).fault == ""
        assert 0 < max(series("full queue", run)["slots"]["troubled"]) <= 10

    def test_orders_at_a_rate_arrive_while_a_merchant_begins_to_hang(
        self, servers: Servers
    ) -> None:
        size = SteadySize(warm_up=1, measured=1, settle=20)
        run = steady(servers, Trial(OURS, FEW, IN_MID_RUN), size, Load(100, 0.2))
        assert run.accounting is not None
        assert run.accounting.adds_up
        assert run.production is not None
        assert len(run.production.published) == 200
        assert run.struck is not None
        assert run.struck >= run.began + 1
        figures = latency(run, IN_MID_RUN, size.warm_up)
        assert figures.missing == 0
        assert 0 < figures.p50 <= figures.p99 <= figures.worst

    def test_a_backlog_is_passed_by_kept_and_drained(self, servers: Servers) -> None:
        size = BacklogSize(
            dead=50, behind=20, sift=30, rest=0, idle=0.6, flow=0.2, recovery=1, drain=0
        )
        run = play_backlog(servers, OURS, size)
        assert run.accounting is not None
        assert run.accounting.orders == 20 + 60
        assert run.fault == ""
        assert run.figures[FIRST_ORDER] < math.inf
        assert "parked: worker" in run.figures
        assert RECOVERED_AFTER in run.figures


class TestTheCatalogue:
    def test_each_behaviour_is_played_by_as_many_and_there_are_enough(self) -> None:
        ids = [
            each for each in catalogue.POPULATION.merchant_ids if catalogue.ATTACK.troubles(each)
        ]
        assert len(ids) % len(CATALOGUE) == 0
        assert len(ids) >= catalogue.ATTACKERS

    def test_its_peers_listen_and_have_a_certificate_to_be_known_by(self) -> None:
        with HostilePeers() as peers:
            assert len(peers.urls) == len(CATALOGUE)
            assert "BEGIN CERTIFICATE" in Path(peers.ca_file).read_text()
            answering = next(n for n, each in enumerate(CATALOGUE) if each.name == "HTTP/1.0")
            with urlopen(peers.urls[answering]) as reply:
                assert reply.read() == b"{}"

    @staticmethod
    def round(*runs: Latency) -> dict[str, Latency]:
        return dict(zip(("undisturbed", "attacked", "its broker alone"), runs, strict=False))

    def test_latency_and_memory_are_judged_by_the_median_of_the_rounds(self) -> None:
        calm = replace(PROMPT, peak=100.0)
        hits = [
            replace(PROMPT, p99=p99, peak=peak)
            for p99, peak in ((0.021, 150), (0.021, 190), (0.1, 200))
        ]
        rounds = [self.round(calm, hit) for hit in hits]
        assert [each.word for each in HOSTILE.judge(rounds)] == ["met", "MISSED"]
        assert f"{len(CATALOGUE)} ways" in HOSTILE.report(rounds)

    def test_the_brokers_part_is_shown_and_not_judged(self) -> None:
        sham = replace(PROMPT, p99=1.4 * PROMPT.p99)
        rounds = [self.round(PROMPT, PROMPT, sham), self.round(PROMPT, PROMPT)]
        assert [each.word for each in HOSTILE.judge(rounds)] == ["met", "met", ""]
        assert re.search(r"its broker alone +\|", HOSTILE.report(rounds))
        assert re.search(
            r"p99, its broker alone / undisturbed +\| +1\.40 \|", HOSTILE.report(rounds)
        )

    def test_the_broker_has_something_to_delay_beside_merchants_that_are_well(
        self, servers: Servers
    ) -> None:
        sham = replace(catalogue.SHAM, delays=50.0)
        with (
            Trial(OURS, catalogue.POPULATION, sham).world(servers, 0.1) as place,
            Connection(place.broker_url) as connection,
        ):
            declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
            back = Queue("back", durable=False, exclusive=True, channel=connection.default_channel)
            back.declare()
            # All that was delayed comes by this exchange, under the key of its own behind the delay's.
            back.bind_to(CELERY_DELAYED_DELIVERY_EXCHANGE, "#.bystander")
            assert wait_until(
                lambda: filling.depth(connection, back) > 50, time.monotonic() + PATIENCE
            )

    def test_a_round_that_says_nothing_is_left_out_and_named(self) -> None:
        late = replace(PROMPT, fault="the producer fell behind")
        rounds = [self.round(PROMPT, late), self.round(PROMPT, PROMPT)]
        assert [each.word for each in HOSTILE.judge(rounds)] == ["met", "met"]
        assert "Invalid: the producer fell behind." in HOSTILE.report(rounds)
