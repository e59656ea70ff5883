"""The rules of admission one by one; the test hands in the time."""

import itertools
import weakref
from collections import deque
from math import ceil, inf
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.agenda import STALE, Agenda
from pos_gateway.admission.breaker import LONGEST_OPEN, MINIMUM, PROBES_TO_CLOSE, BreakerState
from pos_gateway.admission.bulkhead import Bulkhead
from pos_gateway.admission.health import TIME
from pos_gateway.admission.lane import QUIET, Call, Demand, Lane
from pos_gateway.admission.lanes import Lanes
from pos_gateway.admission.latency import FIRST_DEVIATION, LEAST
from pos_gateway.admission.limit_trial import WINDOW, LimitTrial
from pos_gateway.admission.limits import LONGEST_HERE, AdmissionLimits, QuotaTerms, Terms
from pos_gateway.admission.parking import AHEAD, LOOKS, ON_ITS_WAY
from pos_gateway.domain.outcome import CallResult
from tests.admission.stage import START, Stage


def test_an_order_starts_while_its_merchant_is_under_its_limit() -> None:
    assert Stage(limit=2).offers("m", 3) == [START, START, AdmissionVerdict.WAIT]


def test_a_merchant_at_its_limit_takes_no_slot_from_another() -> None:
    stage = Stage(limit=2)
    stage.offers("hanging", 5)
    assert stage.admission.in_flight == 2
    assert stage.offer("healthy") == START


def test_an_order_knows_for_how_long_its_merchant_held_none_up() -> None:
    stage = Stage(limit=1, max_waiting=20, max_blocked=20)
    assert well_for(stage, "m") == inf  # at its limit, and none waits for that
    stage.reply("m")
    stage.pass_time(2.0)
    assert well_for(stage, "m") == inf
    assert stage.offers("m", 2) == [AdmissionVerdict.WAIT] * 2
    stage.pass_time(3.0)
    stage.reply("m")
    # Behind one that waits for the merchant, be the merchant free at this moment.
    assert stage.offer("m") is AdmissionVerdict.WAIT
    for waited in (0.0, 4.0):
        stage.pass_time(waited)
        call = stage.admission.next_start(stage.now)
        assert call is not None and call.well_for == pytest.approx(waited)
        stage.admission.release(call, stage.now)


def test_an_order_that_waits_for_a_slot_is_not_held_up_by_its_merchant() -> None:
    stage = Stage(limit=10, slots=1)
    stage.offer("a")
    assert stage.offers("b", 2) == [AdmissionVerdict.WAIT] * 2
    stage.reply("a")
    call = stage.admission.next_start(stage.now)
    assert call is not None and call.well_for == inf


def well_for(stage: Stage, merchant_id: str) -> float:
    """Offers an order, which starts, and returns what its call says."""
    assert stage.offer(merchant_id) == START
    return stage.calls[-1].well_for


def test_no_more_start_than_there_are_slots() -> None:
    stage = Stage(limit=10)
    verdicts = [stage.offer(f"m{i}") for i in range(6)]
    assert verdicts.count(START) == 4
    assert stage.starts() == []


def test_a_new_order_does_not_overtake_waiting_ones() -> None:
    stage = Stage(limit=10, slots=1)
    stage.offer("a")
    stage.offer("b", "waiting")
    stage.reply("a")
    assert stage.offer("c", "newcomer") is AdmissionVerdict.WAIT
    assert stage.starts() == ["waiting"]


def test_one_merchant_may_have_half_of_all_waiting_orders() -> None:
    verdicts = Stage(limit=1, max_blocked=6).offers("m", 6)
    assert verdicts == [START, *[AdmissionVerdict.WAIT] * 3, *[AdmissionVerdict.PARK] * 2]


def test_a_merchants_waiting_orders_are_bounded_by_seconds_of_its_work() -> None:
    stage = Stage(limit=2, slots=100)
    stage.answer("m", after=1.0)
    most = 2 + ceil(AHEAD * 2 / (1.0 - FIRST_DEVIATION))
    assert stage.offers("m", 20).count(AdmissionVerdict.WAIT) == most


def test_one_slow_reply_does_not_lower_a_merchants_bound_on_waiting_orders() -> None:
    stage = Stage(limit=1, slots=100)
    for _ in range(30):
        stage.answer("m", after=0.1)
    before = stage.admission._room.state(stage.admission._lane("m"), stage.now).room
    stage.answer("m", after=2.0)
    stage.answer("m", after=0.1)
    after = stage.admission._room.state(stage.admission._lane("m"), stage.now).room
    assert after >= 0.9 * before


def test_a_merchant_that_does_not_answer_may_have_few_orders_waiting() -> None:
    stage = Stage(limit=1, slots=100, max_waiting=3)
    stage.offer("m")
    stage.pass_time(3.0)
    assert stage.offers("m", 5) == [*[AdmissionVerdict.WAIT] * 3, *[AdmissionVerdict.PARK] * 2]


def test_orders_that_wait_for_slots_may_use_the_whole_window_if_no_others_wait() -> None:
    stage = Stage(limit=1, slots=2, max_waiting=3, max_blocked=8)
    for n in range(6):
        stage.offers(f"m{n}", 2)
    assert stage.offers("stranger", 2) == [AdmissionVerdict.WAIT, AdmissionVerdict.PARK]
    assert stage.offers("m0", 2) == [AdmissionVerdict.PARK] * 2
    strangers = [stage.offer(f"stranger{n}") for n in range(10)]
    assert (
        strangers.count(AdmissionVerdict.PARK) == 9
    )  # a quarter more wait than may, and no others


