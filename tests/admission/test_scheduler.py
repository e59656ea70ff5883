"""Which merchant gets a slot: 200 of them, a reserve of 8, and 12 for silent merchants."""

from math import inf

import pytest

from pos_gateway.admission import pacing, scheduler
from pos_gateway.admission.admission import AdmissionVerdict
from pos_gateway.domain.outcome import CallResult
from tests.admission.stage import START, Stage


def a_stage(limit: int = 200) -> Stage:
    return Stage(limit=limit, slots=200, max_blocked=100_000, max_waiting=1000)


def heavy_with_backlogs(stage: Stage, merchants: int) -> None:
    """Merchants at 2 s whose backlogs never end have had them for 20 s."""
    names = [f"h{n}" for n in range(merchants)]
    stage.know(*names, seconds=2.0)
    for tick in range(2000):
        stage.now += 0.01
        while stage.calls and stage.calls[0].started <= stage.now - 2.0:
            stage.admission.release(stage.calls.pop(0), stage.now)
        for place in (2 * tick, 2 * tick + 1):
            stage.offer(names[place % merchants])
        stage.starts()


def busy_forever(stage: Stage, merchants: int) -> None:
    """Merchants that take 100 s have an order each."""
    names = [f"forever{n}" for n in range(merchants)]
    stage.know(*names, seconds=100.0)
    for name in names:
        assert stage.offer(name) == START


def full_of_merchants(stage: Stage) -> None:
    """Two hundred merchants have an order each, and quick ones took the last slots."""
    quick = [f"last{n}" for n in range(20)]
    stage.know(*quick, seconds=0.01)
    busy_forever(stage, 180)
    for name in quick:
        assert stage.offer(name) == START


@pytest.fixture
def no_pacing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "SHORTEST", inf)


def start_in_time(stage: Stage) -> None:
    """Start everything that only the pace of heavy merchants' starts delays."""
    while stage.starts() or stage.admission.next_at < stage.now + 0.1:
        stage.pass_time(0.01)


def test_a_light_merchants_order_starts_at_once_beside_backlogs() -> None:
    stage = a_stage()
    stage.know("light", seconds=0.02)
    heavy_with_backlogs(stage, 100)
    assert stage.offer("light") == START


@pytest.mark.usefixtures("no_pacing")
def test_a_merchant_is_light_below_its_fair_share_or_half_of_it_with_a_backlog() -> None:
    stage = a_stage()
    stage.know("m", seconds=4.0)  # an order takes 0.8 slots on average over 5 s
    full_of_merchants(stage)  # and the fair share is one slot
    assert stage.offer("m") is AdmissionVerdict.WAIT
    assert stage.standing("m").light
    assert stage.offer("m") is AdmissionVerdict.WAIT
    assert not stage.standing("m").light


@pytest.mark.usefixtures("no_pacing")
def test_a_merchant_is_light_below_half_of_its_fair_share_while_a_stranger_waits() -> None:
    stage = a_stage()
    stage.know("m", seconds=4.0)
    stage.know("quick", seconds=2.0)
    full_of_merchants(stage)
    stage.offer("stranger")
    assert stage.offer("m") is AdmissionVerdict.WAIT
    assert not stage.standing("m").light
    assert stage.offer("quick") is AdmissionVerdict.WAIT
    assert stage.standing("quick").light


def test_heavy_merchants_have_all_slots_but_the_reserve_if_no_other_has_work() -> None:
    stage = a_stage()
    heavy_with_backlogs(stage, 100)
    assert 186 <= stage.admission.in_flight <= 192


def test_one_merchant_alone_has_all_slots_but_the_reserve_too() -> None:
    stage = a_stage()
    heavy_with_backlogs(stage, 1)
    assert 186 <= stage.admission.in_flight <= 192


def test_the_lightest_may_take_the_last_slot_and_nearly_heavy_ones_leave_some() -> None:
    stage = a_stage(limit=1)
    near = [f"near{n}" for n in range(300)]
    for first in range(0, 300, 100):
        stage.know(*near[first : first + 100], seconds=1.5)
    stage.know(*[f"quick{n}" for n in range(20)], seconds=0.02)
    started = [stage.offer(name) for name in near].count(START)
    assert 191 < started < 200  # at first few have work, and each is light
    quick = [stage.offer(f"quick{n}") for n in range(20)].count(START)
    assert started + quick == 200


