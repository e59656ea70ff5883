"""CPU that is scarce: what yields, and what does not."""

from math import ceil

import pytest

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.arrivals import ENOUGH, FEW, MOST, Arrivals
from pos_gateway.admission.breaker import FIRST_OPEN, MINIMUM
from pos_gateway.admission.cpu import (
    AT_ONCE,
    EXPECTED,
    EXPIRED,
    INTERVAL,
    LEAST,
    PART,
    PART_OF_LESS,
    SAVED,
    SCARCE_FOR,
    Cpu,
)
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.admission.parking import AHEAD
from pos_gateway.admission.scheduler import BEHIND_AFTER, BEHIND_FOR
from pos_gateway.domain.outcome import CallResult
from tests.admission.stage import START, Stage

#: Seconds of a turn.
TURN = 0.01


def a_cpu(cores: float = 1.0, *, keeps_up: bool = True, is_busy: bool = True) -> Cpu:
    """One whose loop had no time left a moment ago."""
    cpu = Cpu(cores)
    if keeps_up:
        cpu.kept_up()
    if is_busy:
        for _ in range(10):
            cpu.turned(TURN, TURN)
    return cpu


def starts(cpu: Cpu, seconds: float, busy: float) -> int:
    """Starts that it allows while each turn is busy in this part, and merchants keep up."""
    started = 0
    for _ in range(round(seconds / TURN)):
        cpu.kept_up()
        while not cpu.wait and started < 10_000:
            cpu.started()
            started += 1
            if not cpu.is_scarce:
                break
        cpu.turned(busy * TURN, TURN)
    return started


def test_cpu_is_scarce_once_the_loop_has_no_time_left() -> None:
    cpu = a_cpu(is_busy=False)
    for _ in range(100):
        cpu.turned((PART - 0.01) * TURN, TURN)
    assert not cpu.is_scarce
    for _ in range(100):
        cpu.turned((PART + 0.05) * TURN, TURN)
    assert cpu.is_scarce


def test_by_a_part_of_a_core_less_is_enough() -> None:
    cpu = a_cpu(0.5, is_busy=False)
    for _ in range(100):
        cpu.turned((0.5 * PART_OF_LESS - 0.01) * TURN, TURN)
    assert not cpu.is_scarce
    for _ in range(100):
        cpu.turned((0.5 * PART_OF_LESS + 0.02) * TURN, TURN)
    assert cpu.is_scarce


def test_one_long_turn_is_no_reason_to_add_workers() -> None:
    cpu = a_cpu(is_busy=False)
    for _ in range(1000):
        cpu.turned(0.2 * TURN, TURN)
    cpu.turned(0.5, 0.5)
    assert cpu.is_scarce
    assert not cpu.is_used_up
    for _ in range(3000):
        cpu.kept_up()
        cpu.turned(PART * TURN, TURN)
    cpu.turned(0.1, 0.1)
    assert cpu.is_used_up


def test_cpu_is_used_up_though_no_merchant_keeps_up() -> None:
    cpu = a_cpu(keeps_up=False)
    for _ in range(3000):
        cpu.turned(TURN, TURN)
    assert cpu.is_used_up
    cpu.turned(0.0, SCARCE_FOR + TURN)
    assert not cpu.is_used_up


def test_it_is_plenty_a_while_after_that() -> None:
    cpu = a_cpu()
    cpu.turned(0.0, SCARCE_FOR + TURN)
    assert not cpu.is_scarce
    assert cpu.wait == 0


def test_others_have_all_while_no_merchant_keeps_up() -> None:
    cpu = a_cpu(keeps_up=False)
    assert cpu.wait == 0
    cpu = a_cpu()
    cpu.started()
    assert cpu.wait > 0
    for _ in range(round(EXPECTED / TURN) + 1):
        cpu.turned(TURN, TURN)
    cpu.started()
    assert cpu.wait == 0


def test_others_start_one_order_in_a_turn() -> None:
    cpu = a_cpu()
    cpu.turned(0.0, 1.0)
    assert cpu.wait == 0
    cpu.started()
    assert cpu.wait > 0
    cpu.turned(0.0, TURN)
    assert cpu.wait == 0


def test_others_start_some_in_any_case() -> None:
    assert starts(a_cpu(), 10, busy=1.0) == pytest.approx(10 * LEAST, rel=0.15)
    assert starts(a_cpu(0.5), 10, busy=1.0) == pytest.approx(5 * LEAST, rel=0.15)


