"""The line of a merchant's parked orders, and how many of them there are: with a time handed in."""

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from pos_gateway.admission.parked_count import ParkedCount
from pos_gateway.admission.parking import LEAD, ON_ITS_WAY, PROBE_EVERY, SPAN, Line, Outlook, Place

LONGEST = 30.0
ANSWERING = Outlook(
    now=1000.0,
    answers=True,
    may_be_called=True,
    tries=1,
    not_before=0.0,
    turn=0.01,
    waiting=0,
    capacity=250,
    shortest=1.0,
    longest=LONGEST,
)
SILENT = replace(ANSWERING, answers=False)


def later(seconds: float, outlook: Outlook = ANSWERING, **fields: Any) -> Outlook:
    return replace(outlook, now=outlook.now + seconds, **fields)


def full_line(outlook: Outlook = ANSWERING) -> Line:
    """A line in which no more places are kept."""
    line = Line()
    while line.place(64, outlook, few=False).reserved:
        pass
    return line


def test_while_the_merchant_answers_orders_stand_one_behind_the_other() -> None:
    line = Line()
    places = [line.place(64, ANSWERING, few=False) for _ in range(5)]
    assert all(place.reserved for place in places)
    delays = [place.delay for place in places]
    assert delays == [1.0, 1.0, 1.0, 1.0, pytest.approx(4 * 0.64 - LEAD)]


def test_orders_that_wait_in_the_worker_are_ahead_of_those_that_are_parked() -> None:
    place = Line().place(64, replace(ANSWERING, waiting=500), few=False)
    assert place == Place(pytest.approx(5.0 - LEAD), reserved=True)


def test_the_line_moves_on_with_time() -> None:
    line = full_line()
    ahead = line.ahead(ANSWERING)
    assert line.ahead(later(10)) == pytest.approx(ahead - 1000)
    assert line.ahead(later(1000)) == 0


def test_the_line_is_as_long_as_its_orders_take_by_the_newest_reply() -> None:
    """Places were kept when the merchant had just come back, and its last calls took ages."""
    line = full_line(replace(ANSWERING, turn=1.0))
    assert line.place(64, replace(ANSWERING, turn=0.01), few=False).delay == 1.0


def test_behind_the_longest_delay_no_place_is_kept() -> None:
    line = full_line()
    delays = [line.place(64, ANSWERING, few=False) for _ in range(200)]
    assert not any(place.reserved for place in delays)
    assert all(LONGEST / 2 <= place.delay <= LONGEST for place in delays)
    assert len({place.delay for place in delays}) > 100  # spread, so as not to come all at once


def test_a_slow_merchants_bundle_takes_no_more_turns_than_it_will_be_back_for() -> None:
    line, slow = Line(), replace(ANSWERING, turn=3.0, capacity=20)
    line.place(64, slow, few=False)
    assert line.ahead(slow) == 1
    assert line.let_out(64, slow, reserved=True) == 1


def test_while_the_merchant_is_silent_nothing_is_kept_and_nothing_is_back_soon() -> None:
    line = Line()
    places = [line.place(64, SILENT, few=False) for _ in range(100)]
    assert not any(place.reserved for place in places)
    assert min(place.delay for place in places) >= LONGEST / 2
    assert line.ahead(ANSWERING) == 0


def test_few_orders_are_back_when_other_few_are() -> None:
    line = Line()
    moments = {
        round(SILENT.now + after + line.place(1, later(after, SILENT), few=True).delay, 6)
        for after in range(8)
    }
    assert len(moments) == 1
    line.place(1, later(16, SILENT), few=True)
    moments.add(SILENT.now + 16 + line.place(1, later(16, SILENT), few=True).delay)
    assert len(moments) == 2  # the next meeting


def test_not_all_merchants_meet_in_the_same_moment() -> None:
    delays = {Line().place(1, SILENT, few=True).delay for _ in range(100)}
    assert len(delays) > 50
    assert all(0.75 * LONGEST <= delay <= LONGEST for delay in delays)


def test_orders_with_a_place_are_let_out_however_long_the_line_looks() -> None:
    line = full_line()
    outlook = replace(ANSWERING, waiting=100)
    assert line.let_out(64, outlook, reserved=False) == 0
    assert line.let_out(64, outlook, reserved=True) == 64