def test_a_dip_in_light_merchants_slots_is_not_filled_with_long_calls() -> None:
    stage = a_stage()
    names = [f"light{n}" for n in range(120)]
    heavy = [f"h{n}" for n in range(60)]
    stage.know(*names[:60], seconds=0.2)
    stage.know(*names[60:], seconds=0.2)
    stage.know(*heavy, seconds=30.0)
    for _ in range(100):  # 60 slots are held by light ones, for 20 s
        for name in names[:60]:
            assert stage.offer(name) == START
        stage.now += 0.2
        for name in names[:60]:
            stage.reply(name)
        names = names[60:] + names[:60]
    for name in heavy:
        stage.offers(name, 5)
    start_in_time(stage)
    # Each is light until enough of them have work; counting the slots held now, it would be 192.
    assert 100 <= stage.admission.in_flight <= 160


@pytest.mark.usefixtures("no_pacing")
def test_among_heavy_merchants_the_one_with_the_least_use_goes_first() -> None:
    stage = Stage(limit=50, slots=50, max_blocked=10_000)
    stage.know("much", "less", seconds=8.0)
    busy_forever(stage, 20)
    stage.offers("much", 20)
    stage.offers("less", 8)
    stage.starts()
    stage.pass_time(3.0)
    stage.offers("much", 3)
    stage.offers("less", 3)
    assert stage.starts() == []
    stage.reply("much")
    stage.reply("much")
    assert [ticket[:4] for ticket in stage.starts()] == ["less", "less"]


def test_a_slow_merchant_that_comes_back_has_its_first_slot_soon() -> None:
    """A call at 9 s uses more than others at 2 s do; the merchant has used nothing yet."""
    stage = a_stage()
    stage.know("slow", seconds=9.0)
    heavy_with_backlogs(stage, 150)
    assert stage.offer("slow", "slow") is AdmissionVerdict.WAIT
    for _ in range(3):
        stage.now += 0.01
        stage.admission.release(stage.calls.pop(0), stage.now)
    assert "slow" in stage.starts()


@pytest.mark.usefixtures("no_pacing")
def test_a_waiting_merchant_is_not_passed_by_for_ever() -> None:
    """What it has used counts for half after 3.5 s of waiting."""
    stage = Stage(limit=50, slots=50, max_blocked=10_000)
    stage.know("much", "less", seconds=8.0)
    busy_forever(stage, 20)
    stage.offers("much", 20)
    stage.offers("less", 8)
    stage.starts()
    stage.pass_time(3.0)
    stage.offer("much", "waits")
    taken: list[str] = []
    for _ in range(60):
        stage.offer("less", "newer")
        stage.reply("less")
        stage.now += 0.2
        taken += stage.starts()
    assert taken[0] != "waits"
    assert "waits" in taken


def in_step(stage: Stage, merchants: int, seconds: float) -> tuple[int, float]:
    """Merchants whose calls all take the same time, and all came in one moment, and have for twenty
    seconds: the most that start within 50 ms then, and slots that they hold on average."""
    names = [f"step{n}" for n in range(merchants)]
    stage.know(*names, seconds=seconds)
    for name in names:
        stage.offers(name, 5)
    starts: list[float] = []
    held: list[int] = []
    for step in range(4600):
        stage.pass_time(0.005)
        while stage.calls and stage.calls[0].started <= stage.now - seconds:
            call = stage.calls.pop(0)
            stage.admission.release(call, stage.now)
            stage.offer(call.lane.merchant_id)
        started = len(stage.starts())
        if step > 4000:
            starts += [stage.now] * started
            held.append(stage.admission.in_flight)
    most = max(sum(at <= each < at + 0.05 for each in starts) for at in starts)
    return most, sum(held) / len(held)


def test_heavy_calls_that_end_together_do_not_start_together_for_ever() -> None:
    stage = a_stage()
    most, held = in_step(stage, 100, 2.5)
    assert most <= 10  # 190 calls in 2 s are five in 50 ms
    assert held >= 180