def test_what_others_started_before_is_not_counted_against_them() -> None:
    cpu = a_cpu(is_busy=False)
    for _ in range(1000):
        cpu.started()
        cpu.turned(0.0, TURN)
    for _ in range(10):
        cpu.turned(TURN, TURN)
    assert cpu.is_scarce
    assert cpu.wait <= 1 / LEAST


def test_what_was_not_used_is_saved_up_for_a_moment_only() -> None:
    cpu = a_cpu()
    cpu.turned(0.0, 1.0)
    cpu.started()
    cpu.turned(2.1 * SAVED, 0.0)
    assert cpu.wait > 0


def test_a_long_stop_is_not_paid_for_by_others() -> None:
    cpu = a_cpu()
    cpu.turned(5.0, 5.0)
    assert starts(cpu, 1.0, busy=0.0) > 1.5 * LEAST


def test_merchants_that_keep_up_start_a_few_in_a_turn_once_nothing_is_left() -> None:
    cpu = a_cpu()
    for _ in range(AT_ONCE):
        assert not cpu.is_turn_over
        cpu.kept_up()
    assert cpu.is_turn_over
    cpu.turned(TURN, TURN)
    assert not cpu.is_turn_over


def test_merchants_that_keep_up_start_without_end_while_something_is_left() -> None:
    cpu = a_cpu()
    cpu.turned(0.0, 1.0)
    for _ in range(2 * AT_ONCE):
        cpu.kept_up()
    assert cpu.is_scarce
    assert not cpu.is_turn_over


def test_what_needs_no_slot_starts_one_in_a_turn_beside_others() -> None:
    cpu = a_cpu()
    cpu.turned(0.0, 1.0)
    cpu.started()
    assert cpu.wait_without_slot == 0
    cpu.started_without_slot()
    assert cpu.wait_without_slot > 0
    cpu.turned(0.0, TURN)
    assert cpu.wait == cpu.wait_without_slot == 0


def came_back(cpu: Cpu) -> bool:
    """Whether a bundle's 64 expired orders came back."""
    takes = cpu.takes_expired(64)
    if takes:
        cpu.took_expired(64)
    return takes


@pytest.mark.parametrize("recorded", [0, 1, 3])
def test_parked_orders_that_expired_come_back_as_fast_as_others_are_recorded(recorded: int) -> None:
    cpu = a_cpu(0.5)
    taken = 0
    for _ in range(2000):
        cpu.kept_up()
        cpu.turned(TURN, TURN)
        for _ in range(recorded):
            cpu.started_without_slot()
        taken += 64 * came_back(cpu)
    assert taken == pytest.approx(20 * (0.5 * LEAST + recorded / TURN), rel=0.3)


def test_parked_orders_that_expired_come_back_at_once_while_cpu_is_not_scarce() -> None:
    cpu = a_cpu(is_busy=False)
    assert all(came_back(cpu) for _ in range(100))


def test_after_a_long_time_a_few_hundred_that_expired_come_back_at_once() -> None:
    cpu = a_cpu(0.5)
    for _ in range(10_000):
        cpu.started_without_slot()
    taken = sum(64 * came_back(cpu) for _ in range(100))
    assert EXPIRED <= taken <= EXPIRED + 64


def test_the_events_pipeline_pauses_while_nothing_is_left_and_never_for_long() -> None:
    assert a_cpu(is_busy=False).pause() == 0
    cpu = a_cpu(0.5)
    cpu.turned(5.0, 5.0)
    assert 0 < cpu.pause() < 2 * SAVED / (0.5 * PART)
    cpu.turned(0.0, cpu.pause())
    assert cpu.pause() == 0
    assert a_cpu(keeps_up=False).pause() == 0


def reads(cpu: Cpu | Admission[str], seconds: float) -> None:
    """The reader does not catch up for so long."""
    reader = cpu.cpu if isinstance(cpu, Admission) else cpu
    for _ in range(ceil(seconds / TURN) + 1):
        reader.reads_on()
        cpu.turned(TURN, TURN)