def test_orders_without_a_place_are_let_out_while_the_line_is_short_and_take_their_turns() -> None:
    line, outlook = Line(), replace(ANSWERING, waiting=60)
    line.place(50, outlook, few=False)
    assert line.let_out(64, outlook, reserved=False) == 64
    assert line.ahead(outlook) == pytest.approx(60 + 50 + 64)
    assert line.let_out(64, outlook, reserved=False) == SPAN / 0.01 - 174


def test_a_merchant_that_is_about_to_idle_is_sent_orders_whatever_its_line_looks_like() -> None:
    assert full_line().let_out(64, ANSWERING, reserved=False) == 64


def test_no_more_come_than_may_wait_and_those_on_their_way_count() -> None:
    line, outlook = Line(), replace(ANSWERING, capacity=100)
    assert [line.let_out(64, outlook, reserved=True) for _ in range(3)] == [64, 36, 0]
    assert line.let_out(64, later(ON_ITS_WAY, outlook), reserved=True) == 64
    assert Line().let_out(64, replace(outlook, waiting=100), reserved=True) == 0


def test_of_a_silent_merchants_orders_one_at_a_time_finds_out_whether_it_is_back() -> None:
    line = Line()
    assert line.let_out(64, SILENT, reserved=True) == 1
    assert line.let_out(64, SILENT, reserved=True) == 0
    assert line.let_out(64, later(PROBE_EVERY, SILENT, waiting=1), reserved=True) == 0
    assert line.let_out(64, later(PROBE_EVERY, SILENT), reserved=True) == 1


def test_of_a_merchant_that_may_not_be_called_none_comes() -> None:
    assert Line().let_out(64, replace(SILENT, may_be_called=False), reserved=True) == 0


@pytest.mark.parametrize(
    ("orders", "turn"), [(64_000, 0.01), (12_800, 0.02), (3000, 0.1), (500, 0.5), (100, 3.0)]
)
def test_a_backlog_drains_at_the_rate_that_its_merchant_takes(orders: int, turn: float) -> None:
    """Simulated: bundles that are back when they are due, a merchant that takes its turns.

    They were parked while it was silent, so they are back at any time within half a minute.
    """
    line, capacity = Line(), max(20, int(2.5 / turn))
    bundles = [(LONGEST * first / orders, 64, False) for first in range(0, orders, 64)]
    waiting, turns, taken, step = 0, 0.0, 0, 0.1
    for tick in range(int(orders * turn / step)):
        outlook = replace(ANSWERING, now=tick * step, turn=turn, capacity=capacity)
        for due in [bundle for bundle in bundles if bundle[0] <= outlook.now]:
            bundles.remove(due)
            _, number, reserved = due
            out = line.let_out(number, replace(outlook, waiting=waiting), reserved=reserved)
            waiting += out
            if number > out:
                place = line.place(number - out, replace(outlook, waiting=waiting), few=False)
                bundles.append((outlook.now + ceil(place.delay), number - out, place.reserved))
        assert waiting <= capacity
        if tick * step > 60:
            turns += step / turn
            while waiting and taken + 1 <= turns:
                waiting, taken = waiting - 1, taken + 1
        elif waiting and tick * step % turn < step:
            waiting = max(0, waiting - ceil(step / turn))
    assert taken >= 0.9 * turns - 1


def test_what_is_parked_is_counted_by_merchant_until_it_is_due() -> None:
    count = ParkedCount()
    count.add("a", 64, 130.7)
    count.add("a", 64, 130.2)
    count.add("b", 5, 120.0)
    assert (count.total, count.of("a"), count.of("b"), count.of("c")) == (133, 128, 5, 0)
    count.pass_time(121.0)
    assert (count.total, count.of("b")) == (128, 0)
    count.pass_time(131.0)
    assert (count.total, count.of("a"), count.of("b")) == (0, 0, 0)


def test_the_memory_for_counting_does_not_grow_with_the_orders() -> None:
    count = ParkedCount()
    for n in range(10_000):
        count.add("a", 1, 100 + n / 400)
    assert len(count._due) == 25
    count.pass_time(200)
    assert not count._due
    assert not count._of