def test_orders_that_wait_for_a_slot_only_are_not_parked() -> None:
    stage = Stage(limit=10, slots=1, max_waiting=1, local_wait_timeout=1.0)
    stage.offer("other")
    assert set(stage.offers("m", 50)) == {AdmissionVerdict.WAIT}
    assert stage.admission.overdue(100.0) == []


def test_orders_that_start_soon_are_not_parked_however_many_wait() -> None:
    stage = Stage(limit=1, max_waiting=1)
    for _ in range(60):  # it answers in a hundredth of a second each time
        stage.offer("fast")
        stage.reply("fast", after=0.01)
    stage.offer("fast")
    assert set(stage.offers("fast", 50)) == {AdmissionVerdict.WAIT}


def test_waiting_orders_of_all_merchants_in_trouble_are_bounded() -> None:
    stage = Stage(limit=1, slots=100, max_waiting=3, max_blocked=5)
    verdicts = [verdict for i in range(10) for verdict in stage.offers(f"m{i}", 3)]
    assert verdicts.count(AdmissionVerdict.WAIT) == 5
    assert stage.admission.blocked == 5


def test_a_merchant_without_permits_asks_for_them_however_many_orders_of_others_wait() -> None:
    stage = Stage(limit=4, slots=20, max_waiting=20, max_blocked=100, in_fleet=True)
    stage.offer("quiet")
    stage.admission.allot("quiet", 4)
    stage.starts()
    stage.reply("quiet", after=0.1)
    stage.admission.allot("quiet", 0)  # unused for ten seconds
    stage.pass_time(11.0)
    for paused in ("a", "b"):  # a quarter of the budget is theirs
        stage.offer(paused)
        stage.admission.set_terms(paused, Terms(0))
        stage.offers(paused, 20)
    stage.short.clear()
    assert stage.offers("quiet", 2) == [AdmissionVerdict.WAIT, AdmissionVerdict.PARK]
    assert "quiet" in stage.short
    stage.admission.allot("quiet", 4)
    assert stage.starts() == ["quiet0"]


def test_a_merchants_only_order_waits_for_its_quota_however_many_orders_of_others_wait() -> None:
    stage = Stage(limit=1, slots=60, max_waiting=3, max_blocked=20)
    for n in range(20):
        stage.offers(f"m{n}", 3)
    assert stage.admission.waiting == 20
    stage.terms = Terms(1, quotas=(QuotaTerms("app of all", 1.0, is_app=True),))
    assert stage.offers("first", 2) == [START, AdmissionVerdict.PARK]
    others = [stage.offer(f"n{n}", f"n{n}") for n in range(9)]
    assert others == [AdmissionVerdict.WAIT] * 5 + [AdmissionVerdict.PARK] * 4  # a quarter more
    stage.pass_time(1.1)
    assert stage.starts() == ["n0"]


def test_an_order_that_waited_too_long_is_parked() -> None:
    stage = Stage(limit=1, local_wait_timeout=5.0)
    stage.offer("m", "running")
    stage.now = 1.0
    stage.offer("m", "early")
    stage.now = 4.0
    stage.offer("m", "late")
    assert stage.admission.overdue(5.9) == []
    assert stage.admission.overdue(6.0) == ["early"]
    assert stage.admission.waiting == 1


def test_no_order_waits_until_rabbitmq_closes_its_channel() -> None:
    """An order with a far deadline at a merchant that has nearer ones all evening."""
    stage = Stage(limit=1)
    stage.offer("m", "first")
    stage.offer("m", "for later", within=6 * 3600.0)
    for number in range(round(LONGEST_HERE / 5.0)):
        stage.offer("m", f"o{number}", within=600.0)
        stage.reply("m", after=5.0)
        assert stage.starts() == [f"o{number}"]
        assert stage.admission.overdue(stage.now - 0.1) == []
    stage.pass_time(5.0)
    assert stage.admission.overdue(stage.now) == ["for later"]


def test_orders_wait_for_their_merchants_record() -> None:
    stage = Stage(limit=None, slots=8, max_waiting=1)
    assert set(stage.offers("m", 400)) == {AdmissionVerdict.WAIT}
    stage.admission.set_terms("m", Terms(3))
    assert stage.starts() == ["m0", "m1", "m2"]
    assert stage.admission.overdue(stage.now) == []


def test_a_paused_merchant_starts_nothing_until_its_limit_is_raised_again() -> None:
    stage = Stage(limit=2)
    stage.offer("m", "running")
    stage.admission.set_terms("m", Terms(0))
    assert stage.offer("m") is AdmissionVerdict.WAIT
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(2))
    assert stage.starts() == ["o"]


def test_an_order_without_a_call_does_not_count_for_its_merchant() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m")
    stage.reply("m", after=100.0, contact=CallResult.NONE)
    assert stage.admission._lane("m").latency.mean is None
    assert not stage.standing("m").silent


def test_a_silent_merchants_parked_orders_are_back_after_as_long_as_it_has_been_silent() -> None:
    stage = Stage(limit=1, park_delay_max=30.0)
    stage.answer("m", after=0.1)
    stage.offers("m", 2)
    assert stage.admission.park_delay("m", stage.now) == 1.0
    stage.pass_time(8.0)
    assert 3.95 <= stage.admission.park_delay("m", stage.now) <= 8.0
    stage.pass_time(3600.0)
    assert 15.0 <= stage.admission.park_delay("m", stage.now) <= 30.0
    stage.reply("m", after=0.1)
    stage.starts()
    assert stage.admission.park_delay("m", stage.now) == 1.0


def test_no_parked_order_of_a_paused_merchant_is_unparked_and_all_of_an_unknown_one_are() -> None:
    paused, unknown = Stage(limit=0), Stage(limit=None)
    assert paused.admission.unpark("m", 64, 100.0) == 0
    assert paused.admission.look_again("m", 0, 100.0) is None
    assert unknown.admission.unpark("m", 64, 100.0) == 64


