"""A merchant's parking queue: delays and counts; the test hands in the time."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from pos_gateway.admission.parking import (
    AHEAD,
    LATEST_LOOK,
    LOOKS,
    ON_ITS_WAY,
    PROBE_EVERY,
    SOONEST_LOOK,
    TICKS,
    ParkedCount,
    ParkingQueue,
    ParkingState,
    look_again,
)

LONGEST = 30.0
ANSWERING = ParkingState(
    now=1000.0,
    answers=True,
    may_be_called=True,
    tries=1,
    not_before=0.0,
    answered_at=1000.0,
    interval=0.01,
    known_in=0.0,
    waiting=0,
    room=250,
    parked=0,
    bundles=LOOKS * 100,
    lacks_cpu=False,
    shortest=1.0,
    longest=LONGEST,
)
SILENT = replace(ANSWERING, answers=False, answered_at=0.0)


def later(seconds: float, state: ParkingState = ANSWERING, **fields: Any) -> ParkingState:
    return replace(state, now=state.now + seconds, **fields)


def long_silent() -> ParkingQueue:
    """Of a merchant that has not answered for an hour."""
    queue = ParkingQueue()
    queue.delay(later(-3600.0, SILENT), few=False)
    return queue


@pytest.mark.parametrize(
    ("parked", "waiting", "seconds"), [(0, 0, 1.0), (200, 0, 1.0), (400, 0, 2.5), (400, 500, 7.5)]
)
def test_orders_are_back_before_those_ahead_of_them_are_completed(
    parked: int, waiting: int, seconds: float
) -> None:
    state = replace(ANSWERING, parked=parked, waiting=waiting)
    assert ParkingQueue().delay(state, few=False) == pytest.approx(seconds)


def test_orders_are_back_when_more_is_known_of_the_merchant_if_that_is_sooner() -> None:
    state = replace(ANSWERING, parked=2000)
    assert ParkingQueue().delay(state, few=False) == 20.0 - AHEAD
    assert ParkingQueue().delay(replace(state, known_in=3.0), few=False) == 3.0
    assert ParkingQueue().delay(replace(state, known_in=25.0), few=False) == 20.0 - AHEAD


def test_unparked_orders_that_have_not_arrived_are_ahead_too() -> None:
    queue, state = ParkingQueue(), replace(ANSWERING, parked=400)
    queue.unpark(100, state)
    assert queue.delay(state, few=False) == pytest.approx(5.0 - AHEAD)


def test_few_parked_bundles_are_back_within_a_second_whatever_was_measured() -> None:
    state = replace(ANSWERING, parked=10_000, interval=10.0, bundles=LOOKS)
    assert {ParkingQueue().delay(state, few=False) for _ in range(20)} == {1.0}


def test_orders_far_from_their_turn_are_back_while_all_bundles_can_be_checked() -> None:
    state = replace(ANSWERING, parked=10_000, bundles=LOOKS * 8)
    delays = [ParkingQueue().delay(state, few=False) for _ in range(200)]
    assert all(1.0 <= delay <= 8.0 for delay in delays)
    assert min(delays) < 2 < 6 < max(delays)
    assert len(set(delays)) > 100  # spread, so as not to be redelivered all at once


def test_few_looks_are_taken_at_a_merchant_that_lacks_cpu() -> None:
    state = replace(ANSWERING, parked=10_000, interval=1.0, bundles=LOOKS, lacks_cpu=True)
    delays = [ParkingQueue().delay(state, few=False) for _ in range(200)]
    assert max(delays) > LONGEST * 0.8 and sum(delays) / len(delays) > LONGEST / 3
    assert ParkingQueue().delay(replace(state, parked=10), few=False) == 10.0 - AHEAD


@pytest.mark.parametrize("silent_for", [0.0, 2.0, 8.0, 3600.0])
def test_a_silent_merchants_orders_are_back_after_as_long_as_it_has_been_silent(
    silent_for: float,
) -> None:
    latest = max(1.0, min(silent_for, LONGEST))
    state = replace(SILENT, bundles=0)
    for seed in range(50):
        queue = ParkingQueue()
        queue.delay(later(-silent_for, state), few=False)
        delay = queue.delay(replace(state, waiting=seed), few=False)
        assert max(1.0, latest / 2) <= delay <= latest


def test_a_merchant_has_been_silent_since_it_answered_last() -> None:
    queue = long_silent()
    assert queue.delay(replace(SILENT, bundles=0), few=False) >= LONGEST / 2
    assert queue.delay(replace(SILENT, answered_at=996.0, bundles=0), few=False) <= 4.0
    queue.delay(ANSWERING, few=False)
    assert queue.delay(later(4.0, SILENT, bundles=0), few=False) <= 4.0


def test_among_many_bundles_none_of_a_silent_merchant_is_back_at_once() -> None:
    state = replace(SILENT, bundles=LOOKS * 8)
    for seconds, soonest, latest in ((0.9, 1.0, 1.0), (1.1, 4.0, 8.0)):
        queue = ParkingQueue()
        queue.delay(state, few=False)
        delays = [queue.delay(later(seconds, state), few=False) for _ in range(50)]
        assert all(soonest <= delay <= latest for delay in delays)


def test_orders_are_not_back_before_their_merchant_may_be_called() -> None:
    for closed, latest in ((0.5, 1.5), (4.0, 8.0), (600.0, 615.0)):
        state = replace(SILENT, not_before=SILENT.now + closed)
        delays = [long_silent().delay(state, few=False) for _ in range(50)]
        assert all(max(1.0, closed) <= delay <= latest for delay in delays)


def test_small_bundles_are_back_together() -> None:
    queue = long_silent()
    moments = {
        round(SILENT.now + after + queue.delay(later(after, SILENT), few=True), 6)
        for after in range(8)
    }
    assert len(moments) == 1
    queue.delay(later(16, SILENT), few=True)
    moments.add(SILENT.now + 16 + queue.delay(later(16, SILENT), few=True))
    assert len(moments) == 2  # the next meeting point


def test_merchants_have_different_meeting_points() -> None:
    delays = {long_silent().delay(SILENT, few=True) for _ in range(100)}
    assert len(delays) > 50
    assert all(0.75 * LONGEST <= delay <= LONGEST for delay in delays)


def test_no_more_are_unparked_than_may_wait_including_those_on_their_way() -> None:
    queue, state = ParkingQueue(), replace(ANSWERING, room=100)
    assert [queue.unpark(64, state) for _ in range(2)] == [64, 0]
    assert queue.unpark(64, later(ON_ITS_WAY, state)) == 64
    assert ParkingQueue().unpark(64, replace(state, waiting=100)) == 0
    assert ParkingQueue().unpark(64, replace(state, waiting=120)) == 0


def test_unparked_orders_are_counted_until_they_arrive() -> None:
    queue, state = ParkingQueue(), replace(ANSWERING, room=100)
    assert [queue.unpark(40, state) for _ in range(3)] == [40, 40, 0]


def test_a_bundle_is_split_only_if_half_of_the_waiting_orders_are_gone() -> None:
    state = replace(ANSWERING, room=100)
    assert ParkingQueue().unpark(64, replace(state, waiting=51)) == 0
    assert ParkingQueue().unpark(64, replace(state, waiting=50)) == 50
    assert ParkingQueue().unpark(30, replace(state, waiting=70)) == 30


def test_a_silent_merchant_is_probed_with_one_parked_order_at_a_time() -> None:
    queue = ParkingQueue()
    assert queue.unpark(64, SILENT) == 1
    assert queue.unpark(64, SILENT) == 0
    assert queue.unpark(64, later(PROBE_EVERY, SILENT, waiting=1)) == 0
    assert queue.unpark(64, later(PROBE_EVERY, SILENT)) == 1


def test_no_order_is_unparked_while_its_merchant_may_not_be_called() -> None:
    assert ParkingQueue().unpark(64, replace(SILENT, may_be_called=False)) == 0


def test_the_bundles_at_hand_last_until_the_next_are_back() -> None:
    assert look_again(int(AHEAD / 0.01) - 1, ANSWERING) is not None
    assert look_again(int(AHEAD / 0.01), ANSWERING) is None
    slow = replace(ANSWERING, interval=inf)
    assert look_again(0, slow) is not None  # at least one is, however slow its merchant is
    assert look_again(1, slow) is None


def test_no_bundle_of_a_silent_merchant_is_at_hand() -> None:
    assert look_again(0, SILENT) is None


@pytest.mark.parametrize(
    ("waiting", "seconds"), [(0, SOONEST_LOOK), (140, 0.15), (250, LATEST_LOOK)]
)
def test_a_bundle_at_hand_is_checked_when_half_of_the_waiting_orders_are_gone(
    waiting: int, seconds: float
) -> None:
    state = replace(ANSWERING, waiting=waiting, interval=0.01)
    assert look_again(0, state) == pytest.approx(seconds)


def test_parked_orders_are_counted_by_merchant_until_they_are_due() -> None:
    count = ParkedCount()
    count.add("a", 64, 130.7)
    count.add("a", 64, 130.2)
    count.add("b", 5, 120.0)
    assert (count.total, count.of("a"), count.of("b"), count.of("c")) == (133, 128, 5, 0)
    assert count.bundles == 3
    count.pass_time(121.0)
    assert (count.total, count.of("b"), count.bundles) == (128, 0, 2)
    count.pass_time(131.0)
    assert (count.total, count.of("a"), count.of("b"), count.bundles) == (0, 0, 0, 0)


def test_counting_parked_orders_takes_bounded_memory() -> None:
    count = ParkedCount()
    for n in range(10_000):
        count.add("a", 1, 100 + n / 400)
    assert len(count._due) == 25 * TICKS
    count.pass_time(200)
    assert not count._due
    assert not count._bundles_due
    assert not count._ticks
    assert not count._of


def test_a_merchant_whose_bundles_return_every_second_is_counted_once() -> None:
    """Each bundle is due after a second, and its orders are parked again at once."""
    count = ParkedCount()
    seen = []
    for now in (100.0 + 1.05 * number for number in range(20)):
        count.pass_time(now)
        count.add("m", 10, now + 1.0)
        count.pass_time(now + 0.5)
        seen.append((count.total, count.of("m"), count.bundles))
    assert seen == [(10, 10, 1)] * 20


def test_what_is_due_later_stays_whatever_the_order_in_which_it_came() -> None:
    count = ParkedCount()
    for due in (30.0, 10.0, 20.0, 10.05):
        count.add("m", 1, due)
    count.pass_time(9.99)
    assert (count.total, count.bundles) == (4, 4)
    count.pass_time(10.0)
    assert count.total == 4, "it is due in this tick"
    count.pass_time(10.0 + 1 / TICKS)
    assert count.total == 2
    count.pass_time(20.0 + 1 / TICKS)
    assert (count.total, count.of("m"), count.of("other")) == (1, 1, 0)
    count.pass_time(1000.0)
    assert (count.total, count.bundles) == (0, 0)
