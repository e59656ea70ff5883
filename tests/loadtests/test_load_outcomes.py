"""What backends know of their orders, and that it adds up whatever the order of the news."""

from pathlib import Path

import pytest

from loadtests.load.histogram import buckets, histogram, percentile
from pos_gateway.demo.outcomes import Outcomes
from pos_gateway.demo.record import RunRecord, Times


def an_event(order_id: str, kind: str = "order.accepted") -> dict[str, str]:
    return {"order_id": order_id, "type": kind}


@pytest.fixture
def outcomes() -> Outcomes:
    return Outcomes(began=100.0)


def submit(outcomes: Outcomes, *order_ids: str, at: float = 100.0, merchant: str = "m-0") -> None:
    for order_id in order_ids:
        outcomes.placed(order_id, merchant, at, due=at)
        outcomes.confirmed(order_id, at)


class TestTheAccounts:
    def test_a_confirmed_order_is_open_until_it_concludes(self, outcomes: Outcomes) -> None:
        outcomes.placed("a", "hang-0", 101.0, due=100.5)
        assert outcomes.open == 0  # nothing was promised yet
        assert outcomes.confirmed("a", 101.5) == ("hang", 0.5)
        assert outcomes.open == 1
        assert outcomes.take_event(an_event("a", "order.pending"), 102.0) is None
        assert outcomes.take_event(an_event("a", "order.expired"), 103.0) == ("hang", 2.0)
        assert outcomes.open == 0

    def test_an_event_may_be_faster_than_the_confirm(self, outcomes: Outcomes) -> None:
        outcomes.placed("a", "m-0", 100.0, due=100.0)
        outcomes.take_event(an_event("a"), 100.1)
        outcomes.confirmed("a", 100.2)
        assert outcomes.open == 0

    def test_a_second_event_is_counted_as_a_repetition(self, outcomes: Outcomes) -> None:
        submit(outcomes, "a")
        outcomes.take_event(an_event("a"), 101.0)
        assert outcomes.take_event(an_event("a"), 102.0) is None
        assert outcomes.take_event(an_event("another backend's"), 102.0) is None
        assert outcomes.record(103.0).repeated == 1

    def test_what_becomes_of_an_order_in_doubt_is_its_outcome(self, outcomes: Outcomes) -> None:
        submit(outcomes, "a")
        outcomes.seen("a", 1, 100.1)
        outcomes.take_event(an_event("a", "order.in_doubt"), 101.0)
        outcomes.take_event(an_event("a"), 102.0)
        record = outcomes.record(103.0)
        assert record.outcomes == {"m": {"accepted": 1}}
        assert record.repeated == 0

    def test_every_order_sent_has_one_outcome_and_what_is_wrong_is_named(
        self, outcomes: Outcomes
    ) -> None:
        submit(outcomes, "a", "b", "c", "d")
        outcomes.placed("e", "m-0", 100.0, due=100.0)
        for order_id, creates in (("a", 0), ("a", 1), ("b", 0), ("c", 1), ("c", 2)):
            outcomes.seen(order_id, creates, 100.1)
        for order_id in "abc":
            outcomes.take_event(an_event(order_id), 101.0)

        record = outcomes.record(102.0)

        assert record.sent == 5
        assert record.outcomes == {"m": {"accepted": 3, "missing": 1, "unconfirmed": 1}}
        assert record.missing == ["d"]
        assert record.doubled == ["c"]
        assert record.phantom == ["b"]

    @pytest.mark.parametrize("second", ["failed", "expired", "in_doubt"])
    def test_after_an_end_that_is_no_doubt_another_contradicts_it(
        self, outcomes: Outcomes, second: str
    ) -> None:
        submit(outcomes, "a", "b")
        for kind in ("in_doubt", "accepted", "in_doubt"):  # the last one is the first again
            outcomes.take_event(an_event("a", f"order.{kind}"), 101.0)
        for kind in ("accepted", second, "accepted"):
            outcomes.take_event(an_event("b", f"order.{kind}"), 101.0)
        record = outcomes.record(102.0)
        assert record.contradicted == ["b"]
        assert record.repeated == 2

    def test_an_order_that_is_made_must_not_be_told_to_have_come_to_nothing(
        self, outcomes: Outcomes
    ) -> None:
        ends = ("rejected", "expired", "failed", "cancelled", "in_doubt", "accepted")
        submit(outcomes, *ends, "never made")
        for end in ends:
            outcomes.seen(end, 1, 100.5)
            outcomes.take_event(an_event(end, f"order.{end}"), 101.0)
        outcomes.take_event(an_event("never made", "order.failed"), 101.0)
        outcomes.seen("failed", 1, 101.5)
        assert outcomes.record(102.0).denied == ["rejected", "expired", "failed"]

    def test_where_merchants_say_nothing_nothing_is_held_against_them(self) -> None:
        outcomes = Outcomes(began=100.0, merchants_tell=False)
        submit(outcomes, "a")
        outcomes.take_event(an_event("a"), 101.0)
        assert outcomes.record(102.0).phantom == []

    def test_orders_that_have_ended_take_no_memory_and_are_still_in_the_accounts(
        self, outcomes: Outcomes
    ) -> None:
        for number in range(2000):
            at = 100.0 + number
            submit(outcomes, str(number), at=at)
            outcomes.seen(str(number), 1, at)
            outcomes.take_event(an_event(str(number)), at)
        assert len(outcomes._orders) < 50

        # An order that was ended long ago is doubled all the same.
        outcomes.seen("7", 2, 2200.0)

        record = outcomes.record(2300.0)
        assert record.outcomes == {"m": {"accepted": 2000}}
        assert record.doubled == ["7"]


class TestTheTimes:
    def test_each_counts_from_the_submission_and_lateness_from_when_it_was_due(
        self, outcomes: Outcomes
    ) -> None:
        outcomes.placed("a", "m-0", 102.0, due=101.5)
        outcomes.confirmed("a", 102.1)
        assert outcomes.seen("a", 0, 102.25) == ("m", 0.25)
        assert outcomes.seen("a", 1, 102.5) is None
        outcomes.take_event(an_event("a"), 103.0)

        record = outcomes.record(104.0)

        assert record.late == Times([1.5], [0.5])
        assert record.times["pos"] == {"m": Times([2.0], [0.25])}
        assert record.times["event"] == {"m": Times([2.0], [1.0])}
        assert (record.began, record.last, record.ended) == (100.0, 102.0, 104.0)

    def test_a_record_is_read_as_it_was_written(self, outcomes: Outcomes, tmp_path: Path) -> None:
        submit(outcomes, "a", "b")
        outcomes.take_event(an_event("a"), 101.0)
        record = outcomes.record(102.0)

        record.write(tmp_path / "record.json")

        assert RunRecord.read(tmp_path / "record.json") == record


class TestTheHistogram:
    def test_every_value_is_in_a_bucket(self) -> None:
        seconds = [0.01 * number for number in range(1, 101)]
        assert sum(count for _, count in buckets(seconds)) == 100
        assert buckets(seconds)[-1][0] == pytest.approx(1.0)
        shown = histogram(seconds)
        assert "99% within     990.0 ms" in shown
        assert len(shown.splitlines()) == 14

    def test_values_that_are_all_alike_are_shown_too(self) -> None:
        assert "[     3]" in histogram([0.5, 0.5, 0.5])

    def test_a_percentile_is_one_of_the_values(self) -> None:
        assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
        assert percentile([1.0], 0.99) == 1.0