def test_parked_orders_are_back_when_their_merchants_breaker_closes() -> None:
    stage = Stage(limit=2, slots=8)
    stage.offers("m", 2)
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=120.0)
    open_for = stage.announced[-1].seconds
    delays = [stage.admission.park_delay("m", stage.now) for _ in range(50)]
    assert all(open_for <= delay <= open_for + 15 for delay in delays)
    assert stage.admission.unpark("m", 64, stage.now) == 0
    stage.pass_time(open_for)
    assert stage.admission.unpark("m", 64, stage.now) == PROBES_TO_CLOSE


def test_parked_orders_that_expire_in_one_moment_return_one_by_one() -> None:
    stage = Stage(limit=0)
    stage.offer("m")
    stage.admission.park_delay("m", stage.now)
    stage.pass_time(120.0)  # it has been silent for long, so that nothing returns within 15 s

    def delays(left: float) -> list[float]:
        return [stage.admission.park_delay("m", stage.now, left=left) for _ in range(200)]

    assert min(delays(inf)) >= 15.0
    stage.admission.parked_count.add("m", 64, 1000.0)
    assert 5.0 <= min(delays(5.0)) <= max(delays(5.0)) <= 5.0 + 1 / LOOKS
    stage.admission.parked_count.add("m", 64, 1000.0)
    for _ in range(198):
        stage.admission.parked_count.add("other", 64, 1000.0)
    assert 5.0 <= min(delays(5.0)) < 6.0 < 14.0 < max(delays(5.0)) <= 5.0 + 200 / LOOKS
    assert max(delays(-60.0)) <= 200 / LOOKS  # it has expired, and lacked CPU


def test_no_more_orders_are_unparked_than_may_wait() -> None:
    stage = Stage(limit=1, max_blocked=12)
    stage.offers("m", 3)
    assert stage.admission.unpark("m", 64, stage.now) == 8
    full = Stage(limit=1, max_waiting=3, max_blocked=2)
    full.offers("m", 3)
    full.offers("n", 3)
    assert full.admission.unpark("m", 64, full.now) == 0
    # The orders of a merchant that is not in trouble start instead of waiting: it is not locked
    # out.
    assert full.admission.unpark("other", 64, full.now) == 1


def test_the_room_left_is_shared_by_the_parked_orders_of_all_merchants() -> None:
    stage = Stage(limit=10, max_blocked=100)

    def unparked() -> list[int]:
        return [stage.admission.unpark(f"m{number}", 30, stage.now) for number in range(8)]

    # Of each merchant one order may wait in any case.
    assert unparked() == [30, 30, 30, 10, 1, 1, 1, 1]
    stage.pass_time(ON_ITS_WAY)
    assert unparked() == [30, 30, 30, 10, 1, 1, 1, 1]


def test_a_slot_held_after_the_answer_does_not_count_against_the_merchant() -> None:
    stage = Stage(limit=10, slots=10)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", 9)
    for call in stage.calls:
        stage.admission.answered(call, stage.now)
    stage.pass_time(60.0)  # the broker stores nothing meanwhile
    while stage.calls:
        stage.reply("m", contact=CallResult.NONE)
    standing = stage.standing("m")
    assert (standing.silent, standing.breaker, stage.announced) == (False, BreakerState.CLOSED, [])


def test_parked_orders_are_counted_until_they_are_due() -> None:
    stage = Stage()
    stage.admission.parked_count.add("m", 64, 20.0)
    stage.admission.parked_count.add("m", 10, 25.0)
    assert stage.admission.parked_count.of("m") == 74
    stage.pass_time(22.0)
    assert (stage.admission.parked_count.of("m"), stage.admission.parked_count.of("other")) == (
        10,
        0,
    )


def test_the_most_urgent_of_a_merchants_orders_goes_first() -> None:
    stage = Stage(limit=1, slots=8, max_waiting=9)
    stage.offer("m", "running")
    for order, within in (("later", 90.0), ("soon", 20.0), ("soon too", 20.0)):
        stage.offer("m", order, within=within)
    started = []
    while stage.calls:
        stage.reply("m", after=0.1)
        started += stage.starts()
    assert started == ["soon", "soon too", "later"]


def test_an_order_without_a_deadline_does_not_wait_behind_later_ones() -> None:
    """Its message does not say one, so it is invalid, and an attempt only says so."""
    stage = Stage(limit=1, slots=8, max_waiting=9)
    stage.offer("m", "running")
    for order, within in (("new 1", 20.0), ("invalid", inf), ("new 2", 20.0)):
        stage.offer("m", order, within=within)
    stage.reply("m", after=0.1)
    assert stage.starts() == ["invalid"]


@pytest.mark.parametrize("within", [inf, 90.0])
def test_look_ups_and_new_orders_go_in_turn_at_a_limit_of_one(within: float) -> None:
    stage = Stage(limit=1, slots=8, max_waiting=9)
    stage.offer("m", "running")
    for order in ("new 1", "new 2", "new 3"):
        stage.offer("m", order, within=20.0)
    for order in ("in doubt 1", "in doubt 2", "in doubt 3"):
        stage.offer("m", order, within=within, is_look_up=True)
    started = []
    while stage.calls:
        stage.reply("m", after=0.1)
        started += stage.starts()
    assert started == ["in doubt 1", "new 1", "in doubt 2", "new 2", "in doubt 3", "new 3"]


