"""The verdict on a load: what limited it, when it is none, and what was missed."""

import socket
from math import inf
from typing import Any

import pytest
from kombu import Connection

from loadtests.bench.gauge import BROKER, DATABASE, LEFT, PRODUCER, SIMULATOR, WAITED, WORKER
from loadtests.load import figures, scraper
from loadtests.load.scraper import Sample, Scraper, loop_lag, read
from loadtests.load.verdict import Word, judge
from pos_gateway.broker import topology
from pos_gateway.demo.record import Times
from testkit.patience import PATIENCE
from tests.loadtests.load_runs import ORDERS, a_record, a_run, readings, samples, times


def limited_by(**changes: object) -> list[str]:
    return [each.what for each in judge(a_run(**changes)).limits]


def test_a_run_in_which_nothing_happened_met_everything() -> None:
    verdict = judge(a_run())
    assert verdict.word is Word.MET
    assert verdict.limits == []
    assert verdict.sentence == "Every objective was met."
    assert [each.what for each in verdict.objectives] == [
        "healthy: order → POS, p99",
        "healthy: enqueue, p50",
        "healthy: accepted",
    ]


class TestWhatLimitedIt:
    def test_a_producer_that_is_late_spoils_the_run(self) -> None:
        late = Times([0.0] * 100, [0.001] * 98 + [0.08] * 2)
        verdict = judge(a_run(record=a_record(late=late)))
        assert verdict.word is Word.NO_RESULT
        assert verdict.sentence == (
            "This is no result: what was measured is the producer, not the gateway."
        )
        assert (
            "submitted 80.0 ms or more after it was due; 50.0 ms would do"
            in verdict.limits[0].sentence
        )

    def test_one_order_in_two_hundred_may_be_late(self) -> None:
        late = Times([0.0] * 200, [0.001] * 199 + [9.0])
        assert limited_by(record=a_record(late=late)) == []

    @pytest.mark.parametrize(
        ("part", "share", "limits"),
        [
            (PRODUCER, 0.92, ["producer"]),
            (PRODUCER, 0.88, []),
            (SIMULATOR, 0.92, ["simulator"]),
            (SIMULATOR, 0.88, []),
            (WORKER, 0.97, ["worker's CPU"]),
            (WORKER, 0.93, []),
            (LEFT, 0.92, ["machine"]),
            (LEFT, 0.88, []),
            (BROKER, 0.92, ["rabbitmq"]),
            (DATABASE, 0.92, ["postgresql"]),
        ],
    )
    def test_a_core_that_is_full_at_the_peak_is_enough(
        self, part: str, share: float, limits: list[str]
    ) -> None:
        assert limited_by(readings=readings({part: share}, first=14.0)) == limits

    def test_a_collection_of_garbage_is_no_peak(self) -> None:
        assert limited_by(readings=readings({WORKER: 1.0}, first=18.0)) == []

    def test_only_the_parts_of_the_test_spoil_it(self) -> None:
        full = dict.fromkeys((PRODUCER, SIMULATOR, WORKER), 1.0)
        verdict = judge(a_run(readings=readings(full)))
        assert [each.what for each in verdict.spoilt] == ["producer", "simulator"]
        assert judge(a_run(readings=readings({WORKER: 1.0}))).word is Word.MET

    def test_a_simulator_that_replies_late_spoils_the_run(self) -> None:
        verdict = judge(a_run(simulator_late={"p99": 0.1, "worst": 0.2}))
        assert verdict.word is Word.NO_RESULT
        assert "simulator" in verdict.sentence
        assert "producer" not in verdict.sentence

    def test_records_that_could_not_be_followed_spoil_the_run(self) -> None:
        assert judge(a_run(record=a_record(unseen=3))).word is Word.NO_RESULT

    @pytest.mark.parametrize(("what", "part"), [("events", "producer"), ("feed", "simulator")])
    def test_what_could_be_followed_no_more_spoils_the_run(self, what: str, part: str) -> None:
        record = a_record(lost={what: "ConnectionResetError(104)"})
        verdict = judge(a_run(record=record))
        assert verdict.word is Word.NO_RESULT
        assert [each.what for each in verdict.spoilt] == [part]
        assert f"Its {what} could be followed no more: Conn" in verdict.spoilt[0].sentence

    def test_without_the_worker_s_metrics_the_limit_is_not_known(self) -> None:
        few = [each for each in samples() if each.at % 3 == 0]
        verdict = judge(a_run(samples=few))
        assert verdict.word is Word.NO_RESULT
        assert verdict.sentence == "This is no result: what limited it is unknown."
        assert "In 20 s the worker's metrics could be read 7 times." in verdict.limits[0].sentence
        assert limited_by(samples=[each for each in samples() if each.at % 2 == 0]) == []

    def test_a_core_that_others_use_is_told(self) -> None:
        assert limited_by(readings=readings({WAITED: 0.2})) == ["shared cores"]

    def test_slots_that_orders_wait_for_are_told(self) -> None:
        full = {"slots.free": 0, "slots.light": 0, "slots.heavy": 198, "waiting.slot": 40}
        verdict = judge(a_run(samples=samples(full)))
        assert [each.what for each in verdict.limits] == ["slots"]
        assert verdict.limits[0].sentence == (
            "Orders waited for one of the 200 in 21 of 21 samples, 40 at most."
        )
        assert verdict.word is Word.MET

    @pytest.mark.parametrize("where", ["waiting.merchant", "parked_orders"])
    def test_orders_that_wait_for_their_merchants_are_told(self, where: str) -> None:
        [limit] = judge(a_run(samples=samples({where: 7}))).limits
        assert limit.what == "merchants"
        assert limit.sentence.startswith("Up to 7 orders waited")