def test_the_reader_is_behind_once_it_has_not_caught_up_for_an_interval() -> None:
    cpu = a_cpu(keeps_up=False)
    reads(cpu, 0.8 * INTERVAL)
    assert not cpu.is_behind
    reads(cpu, 0.3 * INTERVAL)
    assert cpu.is_behind
    cpu.turned(TURN, 0.9 * SCARCE_FOR)
    assert cpu.is_behind
    cpu.turned(TURN, 0.1 * SCARCE_FOR)
    assert not cpu.is_behind


def test_a_long_turn_or_rest_is_no_backlog() -> None:
    cpu = a_cpu(keeps_up=False)
    cpu.turned(0.0, 2 * INTERVAL)
    assert not cpu.is_behind
    cpu.turned(2 * INTERVAL, 2 * INTERVAL)
    assert not cpu.is_behind


def test_a_loop_whose_turns_are_not_seen_is_never_behind() -> None:
    cpu = Cpu(1.0)
    cpu.reads_on()
    assert not cpu.is_behind


class Scene:
    """An admission with a merchant that keeps up, of a worker whose loop has no time left."""

    def __init__(self) -> None:
        self.now = 100.0
        self.admission: Admission[str] = Admission(AdmissionLimits(), lambda _: Terms(10))
        self.keeps_up("healthy")
        self.now += BEHIND_FOR
        self.keeps_up("healthy")
        self.is_busy()

    def is_busy(self) -> None:
        for _ in range(10):
            self.admission.turned(TURN, TURN)

    def knows(self, name: str, merchants: int) -> None:
        """Merchants that keep up, as they did before CPU was scarce."""
        self.admission.turned(0.0, SCARCE_FOR)
        for number in range(merchants):
            self.keeps_up(f"{name} {number}")
        self.now += BEHIND_FOR
        self.keeps_up("healthy")
        self.is_busy()

    def is_crowded(self, merchant: str, seconds: float) -> None:
        """A merchant has several orders, one of them waiting for its own limit, for so long."""
        calls = [self.offer(merchant) for _ in range(11)]
        assert calls[10] is AdmissionVerdict.WAIT
        self.now += seconds
        calls.append(self.offer(merchant))
        self.admission.drop_waiting()
        for call in calls:
            if isinstance(call, Call):
                self.admission.release(call, self.now)
        self.is_busy()

    def offer(self, merchant: str) -> object:
        return self.admission.offer(merchant, "order", self.now)

    def keeps_up(self, merchant: str) -> None:
        call = self.offer(merchant)
        assert isinstance(call, Call)
        self.admission.release(call, self.now + 0.02)


def test_a_merchant_that_keeps_up_starts_whatever_is_left() -> None:
    scene = Scene()
    assert isinstance(scene.offer("healthy"), Call)
    assert isinstance(scene.offer("healthy"), Call)


def test_one_without_a_history_waits_for_its_turn() -> None:
    scene = Scene()
    assert isinstance(scene.offer("new"), Call)  # in any case
    assert scene.offer("newer") is AdmissionVerdict.WAIT
    assert scene.admission.next_start(scene.now) is None
    assert scene.now < scene.admission.next_at < scene.now + 1 / LEAST + TURN
    scene.admission.turned(0.0, 1.0)
    assert scene.admission.next_start(scene.now) is not None


def test_one_that_the_worker_has_just_met_has_no_history() -> None:
    scene = Scene()
    scene.keeps_up("new")
    scene.offer("other")  # the start that there is in any case
    assert scene.offer("new") is AdmissionVerdict.WAIT
    scene.admission.drop_waiting()
    scene.now += BEHIND_FOR
    assert isinstance(scene.offer("new"), Call)


def test_one_that_was_behind_a_moment_ago_does_not_keep_up() -> None:
    scene = Scene()
    scene.is_crowded("healthy", BEHIND_AFTER)
    scene.offer("new")  # the start that there is in any case
    assert scene.offer("healthy") is AdmissionVerdict.WAIT
    scene.now += BEHIND_FOR
    scene.admission.drop_waiting()
    scene.is_busy()
    assert isinstance(scene.offer("healthy"), Call)


def test_several_orders_that_come_together_are_no_backlog() -> None:
    scene = Scene()
    scene.is_crowded("healthy", 0.9 * BEHIND_AFTER)
    scene.is_crowded("healthy", 0.9 * BEHIND_AFTER)
    scene.offer("new")  # the start that there is in any case
    assert isinstance(scene.offer("healthy"), Call)