def test_look_ups_that_hang_leave_new_orders_half_of_the_limit() -> None:
    stage = Stage(limit=4, slots=16, max_waiting=40)
    for n in range(4):
        stage.offer("m", f"running {n}")
    for n in range(9):
        stage.offer("m", f"in doubt {n}", is_look_up=True)
        stage.offer("m", f"new {n}", within=60.0)
    for _ in range(4):
        stage.reply("m", after=0.1)
    started = stage.starts()
    assert sorted(started) == ["in doubt 0", "in doubt 1", "new 0", "new 1"]
    for n in range(2, 6):  # the look-ups hang, and the new orders are answered
        call = next(call for call in stage.calls if not call.is_look_up)
        stage.calls.remove(call)
        stage.now += 0.1
        stage.admission.release(call, stage.now)
        assert stage.starts() == [f"new {n}"]


def test_new_orders_leave_room_to_wait_for_look_ups() -> None:
    stage = Stage(limit=1, slots=8, max_waiting=9)
    stage.know("m")
    stage.offer("m", "running")
    while stage.offer("m", "new", within=20.0) is AdmissionVerdict.WAIT:
        pass
    assert stage.admission.unpark("m", 1, stage.now) == 0
    assert stage.admission.unpark("m", 1, stage.now, look_ups=True) == 1
    waiting = 0
    while stage.offer("m", "in doubt", is_look_up=True) is AdmissionVerdict.WAIT:
        waiting += 1
    assert 0 < waiting < stage.standing("m").waiting - waiting
    stage.pass_time(1.0)
    assert stage.admission.unpark("m", 1, stage.now, look_ups=True) == 0


def test_an_order_without_a_deadline_does_not_hide_expiring_ones() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m", "running")
    for order, within in (("in doubt", inf), ("late", 2.0), ("later", 3.0), ("in time", 90.0)):
        stage.offer("m", order, within=within)
    stage.admission.open_breaker("m", 20.0)
    assert stage.admission.expired() == ["late", "later"]


def test_an_order_expires_while_it_waits() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m", "running")
    stage.offer("m", "late", within=2.0)
    stage.offer("m", "patient", within=3.0)
    assert stage.admission.next_at == pytest.approx(2.0)
    stage.pass_time(2.0)
    assert stage.admission.expired() == ["late"]
    assert stage.admission.expired() == []
    stage.reply("m")
    assert stage.starts() == ["patient"]
    assert stage.offer("m", within=0.0) is AdmissionVerdict.EXPIRE


def test_an_order_that_cannot_start_in_time_expires_at_once() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m", "running")
    stage.offer("m", "short", within=20.0)
    stage.offer("m", "long", within=300.0)
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=25.0)
    assert stage.admission.expired() == ["short"]
    assert stage.offer("m", within=24.0) is AdmissionVerdict.EXPIRE
    assert stage.offer("m", within=90.0) is AdmissionVerdict.PARK


def _limits(of: int, *, every: int) -> list[int]:
    """The limits of a merchant with a limit of 8, after each call: it refuses more than ``of`` at once,
    and each call whose number ``every`` divides."""
    bulkhead, calls, limits = Bulkhead(8), deque[tuple[float, bool, bool]](), list[int]()
    for number in range(1, 601):
        while bulkhead.in_flight < bulkhead.limit:
            lowered = bulkhead.enter()
            calls.append((number, lowered, bulkhead.in_flight > of))
        started, lowered, is_refused = calls.popleft()
        bulkhead.leave()
        if is_refused or number % every == 0:
            bulkhead.overloaded(started, number, lowered=lowered)
        else:
            bulkhead.answered(started, lowered=lowered)
        limits.append(bulkhead.limit)
    return limits[300:]


def test_a_lowered_limit_that_helps_is_kept() -> None:
    limits = _limits(3, every=1000)
    assert max(limits) < 8
    assert sum(limits) / len(limits) < 4


@pytest.mark.parametrize("every", [4, 7])
def test_a_lowered_limit_that_does_not_help_returns_and_stays(every: int) -> None:
    assert set(_limits(8, every=every)) == {8}


@pytest.mark.parametrize(("full", "lowered", "is_useless"), [(4, 4, True), (4, 2, False)])
def test_a_lowered_limit_is_useless_if_as_many_calls_fail(
    full: int, lowered: int, is_useless: bool
) -> None:
    trial = LimitTrial()
    trial.lower(1, 0.0)
    for number in range(WINDOW):
        assert not trial.is_useless
        trial.record(1.0, failed=number < full, lowered=False)
        trial.record(1.0, failed=number < lowered, lowered=True)
    assert trial.is_useless is is_useless


def test_a_lowered_limit_that_fails_is_lowered_further_before_it_is_useless() -> None:
    trial = LimitTrial()
    for lowest in (2, 1):
        trial.lower(lowest, 0.0)
        for _ in range(WINDOW):
            assert not trial.is_useless
            trial.record(1.0, failed=True, lowered=True)
        assert trial.is_useless is (lowest == 1)


def test_a_lowered_limit_is_kept_beside_a_full_one_of_which_few_calls_are_known() -> None:
    trial = LimitTrial()
    trial.lower(1, 0.0)
    for number in range(WINDOW):
        if number < WINDOW // 2:
            trial.record(0.0, failed=True, lowered=False)
        trial.record(1.0, failed=number % 2 == 0, lowered=True)
    assert not trial.is_useless


def test_a_limit_is_halved_once_for_all_calls_that_were_in_flight_together() -> None:
    stage = Stage(limit=8, slots=20)
    stage.offers("m", 8)
    for _ in range(3):
        stage.reply("m", after=0.1, contact=CallResult.OVERLOADED)
    assert stage.admission._lane("m").bulkhead.limit == 4
    for _ in range(5):
        stage.reply("m", contact=CallResult.NONE)
    stage.admission.close_breaker("m")
    stage.offer("m")
    stage.reply("m", contact=CallResult.TIMED_OUT)
    assert stage.admission._lane("m").bulkhead.limit == 2