def test_the_delay_of_paced_starts_is_bounded() -> None:
    stage = Stage(limit=50, slots=50, max_blocked=10_000)
    stage.know("h", seconds=60.0)
    stage.offers("h", 48)
    begun = stage.now
    start_in_time(stage)
    assert stage.admission.in_flight == 48
    assert stage.now - begun <= pacing.LONGEST


@pytest.fixture
def all_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LIGHT", 1e-6)
    monkeypatch.setattr(scheduler, "LIGHT_WITH_BACKLOG", 1e-6)


@pytest.mark.usefixtures("all_heavy")
def test_quick_merchants_do_not_wait_for_the_pace_of_slow_ones() -> None:
    stage = a_stage(limit=100)
    slow = [f"slow{n}" for n in range(80)]
    stage.know(*slow, seconds=2.5)
    stage.know("quick", seconds=0.1)
    for name in slow:  # each has used less than the quick one, and goes first
        stage.offer(name)
    stage.offers("quick", 60)
    stage.starts()
    assert stage.standing("quick").in_flight == 60
    assert stage.admission.in_flight <= 60 + pacing.BURST


@pytest.mark.usefixtures("all_heavy")
def test_calls_are_not_cut_short_for_a_merchant_that_waits_for_its_pace() -> None:
    stage = a_stage()
    hanging = [f"x{n}" for n in range(70)]
    stage.know(*hanging, "answers")
    stage.know("slow", seconds=2.5)
    for name in hanging:
        stage.offer(name)
    stage.pass_time(1.0)  # they hang
    stage.answer("answers", after=0.1)
    stage.pass_time(1.0)
    stage.offers("slow", 80)
    assert stage.standing("slow").waiting > 0
    assert stage.admission.slots["silent"] == 70
    assert stage.cut_short() == []
    stage.offers("slow", 80)
    start_in_time(stage)
    assert stage.standing("slow").waiting > 0  # for slots
    assert stage.cut_short() != []


def test_a_stranger_starts_its_first_order_before_others_start_another() -> None:
    stage = Stage(limit=50, slots=50, max_blocked=10_000)
    stage.know("h", seconds=2.0)
    stage.offers("h", 50)
    stage.pass_time(2.0)
    assert stage.offer("stranger", "stranger") is AdmissionVerdict.WAIT
    started: list[str] = []
    while not started:
        stage.reply("h")
        started = stage.starts()
    assert started == ["stranger"]


def test_the_first_call_of_a_stranger_may_use_half_of_the_reserve() -> None:
    stage = a_stage()
    heavy_with_backlogs(stage, 100)
    for n in range(10):
        assert stage.offer(f"new{n}") is AdmissionVerdict.WAIT
    assert len(stage.starts()) == 4


def test_a_stranger_has_one_call_at_once_while_half_of_the_slots_are_taken() -> None:
    stage = a_stage()
    assert stage.offers("new", 150).count(START) == 100
    assert stage.offer("newer") is AdmissionVerdict.WAIT
    assert stage.starts() == ["o"]
    stage.reply("new", after=0.1)
    assert len(stage.starts()) > 30  # it is known now


def test_a_stranger_with_a_call_in_flight_hides_no_other_merchant() -> None:
    stage = a_stage()
    stage.know("h", seconds=2.0)
    stage.offers("new", 150)
    stage.offers("h", 100)
    stage.starts()
    assert stage.standing("h").in_flight > 80


def test_all_silent_merchants_together_use_few_slots() -> None:
    stage = a_stage(limit=5)
    names = [f"h{n}" for n in range(100)]
    stage.know(*names)
    stage.hang(*names[:20])
    for name in names[:20]:
        stage.reply(name, contact=CallResult.TIMED_OUT)
    assert [stage.offer(name) for name in names[:20]].count(START) == 12
    assert stage.starts() == []
    assert [stage.offer(name) for name in names[20:]] == [START] * 80
    stage.reply("h0", after=0.1)  # it answers: the next merchant has its slot
    assert len(stage.starts()) == 1