def test_the_next_turn_is_for_those_that_keep_up_and_wait_for_it() -> None:
    scene = Scene()
    scene.knows("quick", 2 * AT_ONCE)
    scene.offer("new")  # the start that there is in any case
    offered = [scene.offer(f"quick {number}") for number in range(2 * AT_ONCE)]
    assert sum(isinstance(each, Call) for each in offered) == AT_ONCE
    assert scene.admission.next_start(scene.now) is None
    assert scene.now < scene.admission.next_at < scene.now + TURN
    scene.admission.turned(TURN, TURN)
    assert scene.offer("healthy") is AdmissionVerdict.WAIT  # behind those that wait
    for _ in range(AT_ONCE):
        assert scene.admission.next_start(scene.now) is not None
    assert scene.admission.next_start(scene.now) is None


def test_of_quick_merchants_that_yield_the_one_with_the_least_work_starts_first() -> None:
    scene = Scene()
    scene.admission.turned(0.0, SCARCE_FOR)
    for merchant in ("much", "little"):
        scene.keeps_up(merchant)
    scene.admission.parked_count.add("much", 5, scene.now + 100)
    scene.is_busy()
    scene.offer("new")  # the start that there is in any case
    for merchant in ("much", "little"):
        assert scene.offer(merchant) is AdmissionVerdict.WAIT
    scene.admission.turned(0.0, 1.0)
    call = scene.admission.next_start(scene.now)
    assert call is not None
    assert call.lane.merchant_id == "little"


def test_others_have_their_least_though_merchants_that_keep_up_wait() -> None:
    scene, started, short = Scene(), [], TURN / 5
    scene.knows("quick", 120)
    for number in range(120):
        scene.offer(f"quick {number}")
        scene.offer(f"new {number}")
    for _ in range(round(5 / LEAST / short)):
        scene.admission.turned(short, short)
        scene.offer(f"quick {len(started) % 120}")
        while (call := scene.admission.next_start(scene.now)) is not None:
            started.append(call.lane.merchant_id.partition(" ")[0])
            scene.admission.release(call, scene.now, CallResult.NONE)
    assert started.count("quick") > 100
    assert 4 <= started.count("new") <= 6


def test_one_with_parked_orders_does_not_keep_up() -> None:
    scene = Scene()
    scene.admission.parked_count.add("healthy", 3, scene.now + 20)
    scene.offer("new")
    assert scene.offer("healthy") is AdmissionVerdict.WAIT


def test_one_whose_orders_came_back_and_wait_in_their_bundle_does_not_keep_up() -> None:
    scene = Scene()
    scene.admission.unpark("healthy", 3, scene.now)
    scene.is_busy()
    scene.offer("new")  # the start that there is in any case
    assert scene.offer("healthy") is AdmissionVerdict.WAIT


def test_a_strangers_orders_that_lack_cpu_come_back_in_their_turn() -> None:
    """One in five seconds at best: sooner they find no room, and take the time in which others are read."""
    scene = Scene()
    scene.offer("new")  # the start that there is in any case
    for _ in range(400):  # of others: there is much to look at
        scene.admission.parked_count.add("other", 1, scene.now + 30)
    assert scene.offer("stranger") is AdmissionVerdict.WAIT
    assert scene.admission.park_delay("stranger", scene.now) == 5 - AHEAD
    scene.admission.parked_count.add("stranger", 1, scene.now + 30)
    assert scene.admission.park_delay("stranger", scene.now) == 10 - AHEAD


def test_a_merchant_that_lacks_cpu_gets_its_orders_back_as_fast_as_it_starts_them() -> None:
    scene = Scene()
    calls = [scene.offer("slow") for _ in range(8)]
    for call in calls:
        if isinstance(call, Call):
            scene.admission.release(call, scene.now + 1.0)
    scene.now += 1.0
    scene.is_busy()
    for _ in range(200):
        scene.admission.parked_count.add("slow", 4, scene.now + 30)
    assert scene.admission.park_delay("slow", scene.now, few=True) >= 5
    assert scene.admission.unpark("slow", 40, scene.now) <= 3


def a_reader_behind(*, starts: int = 1) -> Stage:
    """Messages lie unread, no merchant keeps up, and one at a second has started what it may in any case."""
    stage = Stage(limit=10, slots=200)
    stage.know("slow", seconds=1.0)
    reads(stage.admission, INTERVAL)
    for _ in range(starts):
        assert stage.offer("slow") == START
    return stage