class TestObjectives:
    def test_a_percentile_over_its_bound_is_missed(self) -> None:
        record = a_record()
        slow = {**record.times, "pos": {"healthy": times(0.6)}}
        verdict = judge(a_run(record=a_record(times=slow)))
        assert verdict.word is Word.MISSED
        assert verdict.sentence == "Missed: healthy: order → POS, p99."

    def test_orders_that_never_arrive_are_the_slowest(self) -> None:
        arrived = times(0.02, ORDERS - 5)
        record = a_record(times={**a_record().times, "pos": {"healthy": arrived}})
        run = a_run(record=record)
        assert figures.seconds(run, "pos", "healthy")[-5:] == [inf] * 5
        verdict = judge(run)
        assert [each.was for each in verdict.objectives if not each.met] == ["never"]

    def test_a_share_of_accepted_orders_is_of_those_sent(self) -> None:
        outcomes = {"healthy": {"accepted": ORDERS - 5, "unconfirmed": 5}}
        run = a_run(record=a_record(outcomes=outcomes))
        assert "healthy: accepted" in judge(run).sentence

    def test_a_class_without_an_order_misses(self) -> None:
        nothing = a_record(outcomes={}, times={"enqueue": {}, "pos": {}, "event": {}})
        assert judge(a_run(record=nothing)).word is Word.MISSED

    @pytest.mark.parametrize("what", ["missing", "doubled", "phantom", "contradicted", "denied"])
    def test_an_order_that_is_lost_or_doubled_counts_even_where_the_run_says_nothing(
        self, what: str
    ) -> None:
        record = a_record(**{what: ["load-1", "load-2"]})
        verdict = judge(a_run(record=record, simulator_late={"p99": 9.0, "worst": 9.0}))
        assert verdict.word is Word.MISSED
        [broken] = [each for each in verdict.accounts if not each.met]
        assert broken.was == "2 (load-1, load-2)"

    @pytest.mark.parametrize(
        ("what", "unknown"),
        [
            ("missing", {"lost": {"events": "gone"}}),
            ("phantom", {"lost": {"feed": "gone"}}),
            ("phantom", {"unseen": 1}),
        ],
    )
    def test_no_order_counts_as_lost_where_not_everything_was_heard_or_seen(
        self, what: str, unknown: dict[str, Any]
    ) -> None:
        verdict = judge(a_run(record=a_record(**{what: ["load-1"]}, **unknown)))
        assert verdict.word is Word.NO_RESULT
        assert all(each.met for each in verdict.accounts)

    def test_an_order_is_missing_whether_or_not_the_merchants_records_are_known(self) -> None:
        record = a_record(missing=["load-1"], unseen=1, lost={"feed": "gone"})
        assert judge(a_run(record=record)).word is Word.MISSED


class TestTheScrape:
    def test_a_worker_that_answers_nonsense_is_asked_again(
        self, broker_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scraper, "PERIOD", 0.01)
        answers = [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\npos_gateway_parked_orders 7.0\n"]
        confirmed = {"confirm_publish": True}  # the broker counts it by then
        with Connection(broker_url, transport_options=confirmed) as connection:
            topology.declare(connection)
            with connection.Producer() as producer:
                producer.publish("{}", routing_key="orders")
        server = socket.create_server(("127.0.0.1", 0))
        server.settimeout(PATIENCE)
        with Scraper(server.getsockname()[1], broker_url) as scraping, server:
            for answer in answers:
                worker, _ = server.accept()
                with worker:
                    worker.recv(4096)
                    worker.sendall(answer)
        [sample] = scraping.samples
        assert sample.figures["parked_orders"] == 7.0
        # Asked of the broker itself, as long as it is; the worker's own figure may be ten seconds old.
        assert sample.figures["queue_messages.orders"] == 1

    def test_the_figures_are_read_by_name_and_label(self) -> None:
        page = (
            "# HELP pos_gateway_slots Slots\n# TYPE pos_gateway_slots gauge\n"
            'pos_gateway_slots{state="free"} 190.0\npos_gateway_parked_orders 7.0\n'
            'pos_gateway_queue_messages{queue="orders.canary"} 3.0\n'
            'pos_gateway_merchant_waiting{merchant="m"} 3.0\n'
        )
        assert read(page) == {
            "slots.free": 190.0,
            "parked_orders": 7.0,
            "queue_messages.orders.canary": 3.0,
        }

    def test_the_loop_s_lag_is_that_between_two_samples(self) -> None:
        def sample(*counts: float) -> Sample:
            bounds = ("0.001", "0.01", "0.1", "+Inf")
            name = "event_loop_lag_seconds_bucket"
            named = zip(bounds, counts, strict=True)
            return Sample(0.0, {f"{name}.{bound}": count for bound, count in named})

        assert loop_lag(sample(0, 0, 1000, 1000), sample(4, 4, 1004, 1004)) == 0.001
        assert loop_lag(sample(0, 0, 0, 0), sample(2, 3, 4, 4)) == 0.1
        assert loop_lag(sample(9, 9, 9, 9), sample(9, 9, 9, 10)) == 0.1