def test_a_limit_never_falls_below_one() -> None:
    stage = Stage(limit=3, slots=20)
    for _ in range(4):
        stage.offer("m")
        stage.reply("m", after=0.1, contact=CallResult.OVERLOADED)
    assert stage.admission._lane("m").bulkhead.limit == 1


def test_a_limit_rises_by_one_for_a_full_window_of_answers_if_it_was_reached() -> None:
    stage = Stage(limit=4, slots=20, max_waiting=50)
    lane = stage.admission._lane("m")
    stage.offers("m", 4)
    stage.reply("m", contact=CallResult.OVERLOADED)
    stage.reply("m")
    stage.reply("m")
    stage.reply("m")
    assert lane.bulkhead.limit == 2  # it has answered, and had not reached its new limit since
    stage.offers("m", 2)
    stage.reply("m")
    assert lane.bulkhead.limit == 3
    for _ in range(20):
        stage.offers("m", 1)
        stage.reply("m")
    assert lane.bulkhead.limit == 3
    for _ in range(20):
        stage.offers("m", 4 - lane.bulkhead.in_flight)
        stage.starts()
        stage.reply("m")
    assert lane.bulkhead.limit == 4


def test_a_breaker_opens_at_the_call_that_reaches_the_failure_threshold() -> None:
    stage = Stage(limit=20, slots=50)
    stage.offers("m", MINIMUM)
    for _ in range(MINIMUM - 1):
        stage.reply("m", contact=CallResult.FAILED)
    assert stage.announced == []
    stage.reply("m", contact=CallResult.FAILED)
    assert [(each.state, each.why) for each in stage.announced] == [(BreakerState.OPEN, "failures")]
    assert stage.offer("m") is AdmissionVerdict.WAIT
    assert stage.starts() == []
    assert stage.offer("other") == START


def test_a_breaker_opens_when_calls_are_late_and_not_when_they_return() -> None:
    stage = Stage(limit=MINIMUM, slots=50, slow_after=3.0)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", MINIMUM)
    stage.pass_time(2.9)
    assert stage.announced == []
    stage.pass_time(0.1)
    assert [(each.state, each.why) for each in stage.announced] == [(BreakerState.OPEN, "late")]


def test_a_breaker_half_opens_for_one_probe_at_a_time_and_closes_after_answers_in_a_row() -> None:
    stage = Stage(limit=5, slots=50)
    stage.open_circuit("m")
    assert stage.offers("m", 3) == [AdmissionVerdict.WAIT] * 3
    stage.pass_time(stage.announced[-1].seconds)
    assert stage.announced[-1].state is BreakerState.HALF_OPEN
    for _ in range(PROBES_TO_CLOSE):
        assert len(stage.starts()) == 1
        assert stage.calls[-1].time_limit_share == 0.5
        stage.reply("m", after=0.1)
    assert stage.announced[-1].state is BreakerState.CLOSED
    assert len(stage.starts()) == 1
    assert stage.calls[-1].time_limit_share == 1


def test_a_probe_that_must_not_be_cut_short_has_all_of_the_time_limit() -> None:
    """A blind POS makes the order in its usual time, and an early end leaves the order to an operator."""
    stage = Stage(limit=5, slots=50)
    stage.terms = Terms(5, may_be_cut_short=False)
    stage.open_circuit("blind")
    stage.pass_time(stage.announced[-1].seconds)
    assert stage.offer("blind") == START
    assert stage.calls[-1].probe is not None
    assert stage.calls[-1].time_limit_share == 1


@pytest.mark.parametrize("contact", [None, CallResult.ANSWERED, CallResult.NONE])
def test_a_half_open_breaker_closes_a_minute_after_the_last_order_whatever_became_of_it(
    contact: CallResult | None,
) -> None:
    """Of the evening's last order, which expired, or another worker had: no alert may last all night for it."""
    stage = Stage(limit=5, slots=50)
    stage.open_circuit("m")
    stage.pass_time(stage.announced[-1].seconds)
    if contact is not None:
        stage.pass_time(QUIET / 2)
        stage.offer("m")
        stage.reply("m", after=0.1, contact=contact)
    stage.pass_time(QUIET - 0.1)
    assert stage.announced[-1].state is BreakerState.HALF_OPEN
    stage.pass_time(0.2)
    assert (stage.announced[-1].state, stage.announced[-1].why) == (BreakerState.CLOSED, TIME)


def test_a_half_open_breaker_with_an_order_in_flight_waiting_or_parked_stays() -> None:
    """A storm of dead merchants: each has a slot once in minutes."""
    stage = Stage(limit=5, slots=50)
    for merchant in ("in flight", "waiting", "parked", "elsewhere"):
        stage.open_circuit(merchant)
    stage.pass_time(2.0)
    stage.offer("in flight")
    stage.admission.forget_terms("waiting")  # and nothing of it starts
    stage.offer("waiting")
    for _ in range(9):
        stage.admission.parked_count.add("parked", 1, stage.now + 40.0)
        stage.admission.open_breaker("elsewhere", 1.0)
        stage.pass_time(35.0)
    assert [each for each in stage.announced if each.state is BreakerState.CLOSED] == []
    for _ in range(20):
        stage.pass_time(QUIET / 6)
    closed = [each.merchant_id for each in stage.announced if each.state is BreakerState.CLOSED]
    assert sorted(closed) == ["elsewhere", "parked"]