def test_slow_merchants_yield_to_the_reader_while_it_is_behind() -> None:
    stage = a_reader_behind()
    assert stage.offer("slow") is AdmissionVerdict.WAIT
    assert stage.starts() == []
    assert stage.now < stage.admission.next_at <= stage.now + 1 / LEAST + TURN
    stage.offer("slow")
    stage.offer("slow")
    stage.admission.turned(0.0, 0.1)  # it has caught up: one in a turn
    assert len(stage.starts()) == 1
    stage.admission.turned(0.0, SCARCE_FOR)
    assert len(stage.starts()) == 2


def test_other_merchants_do_not_yield_to_the_reader() -> None:
    stage = a_reader_behind()
    stage.offer("slow")
    stage.offer("quick", "first")
    assert stage.starts() == ["first"]
    stage.reply("quick", after=0.02)
    reads(stage.admission, INTERVAL)
    assert stage.offers("quick", 3) == [START] * 3


def test_starts_of_others_take_none_from_those_that_yield_to_the_reader() -> None:
    stage = a_reader_behind(starts=0)
    assert stage.offer("quick") == START
    assert stage.offer("slow") == START


def test_one_met_while_messages_lay_unread_does_not_keep_up_before_they_are_read() -> None:
    """Merchants that all have a backlog would else yield to one of them, whose next orders are not read yet."""
    stage = Stage(limit=10, slots=200)
    reads(stage.admission, INTERVAL)
    stage.answer("quick", after=0.02)
    for _ in range(3):
        stage.admission.turned(TURN, TURN)  # caught up for a moment
        stage.now += BEHIND_FOR
        reads(stage.admission, BEHIND_FOR)
        stage.answer("quick", after=0.02)
    assert not stage.admission.cpu.is_scarce
    stage.now += BEHIND_FOR
    stage.admission.turned(0.0, SCARCE_FOR + TURN)  # the reader has caught up
    stage.answer("quick", after=0.02)
    stage.admission.turned(1.0, 1.0)
    assert stage.admission.cpu.is_scarce


def comes(stage: Stage, merchant: str, number: int) -> None:
    """A merchant has as many orders, one after the other."""
    for _ in range(number):
        stage.answer(merchant, after=0.0)