def test_a_silent_merchant_has_its_turn_beside_heavy_ones_with_backlogs() -> None:
    stage = a_stage()
    stage.know("silent")
    heavy_with_backlogs(stage, 100)
    stage.hang("silent")
    stage.reply("silent", contact=CallResult.TIMED_OUT)
    stage.offer("silent", "probe")
    taken = []
    for _ in range(100):
        stage.pass_time(0.1)
        call = stage.calls.pop(0)
        stage.admission.release(call, stage.now)
        stage.offer(call.lane.merchant_id)
        taken += stage.starts()
        if "probe" in taken:
            return
    raise AssertionError("it has never had a slot")


def test_a_merchant_that_may_not_start_hides_no_other() -> None:
    stage = Stage(limit=1, slots=50, max_blocked=1000)
    for name in ("full", "other"):
        stage.know(name)
    stage.offers("full", 5)
    assert stage.offer("other") == START


def test_merchants_of_a_silent_provider_are_silent_before_they_are_called() -> None:
    stage = a_stage(limit=5)
    names = [f"m{n}@x" for n in range(100)]
    stage.know(*names, "other")
    for name in names[:20]:
        assert stage.offer(name) == START
    # In flight for longer than usual, and no merchant of it has answered since.
    stage.pass_time(0.2)
    assert [stage.offer(name) for name in names[20:]].count(START) == 0
    assert stage.offer("other") == START
    stage.reply("m0@x")
    assert len(stage.starts()) == 80


def test_merchants_of_a_provider_that_answers_again_do_not_wait_behind_silent_ones() -> None:
    stage = a_stage(limit=5)
    silent = [f"silent{n}" for n in range(13)]
    stage.know(*silent, "calls@x")
    stage.know("waits@x", seconds=20.0)
    stage.answer("waits@x", after=3.0)  # it has used more recently than the hanging ones
    stage.hang(*silent)
    assert stage.offer("silent0") is AdmissionVerdict.WAIT  # they hold all slots that they may
    stage.offer("calls@x")
    stage.pass_time(0.2)
    assert stage.offer("waits@x", "waits") is AdmissionVerdict.WAIT
    stage.reply("calls@x")
    assert stage.starts() == ["waits"]


@pytest.mark.parametrize(("silent", "are_light"), [(0.1, True), (5.0, False)])
def test_merchants_that_queue_while_their_provider_is_silent_gain_no_credit(
    silent: float, are_light: bool
) -> None:
    stage = a_stage(limit=5)
    queued = [f"m{n}@x" for n in range(30)]
    stage.know(*queued, "calls@x", "idle@x")
    stage.offer("calls@x")
    stage.pass_time(0.2)
    stage.pass_time(silent)
    for name in (*queued, *queued):
        stage.offer(name)
    stage.pass_time(0.2)  # calls of some have become outliers now
    stage.reply("calls@x")
    assert {stage.standing(name).light for name in queued[20:]} == {are_light}
    stage.offer("idle@x")
    assert stage.standing("idle@x").light  # it had no waiting order
    for _ in range(2):
        stage.starts()
        stage.reply(queued[-1])
    stage.pass_time(30.0)
    stage.offer(queued[-1])
    assert stage.standing(queued[-1]).light


def test_a_provider_with_an_answering_merchant_is_not_silent() -> None:
    stage = a_stage(limit=5)
    stage.know("hangs@x", "answers@x", "m@x")
    stage.offers("hangs@x", 1)
    stage.offer("answers@x")
    stage.reply("answers@x", after=0.1)
    stage.pass_time(0.2)
    assert not stage.standing("m@x").silent


def test_with_few_slots_all_of_them_are_used() -> None:
    for slots in (1, 2, 4, 8):
        stage = Stage(limit=10, slots=slots, max_blocked=1000)
        stage.know("m", seconds=1.0)
        stage.offers("m", 10)
        stage.starts()
        assert stage.admission.in_flight == slots


def test_heavy_merchants_have_a_slot_whatever_light_ones_hold() -> None:
    stage = Stage(limit=10, slots=4, max_blocked=1000)
    names = [f"light{n}" for n in range(8)]
    stage.know(*names[:4], seconds=0.2)
    stage.know(*names[4:], seconds=0.2)
    for _ in range(30):
        for name in names[:3]:
            assert stage.offer(name) == START
        stage.now += 0.2
        for name in names[:3]:
            stage.reply(name)
        names = names[3:] + names[:3]
    assert [stage.offer(f"stranger{n}") for n in range(3)].count(START) == 1