def test_orders_that_a_merchant_refuses_again_and_again_are_not_its_only_probes() -> None:
    """Refused with a 401 of their own, three urgent orders come back before each probe."""
    stage = Stage(limit=5, slots=50, max_waiting=20)
    stage.open_circuit("m")
    for number in range(3):
        stage.offer("m", f"refused {number}", within=300)
    stage.offer("m", "new", within=900)
    started: list[str] = []
    while "new" not in started and stage.now < 300:
        stage.pass_time(stage.announced[-1].seconds)
        [probe] = stage.starts()
        started.append(probe)
        answers = probe == "new"
        stage.reply("m", contact=CallResult.ANSWERED if answers else CallResult.FAILED)
        if not answers:
            stage.offer("m", probe, within=300 - stage.now)
    assert started == ["refused 0", "refused 1", "refused 2", "new"]


def test_a_failed_probe_opens_the_breaker_for_longer_and_the_next_probe_has_a_longer_timeout() -> (
    None
):
    stage = Stage(limit=5, slots=50)
    stage.open_circuit("m")
    opened, time_limit_share = [], []
    for _ in range(8):
        opened.append(stage.announced[-1].seconds)
        stage.pass_time(opened[-1])
        assert stage.offer("m", "probe") == START
        time_limit_share.append(stage.calls[-1].time_limit_share)
        stage.reply("m", contact=CallResult.TIMED_OUT)
    assert all(b > a for a, b in itertools.pairwise(opened[:5]))
    assert max(opened) <= LONGEST_OPEN
    assert time_limit_share[:4] == [0.5, 0.75, 1.0, 1.0]


def test_a_merchant_that_has_become_slow_for_good_is_not_locked_out() -> None:
    stage = Stage(limit=5, slots=50, slow_after=3.0)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", 5)
    stage.pass_time(4.9)
    assert stage.announced[-1].state is BreakerState.OPEN
    for _ in range(5):
        stage.reply("m")
    for _ in range(PROBES_TO_CLOSE):
        stage.pass_time(2.0)
        stage.offer("m")
        stage.pass_time(4.9)
        stage.reply("m")
    assert stage.announced[-1].state is BreakerState.CLOSED
    before = len(stage.announced)
    for _ in range(10):
        stage.offers("m", 5)
        stage.starts()
        stage.pass_time(4.9)
        while stage.calls:
            stage.reply("m")
    assert len(stage.announced) == before


def test_a_breaker_is_open_for_as_long_as_retry_after_says() -> None:
    stage = Stage(limit=5, slots=50)
    stage.offers("m", 3)
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=7.0)
    assert stage.announced[-1].why == "asked"
    assert 7.0 <= stage.announced[-1].seconds <= 7.5
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=20.0)
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=3.0)
    assert stage.announced[-1].seconds >= 20.0
    stage.pass_time(19.9)
    assert stage.announced[-1].state is BreakerState.OPEN


def test_retry_after_opens_no_breaker_for_longer_than_failures_do() -> None:
    """One reply, to one order, would expire all orders with less time than it asks for."""
    stage = Stage(limit=5, slots=50)
    stage.offers("m", 3)
    for _ in range(3):  # it is repeated while the breaker is open
        stage.reply("m", contact=CallResult.OVERLOADED, retry_after=900.0)
        assert stage.announced[-1].seconds <= 1.05 * LONGEST_OPEN
    assert stage.offer("m", within=32.0) is AdmissionVerdict.PARK
    assert stage.admission.expired() == []
    stage.pass_time(stage.announced[-1].seconds)
    assert stage.offer("m") == START
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=900.0)
    assert stage.announced[-1].why == "probe_failed"
    assert LONGEST_OPEN <= stage.announced[-1].seconds <= 1.05 * LONGEST_OPEN


def test_no_merchant_is_blamed_for_a_wait_for_the_database() -> None:
    """No call that waits for its claim is cut short: that would free no slot."""
    stage = Stage(limit=1, slots=4)
    stage.know("m0", "m1", seconds=0.1)
    stage.database_stalls = True
    for n in range(4):
        assert stage.offer(f"m{n}@provider") == START
    assert stage.offer("waits") is AdmissionVerdict.WAIT
    stage.pass_time(10.0)
    assert stage.cut_short() == []
    assert not any(stage.standing(f"m{n}@provider").silent for n in range(4))
    stage.database_is_back()
    for n in range(4):
        stage.reply(f"m{n}@provider", after=0.01)
    assert stage.announced == []
    assert stage.admission._lane("m3@provider").latency.mean == pytest.approx(0.04)


def test_a_call_is_an_outlier_from_when_its_exchange_began() -> None:
    stage = Stage(limit=1, slots=4)
    stage.know("m", seconds=0.1)
    stage.database_stalls = True
    stage.offer("m")
    stage.pass_time(5.0)
    stage.database_is_back()
    stage.pass_time(LEAST - 0.01)
    assert not stage.standing("m").silent
    stage.pass_time(0.01)
    assert stage.standing("m").silent


@pytest.mark.parametrize("contact", [CallResult.FAILED, CallResult.ANSWERED, CallResult.TIMED_OUT])
def test_only_an_overloaded_merchants_retry_after_opens_its_breaker(contact: CallResult) -> None:
    """A 500, or a reply about one order, may have a Retry-After too."""
    stage = Stage(limit=5, slots=50)
    stage.offer("m")
    stage.reply("m", contact=contact, retry_after=20.0)
    assert stage.standing("m").breaker is BreakerState.CLOSED
    while not stage.announced:
        stage.offer("m")
        stage.reply("m", contact=CallResult.FAILED, retry_after=20.0)
    assert stage.announced[0].seconds <= 2.0


def test_calls_from_before_the_breaker_opened_do_not_count_for_it() -> None:
    stage = Stage(limit=20, slots=50)
    stage.offers("m", MINIMUM + 4)
    for _ in range(MINIMUM):
        stage.reply("m", contact=CallResult.FAILED)
    stage.reply("m")
    stage.reply("m")
    stage.pass_time(stage.announced[-1].seconds)
    stage.reply("m")
    stage.reply("m", contact=CallResult.FAILED)
    assert [each.state for each in stage.announced] == [BreakerState.OPEN, BreakerState.HALF_OPEN]