@pytest.mark.parametrize(
    ("others", "own", "keeps_up"),
    [(2 * ENOUGH, ENOUGH // FEW - 1, True), (2 * ENOUGH, ENOUGH, False), (ENOUGH - 2, 1, False)],
)
def test_one_with_few_orders_beside_a_flood_keeps_up_though_messages_lie_unread(
    others: int, own: int, keeps_up: bool
) -> None:
    """A worker that starts in a flood knows no merchant, and thousands may have an order each."""
    stage = Stage(limit=10, slots=200)
    reads(stage.admission, INTERVAL)
    for merchant in ("flood", "other"):
        comes(stage, merchant, others)
    for number in range(ENOUGH):
        comes(stage, f"rare {number}", 1)
    comes(stage, "few", own)
    stage.now += BEHIND_FOR
    reads(stage.admission, BEHIND_FOR)
    stage.answer("few", after=0.0)
    assert stage.admission.cpu.is_scarce is keeps_up


def test_orders_that_wait_are_counted_too() -> None:
    stage = Stage(limit=1, slots=200)
    reads(stage.admission, INTERVAL)
    for merchant in ("flood", "other"):
        stage.offers(merchant, 2 * ENOUGH)
    stage.answer("few", after=0.0)
    stage.now += BEHIND_FOR
    reads(stage.admission, BEHIND_FOR)
    stage.answer("few", after=0.0)
    assert stage.admission.cpu.is_scarce


def test_orders_before_messages_lay_unread_are_not_compared() -> None:
    stage = Stage(limit=10, slots=200)
    reads(stage.admission, INTERVAL)
    comes(stage, "flood", 3 * ENOUGH)
    stage.admission.turned(0.0, SCARCE_FOR + TURN)
    stage.answer("flood", after=0.0)
    reads(stage.admission, INTERVAL)
    stage.answer("few", after=0.0)
    stage.now += BEHIND_FOR
    reads(stage.admission, BEHIND_FOR)
    stage.answer("few", after=0.0)
    assert not stage.admission.cpu.is_scarce


@pytest.mark.parametrize(("is_there", "ago"), [(True, 0.0), (True, BEHIND_FOR), (False, 0.0)])
def test_beside_one_with_few_orders_a_flood_does_not_keep_up(is_there: bool, ago: float) -> None:
    """Its merchants kept up before messages lay unread; and where all have as many, they still do."""
    stage = Stage(limit=10, slots=200)
    for merchant in ("flood", "other"):
        stage.answer(merchant, after=0.0)
    stage.now += 2 * BEHIND_FOR
    reads(stage.admission, INTERVAL)
    for merchant in ("flood", "other") * (2 * ENOUGH):
        comes(stage, merchant, 1)
        reads(stage.admission, 0.0)
    if is_there:
        comes(stage, "few", 1)
        stage.offer("few")
    stage.admission.drop_waiting()
    stage.now += ago
    reads(stage.admission, 0.0)
    assert (AdmissionVerdict.WAIT in stage.offers("flood", 2)) is (is_there and not ago)


def test_a_merchant_that_had_many_orders_once_has_few_after_as_many_of_others() -> None:
    arrivals = Arrivals()
    for _ in range(8 * MOST):
        arrivals.add("early")
    for number in range(8 * MOST):
        arrivals.add(f"late {number % 2}")
    assert arrivals.are_few("early")
    assert not arrivals.are_few("late 0")
    arrivals.forget()
    assert arrivals.are_few("early") is None


def test_one_that_kept_up_before_messages_lay_unread_keeps_up() -> None:
    stage = Stage(limit=10, slots=200)
    stage.answer("quick", after=0.02)
    stage.now += BEHIND_FOR
    for _ in range(3):
        reads(stage.admission, BEHIND_FOR)
        stage.now += BEHIND_FOR
    stage.answer("quick", after=0.02)
    assert stage.admission.cpu.is_scarce


def test_what_yields_to_the_reader_returns_as_fast_as_it_starts() -> None:
    stage = a_reader_behind()
    stage.offer("slow")
    assert stage.admission.unpark("slow", 40, stage.now) < 10
    stage.admission.parked_count.add("slow", 400, stage.now + 100)
    assert stage.admission.park_delay("slow", stage.now) == 1.0  # it may be over by then


def test_what_yields_to_the_reader_returns_soon_though_no_cpu_is_left_and_no_merchant_keeps_up() -> (
    None
):
    """Nothing is gained by a look at the bundles less often: the CPU would be idle at the end."""
    stage = a_reader_behind()
    reads(stage.admission, 30.0)
    assert stage.admission.cpu.is_used_up
    stage.offer("slow")
    stage.admission.parked_count.add("slow", 400, stage.now + 100)
    assert stage.admission.park_delay("slow", stage.now) == 1.0


def test_what_yields_to_the_reader_is_parked_together() -> None:
    stage = a_reader_behind(starts=0)
    stage.know("quick")
    reads(stage.admission, INTERVAL)
    stage.admission.offer("stranger", "order", stage.now)
    assert not stage.admission.returns_soon("slow", stage.now)
    assert not stage.admission.returns_soon("stranger", stage.now)
    assert stage.admission.returns_soon("quick", stage.now)
    stage.admission.turned(0.0, SCARCE_FOR)  # the reader caught up a while ago
    assert stage.admission.returns_soon("slow", stage.now)
    assert stage.admission.returns_soon("stranger", stage.now)


def test_bundles_are_looked_at_seldom_once_no_cpu_has_been_left_for_seconds() -> None:
    scene = Scene()
    scene.knows("slow", 1)
    scene.admission.parked_count.add("slow 0", 400, scene.now + 100)
    scene.is_busy()
    scene.offer("slow 0")
    few = [scene.admission.park_delay("slow 0", scene.now) for _ in range(50)]
    assert max(few) == 1.0  # one long turn is no reason
    for _ in range(20):
        scene.keeps_up("healthy")
        scene.admission.turned(1.0, 1.0)
    many = [scene.admission.park_delay("slow 0", scene.now) for _ in range(50)]
    assert max(many) > 10.0


def test_strangers_and_slow_merchants_start_in_turn() -> None:
    scene = Scene()
    scene.knows("slow", 20)
    for number in range(20):
        scene.admission.parked_count.add(f"slow {number}", 3, scene.now + 100)
        scene.offer(f"slow {number}")
        scene.offer(f"stranger {number}")
    started = []
    for _ in range(12):
        scene.admission.turned(0.0, 1.0)
        scene.is_busy()
        scene.admission.turned(0.0, 0.1)
        scene.keeps_up("healthy")
        call = scene.admission.next_start(scene.now)
        assert call is not None
        started.append(call.lane.merchant_id.partition(" ")[0])
        scene.admission.release(call, scene.now, CallResult.NONE)
    assert 5 <= started.count("slow") <= 7


def test_a_probe_does_not_wait_for_the_turn_of_its_merchants_backlog() -> None:
    """It would be parked before, and so would each later one, for as long as others have backlogs."""
    scene = Scene()
    scene.knows("quick", 20)
    for _ in range(MINIMUM):
        scene.admission.turned(0.0, SCARCE_FOR)
        call = scene.offer("returning")
        assert isinstance(call, Call)
        scene.admission.release(call, scene.now, CallResult.FAILED)
    scene.now += FIRST_OPEN
    scene.keeps_up("healthy")
    scene.is_busy()
    scene.admission.parked_count.add("returning", 500, scene.now + 100)
    for number in range(20):
        scene.admission.parked_count.add(f"quick {number}", 30, scene.now + 100)
        scene.offer(f"quick {number}")
    assert scene.offer("returning") is AdmissionVerdict.WAIT
    scene.admission.turned(0.0, 0.1)
    probe = scene.admission.next_start(scene.now)
    assert probe is not None
    assert (probe.lane.merchant_id, probe.probe is not None) == ("returning", True)


def test_one_long_turn_changes_no_class_of_slots() -> None:
    scene = Scene()
    call = scene.offer("healthy")
    assert isinstance(call, Call)
    assert scene.admission.slots["light"] == 1
    for _ in range(20):
        scene.offer("healthy")
    scene.is_busy()
    assert scene.admission.slots["heavy"] == 0


def test_a_call_is_judged_as_of_the_answers_that_the_loop_has_handled() -> None:
    stage = Stage()
    stage.know("m")
    stage.offer("m")
    stage.admission.turned(1.0, 1.0, stage.now + 1.0)  # its answer may have come meanwhile
    stage.pass_time(1.0)
    assert not stage.standing("m").silent
    assert stage.now < stage.admission.next_at < stage.now + TURN
    stage.admission.turned(0.0, TURN, stage.now)
    stage.pass_time(0.0)
    assert stage.standing("m").silent


def test_an_answer_that_waited_for_the_loop_does_not_make_its_merchant_slow() -> None:
    stage = Stage()
    stage.know("m")
    stage.offer("m")
    stage.admission.turned(1.0, 1.0, stage.now + 1.0)
    stage.reply("m", after=1.0)
    symptoms = stage.admission.symptoms("m", stage.now)
    assert symptoms is not None
    assert symptoms.usual == pytest.approx(0.1)


def test_what_an_answer_took_at_least_counts() -> None:
    """A loop that is always late would never learn that a merchant has become slower."""
    stage = Stage()
    stage.know("m")
    stage.offer("m")
    stage.admission.turned(0.5, 0.5, stage.now + 1.0)
    stage.reply("m", after=1.0)
    symptoms = stage.admission.symptoms("m", stage.now)
    assert symptoms is not None
    assert symptoms.usual == pytest.approx(0.1 + 0.2 * 0.4)


def test_the_first_answer_counts_though_it_waited() -> None:
    stage = Stage()
    stage.offer("m")
    stage.admission.turned(1.0, 1.0, 1.0)
    stage.reply("m", after=1.0)
    symptoms = stage.admission.symptoms("m", stage.now)
    assert symptoms is not None
    assert symptoms.usual == pytest.approx(1.0)


def test_what_a_call_took_that_failed_is_shown_without_the_time_that_it_waited() -> None:
    stage = Stage()
    stage.know("m")
    stage.offer("m")
    stage.admission.turned(0.75, 0.75, 51.1)
    stage.now = 50.1
    stage.reply("m", after=1.0, contact=CallResult.FAILED)
    symptoms = stage.admission.symptoms("m", stage.now)
    assert symptoms is not None
    assert symptoms.latest == pytest.approx(0.25)