def test_orders_that_waited_too_long_can_be_taken_a_few_at_a_time() -> None:
    stage = Stage(limit=1, slots=8, max_waiting=5)
    stage.offers("m", 6)
    stage.pass_time(3.0)
    handed_out = []
    while some := stage.admission.overdue(6.0, 2):
        assert len(some) <= 2
        handed_out += some
    assert handed_out == [f"m{n}" for n in range(1, 6)]


def test_no_order_starts_while_its_merchants_terms_are_unknown() -> None:
    stage = Stage(limit=3, slots=8)
    stage.offer("m", "before")
    stage.admission.forget_terms("m")
    assert stage.offers("m", 2) == [AdmissionVerdict.WAIT] * 2
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(0))
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(3))
    assert stage.starts() == ["m0", "m1"]


def test_orders_in_flight_count_in_the_fleet_while_their_merchants_terms_are_unknown() -> None:
    """Else another worker has their permits, and the merchant more orders than its limit."""
    stage = Stage(limit=2, slots=8, in_fleet=True)
    stage.offers("m", 3)
    stage.admission.allot("m", 2)
    assert stage.starts() == ["m0", "m1"]
    stage.admission.forget_terms("m")
    assert stage.admission.demand("m") == Demand(limit=2, in_flight=2, waiting=0)
    stage.admission.set_terms("m", Terms(1))
    assert stage.admission.demand("m") == Demand(limit=1, in_flight=2, waiting=1)


def test_a_merchant_with_a_retry_after_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pos_gateway.admission.lanes.LANES", 10)
    stage = Stage(limit=1, slots=8)
    stage.offer("m")
    stage.reply("m", contact=CallResult.OVERLOADED, retry_after=900.0)
    for n in range(30):
        assert stage.offer(f"other{n}") == START
        stage.reply(f"other{n}")
    assert stage.offer("m") is AdmissionVerdict.PARK


def test_a_newcomer_costs_the_same_however_many_breakers_are_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each would look through all merchants for idle ones where there are none."""
    monkeypatch.setattr("pos_gateway.admission.lanes.LANES", 10)
    looks: list[Lane[str]] = []
    is_forgettable = Lane.is_forgettable

    def looked_at(lane: Lane[str], now: float) -> bool:
        looks.append(lane)
        return is_forgettable(lane, now)

    monkeypatch.setattr(Lane, "is_forgettable", looked_at)
    lanes: Lanes[str] = Lanes(in_fleet=False)
    for n in range(1000):
        lanes.add(f"m{n}", 0.0).breaker.open(0.0)
    assert len(looks) <= 2 * 1000
    for n in range(3000):
        lanes.add(f"idle{n}", 0.0)
    assert len([*lanes]) <= 2 * 1000, "idle ones are dropped"


def test_a_completed_order_is_freed() -> None:
    class Order:
        """An object with weak references."""

    admission: Admission[Order] = Admission(AdmissionLimits(slots=1), lambda _: Terms(1))
    watched: list[weakref.ref[Order]] = []
    for n in range(50):
        order = Order()
        watched.append(weakref.ref(order))
        started = admission.offer(f"m{n}", order, 0.0, 3600.0)
        if isinstance(started, Call):
            admission.began(started, 0.0)
    del order, started
    busy = next(iter(admission._lanes.values()))
    assert busy.bulkhead.in_flight == 1
    call: Call[Order] | None = admission._judging._entries[0][3]  # type: ignore[assignment]
    while call is not None:
        admission.release(call, 0.1)
        call = admission.next_start(0.1)
        if call is not None:
            admission.began(call, 0.1)  # when it is judged is seconds away
    assert [ref for ref in watched if ref() is not None] == []


def test_a_merchants_starts_in_a_second_stay_within_its_rate() -> None:
    stage = Stage(limit=10, slots=20)
    stage.terms, stage.per_second = Terms(10), 3.0
    assert stage.offers("m", 5) == [START] * 3 + [AdmissionVerdict.WAIT] * 2
    stage.now = 0.5
    for _ in range(3):
        stage.reply("m")
    assert stage.starts() == []
    assert stage.admission.next_at == 1.0
    stage.pass_time(0.5)
    assert stage.starts() == ["m3", "m4"]


def test_a_merchant_at_its_rate_takes_no_slot_and_no_turn() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms, stage.per_second = Terms(10), 1.0
    stage.offers("paced", 3)
    assert stage.admission.in_flight == 1
    assert stage.admission.blocked == 2
    assert stage.offer("other") == START


def test_a_rate_below_one_a_second_starts_one_order_each_span() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms, stage.per_second = Terms(10), 0.25
    stage.offers("m", 2)
    stage.reply("m", after=0.1)
    stage.pass_time(3.8)
    assert stage.starts() == []
    stage.pass_time(0.1)
    assert stage.starts() == ["m1"]


def test_reloading_a_record_does_not_restart_the_second() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms, stage.per_second = Terms(10), 1.0
    stage.offers("m", 2)
    stage.admission.set_terms("m", Terms(10, quotas=(QuotaTerms("m", 1.0),)))
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(10))
    assert stage.starts() == ["m1"]


def test_parked_orders_are_back_at_the_merchants_rate() -> None:
    stage = Stage(limit=10, slots=20, park_delay_max=30.0)
    stage.terms, stage.per_second = Terms(1), 2.0
    for _ in range(2):  # the first may have opened a connection
        stage.answer("m", after=0.01)
    for _ in range(600):  # no bundle is checked before all others may have been
        stage.admission.parked_count.add("other", 1, 1000.0)
    for parked, seconds in ((8, 2.5), (8, 6.5), (8, 10.5)):
        stage.admission.parked_count.add("m", parked, 1000.0)
        assert stage.admission.park_delay("m", stage.now) == seconds


def test_in_a_fleet_each_worker_has_its_share_of_the_merchants_rate() -> None:
    stage = Stage(limit=10, slots=20, in_fleet=True)
    stage.terms, stage.per_second = Terms(10), 10.0
    stage.offers("m", 9)
    stage.admission.allot("m", 4)
    assert len(stage.starts()) == 1  # another worker may have used the rest just now
    stage.pass_time(1.0)
    assert len(stage.starts()) == 3
    for _ in range(4):
        stage.reply("m", after=0.1)
    stage.admission.allot("m", 5)
    assert len(stage.starts()) == 1
    stage.pass_time(1.0)
    assert len(stage.starts()) == 4


def test_a_merchant_with_recent_starts_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pos_gateway.admission.lanes.LANES", 10)
    stage = Stage(limit=5, slots=8)
    stage.terms, stage.per_second = Terms(5), 1.0
    stage.answer("m", after=0.0)
    for n in range(30):
        stage.answer(f"other{n}", after=0.0)
    assert stage.offer("m") is AdmissionVerdict.WAIT


def test_in_a_fleet_a_merchant_starts_no_more_than_it_was_allotted() -> None:
    stage = Stage(limit=3, slots=8, in_fleet=True)
    assert stage.offers("m", 3) == [AdmissionVerdict.WAIT] * 3
    assert stage.short == ["m"] * 3
    stage.admission.allot("m", 2)
    assert stage.starts() == ["m0", "m1"]
    stage.admission.allot("m", None)
    assert stage.starts() == ["m2"]


def test_a_breaker_state_from_another_worker_applies_here() -> None:
    stage = Stage(limit=3, slots=8)
    stage.admission.open_breaker("m", 3.0)
    assert stage.offer("m") is AdmissionVerdict.WAIT
    stage.admission.close_breaker("m")
    assert stage.starts() == ["o"]


@pytest.mark.parametrize(
    "limits",
    [
        {"slots": 0},
        {"slots": -1},
        {"max_waiting": 0},
        {"local_wait_timeout": float("nan")},
        {"park_delay_max": 0.5},
        {"slow_after": float("nan")},
    ],
)
def test_invalid_limits_are_refused_by_name(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        AdmissionLimits(**limits)


def test_orders_of_silent_merchants_together_have_a_quarter_of_the_window() -> None:
    stage = Stage(limit=5, slots=200, max_blocked=100, max_waiting=20)
    dead = [f"dead{n}" for n in range(10)]
    stage.know(*dead)
    stage.hang(*dead)
    stage.offers("dead0", 25)
    for name in dead:
        stage.offers(name, 20)
    assert stage.admission.waiting == 25
    stage.terms = None
    for number in range(20):
        stage.offers(f"unknown{number}", 20)
    # Half of it, with the orders that wait for their merchant's record.
    assert stage.admission.waiting == 50


def test_large_orders_share_bytes_and_each_merchant_leaves_as_many_as_it_has() -> None:
    stage = Stage(max_bytes=100)
    stage.know("a", "b", "silent")
    stage.hang("silent")
    takes, left = stage.admission.takes, stage.admission.left
    assert [takes("a", 10) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [takes("b", 10) for _ in range(4)] == [True] * 3 + [False]
    assert not takes("silent", 1)  # it has no part in the second half
    for merchant_id, number in (("a", 5), ("b", 3)):
        for _ in range(number):
            left(merchant_id, 10)
    assert stage.admission.bytes == 0
    assert takes("a", 1000)  # larger than all there is: alone
    assert not takes("b", 1)
    left("a", 1000)
    assert takes("silent", 50)
    assert takes("b", 1000)


def test_a_silent_merchant_that_answers_that_it_is_overloaded_is_silent_no_more() -> None:
    stage = Stage(limit=2, slots=8)
    stage.know("m")
    stage.hang("m")
    stage.offer("m")
    assert stage.standing("m").silent
    stage.reply("m", contact=CallResult.OVERLOADED)
    assert not stage.standing("m").silent


def test_a_probe_that_is_answered_late_raises_the_limit() -> None:
    """A merchant that has become slow for good would keep a limit of one for ever."""
    stage = Stage(limit=8, slots=50)
    stage.answer("m", after=0.1)
    while not stage.announced:
        assert stage.offer("m") == START
        stage.reply("m", after=0.1, contact=CallResult.OVERLOADED)
    limit = stage.standing("m").limit
    assert (stage.announced[-1].state, limit) == (BreakerState.OPEN, 1)
    stage.pass_time(stage.announced[-1].seconds)
    assert stage.offer("m") == START
    stage.pass_time(4.0)
    stage.reply("m")
    assert stage.standing("m").limit == limit + 1


def test_a_breaker_that_is_open_is_not_prolonged_by_another_workers() -> None:
    """Each prolonging the other's, no worker would ever probe."""
    stage = Stage()
    stage.open_circuit("m")
    seconds = stage.announced[-1].seconds
    stage.admission.open_breaker("m", 30.0)
    stage.pass_time(seconds)
    assert stage.announced[-1].state is BreakerState.HALF_OPEN


def test_timers_of_what_has_ended_are_dropped() -> None:
    """A deadline may be hours away, and a worker takes thousands of orders in that time."""
    agenda, ended = Agenda(), SimpleNamespace(done=True)
    for number in range(10 * STALE):
        agenda.add(1e6 + number, lambda _item, _now: None, ended)
    assert len(agenda._entries) <= STALE
