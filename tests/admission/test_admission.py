"""The rules of admission one by one, with a time that is handed in."""

import itertools
import weakref
from math import ceil, inf
from typing import Any

import pytest

from pos_gateway.admission.admission import Admission, Transition, Verdict
from pos_gateway.admission.breaker import LONGEST_OPEN, MINIMUM, PROBES_TO_CLOSE, State
from pos_gateway.admission.lane import QUIET, Call, Lane
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.admission.pace import MOST_REPLIES, NEVER_SLOW, QUICK_REPLIES, RELAPSED
from pos_gateway.admission.parking import AHEAD
from pos_gateway.admission.suspects import GRACE
from pos_gateway.admission.turns import Turns
from pos_gateway.admission.usual import FIRST_DEVIATION
from pos_gateway.outcome import Contact

START = "start"


class Stage:
    """An admission whose calls are remembered by their merchants."""

    def __init__(
        self,
        limit: int | None = 2,
        provider: str | None = None,
        *,
        in_fleet: bool = False,
        **limits: Any,
    ) -> None:
        self.terms = Terms(limit, provider) if limit is not None else None
        self.announced: list[Transition] = []
        self.short: list[str] = []
        self.admission: Admission[str] = Admission(
            Limits(**{"slots": 4, "max_waiting": 3, **limits}),
            self.terms_of,
            announce=self.announced.append,
            on_short=self.short.append,
            in_fleet=in_fleet,
        )
        self.calls: list[Call[str]] = []
        self.now = 0.0

    def terms_of(self, merchant_id: str) -> Terms | None:
        """A merchant ``name@provider`` has that provider."""
        _name, _, provider = merchant_id.partition("@")
        if provider and self.terms is not None:
            return Terms(self.terms.limit, provider)
        return self.terms

    def offer(self, merchant_id: str, ticket: str = "o", *, within: float = inf) -> object:
        decision = self.admission.offer(merchant_id, ticket, self.now, self.now + within)
        if isinstance(decision, Call):
            self.calls.append(decision)
            return START
        return decision

    def offers(self, merchant_id: str, number: int) -> list[object]:
        return [self.offer(merchant_id, f"{merchant_id}{n}") for n in range(number)]

    def reply(
        self,
        merchant_id: str,
        *,
        after: float = 0.0,
        contact: Contact = Contact.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """The merchant's oldest call returns."""
        self.now += after
        call = next(call for call in self.calls if call.lane.merchant_id == merchant_id)
        self.calls.remove(call)
        self.admission.release(call, self.now, contact, retry_after)

    def answer(self, merchant_id: str, *, after: float) -> None:
        """The merchant answers the only order that it has."""
        self.offer(merchant_id)
        self.reply(merchant_id, after=after)

    def starts(self) -> list[str]:
        """Everything that may start now, in its order."""
        started = []
        while (call := self.admission.next_start(self.now)) is not None:
            started.append(call.ticket)
            self.calls.append(call)
        return started

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.admission.tick(self.now)

    def open_circuit(self, merchant_id: str) -> None:
        """It has failed as often as it takes."""
        for _ in range(MINIMUM):
            assert self.offer(merchant_id) == START
            self.reply(merchant_id, contact=Contact.FAILED)
        assert self.announced[-1].state is State.OPEN

    def make_slow(self, merchant_id: str) -> None:
        """It has answered once, and far too late."""
        assert self.offer(merchant_id) == START
        self.reply(merchant_id, after=self.admission.limits.slow_after)


def test_an_order_starts_while_its_merchant_is_under_its_limit() -> None:
    assert Stage(limit=2).offers("m", 3) == [START, START, Verdict.WAIT]


def test_a_merchant_at_its_limit_takes_no_slot_from_another() -> None:
    stage = Stage(limit=2)
    stage.offers("hanging", 5)
    assert stage.admission.in_flight == 2
    assert stage.offer("healthy") == START


def test_no_more_start_than_there_are_slots() -> None:
    stage = Stage(limit=10)
    verdicts = [stage.offer(f"m{i}") for i in range(6)]
    assert verdicts.count(START) == 4
    assert stage.starts() == []


def test_waiting_orders_are_taken_merchant_by_merchant_in_turn() -> None:
    stage = Stage(limit=10, slots=1)
    stage.offer("x")
    for order in ("a1", "a2", "a3", "b1", "b2", "c1"):
        stage.offer(order[0], order)
    taken = []
    stage.reply("x")
    while started := stage.starts():
        taken += started
        stage.reply(started[0][0])
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_waits_for_a_share_has_its_turn_before_another_has_a_second_one() -> None:
    stage = Stage(limit=4, slots=8, slow_share=0.25)
    for merchant in ("a", "b", "c"):
        stage.make_slow(merchant)
    for _ in range(QUICK_REPLIES - 1):
        stage.answer("c", after=0.01)
    assert stage.offers("c", 2) == [START] * 2
    for order in ("a1", "a2", "b1"):
        assert stage.offer(order[0], order) is Verdict.WAIT
    stage.admission.answered(stage.calls[0], stage.now)  # c is healthy: the share is empty
    assert stage.starts() == ["a1", "b1"]


@pytest.mark.parametrize("opened", ["before its turn is given", "before its turn comes"])
def test_a_turn_that_is_of_no_use_to_a_merchant_is_the_next_ones(opened: str) -> None:
    """Who waits for a share behind one whose breaker opened is not passed by for that."""
    stage = Stage(limit=10, slots=4, provider_share=0.5)
    stage.offers("a@x", 2)
    stage.offers("h", 2)
    for order in ("b@x", "c@x"):  # they wait for the share
        stage.offer(order, order)
    stage.offers("h", 2)
    if opened == "before its turn is given":
        stage.admission.open_breaker("b@x", 60)
    stage.reply("a@x")
    stage.admission.open_breaker("b@x", 60)
    assert stage.starts() == ["h0"]
    stage.reply("h")
    assert stage.starts() == ["c@x"]


def test_who_takes_a_turn_over_that_was_of_no_use_passes_nobody_by_twice() -> None:
    stage = Stage(limit=10, slots=4, provider_share=0.75, slow_share=0.25, slow_after=3.0)
    stage.offers("a@x", 2)
    stage.offers("k", 2)
    for number in range(2):
        stage.offer("g@x", f"g{number}")
    stage.pass_time(3.0)  # the provider is silent, so its share is full
    stage.offer("c@x", "c0")
    stage.admission.answered(stage.calls[0], stage.now)  # it is not: c has a turn, behind g
    stage.admission.open_breaker("c@x", 60)
    stage.offer("h", "h0")
    stage.reply("k")
    assert stage.starts() == ["g0"]  # the share is full again
    stage.reply("a@x")
    assert stage.starts() == ["h0"]


def test_a_share_that_has_room_for_many_at_once_gives_as_many_a_turn() -> None:
    stage = Stage(limit=10, slots=9, provider_share=0.7, slow_share=0.12, slow_after=3.0)
    stage.offers("a@x", 3)
    stage.pass_time(3.0)  # the provider is silent: it has one slot of nine, not six
    stage.offers("h", 6)
    for order in ("b@x", "c@x", "d@x"):
        stage.offer(order, order)
    stage.offers("h", 2)
    stage.reply("a@x")
    assert stage.starts() == ["h0"]
    for _ in range(3):
        stage.reply("h")
    assert stage.starts() == ["b@x", "c@x", "d@x"]


def test_room_for_one_is_promised_to_one_and_the_others_keep_their_places() -> None:
    """Given a turn each, they would find the share full, and be behind who came meanwhile."""
    stage = Stage(limit=10, slots=4, provider_share=0.5)
    stage.offers("a@x", 2)
    stage.offers("h", 2)
    for order in ("b@x", "c@x", "h"):
        stage.offer(order, order)
    stage.reply("a@x")  # there is room for b
    assert stage.starts() == ["h"]
    stage.reply("h")
    assert stage.starts() == ["b@x"]
    stage.offer("d@x", "d@x")
    stage.reply("h")
    assert stage.starts() == []
    stage.reply("b@x")
    assert stage.starts() == ["c@x"]


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    stage = Stage(limit=10, slots=1)
    stage.offer("a")
    stage.offer("b", "waiting")
    stage.reply("a")
    assert stage.offer("c", "newcomer") is Verdict.WAIT
    assert stage.starts() == ["waiting"]


def test_a_merchant_alone_may_have_half_of_all_that_may_wait() -> None:
    verdicts = Stage(limit=1, max_blocked=6).offers("m", 6)
    assert verdicts == [START, *[Verdict.WAIT] * 3, *[Verdict.PARK] * 2]


def test_a_merchant_may_have_as_many_orders_waiting_as_are_done_within_seconds() -> None:
    stage = Stage(limit=2, slots=100)
    stage.answer("m", after=1.0)
    most = 2 + ceil(AHEAD * 2 / (1.0 - FIRST_DEVIATION))
    assert stage.offers("m", 20).count(Verdict.WAIT) == most


def test_one_slow_reply_does_not_make_a_merchants_room_smaller() -> None:
    stage = Stage(limit=1, slots=100)
    for _ in range(30):
        stage.answer("m", after=0.1)
    before = stage.admission._room.state(stage.admission._lane("m"), stage.now).room
    stage.answer("m", after=2.0)
    stage.answer("m", after=0.1)
    after = stage.admission._room.state(stage.admission._lane("m"), stage.now).room
    assert after >= before


def test_a_merchant_that_does_not_answer_may_have_few_orders_waiting() -> None:
    stage = Stage(limit=1, slots=100, max_waiting=3)
    stage.offer("m")
    stage.pass_time(3.0)
    assert stage.offers("m", 5) == [*[Verdict.WAIT] * 3, *[Verdict.PARK] * 2]


def test_orders_that_wait_for_slots_only_have_room_when_no_others_do() -> None:
    stage = Stage(limit=1, slots=2, max_waiting=3, max_blocked=4)
    for n in range(6):
        stage.offers(f"m{n}", 2)
    assert stage.offer("m6") is Verdict.WAIT
    assert stage.offers("m0", 2) == [Verdict.PARK] * 2


def test_so_do_they_not_while_their_provider_is_at_its_share() -> None:
    stage = Stage(limit=1, slots=4, provider_share=0.5, max_blocked=6)
    stage.offer("another")
    assert [stage.offer(f"m{n}@vendor") for n in range(20)].count(Verdict.WAIT) == 6


def test_orders_that_wait_for_a_slot_only_are_not_parked() -> None:
    stage = Stage(limit=10, slots=1, max_waiting=1, max_wait=1.0)
    stage.offer("other")
    assert set(stage.offers("m", 50)) == {Verdict.WAIT}
    assert stage.admission.overdue(100.0) == []


def test_orders_whose_turn_comes_soon_wait_here_however_many() -> None:
    stage = Stage(limit=1, max_waiting=1)
    for _ in range(60):  # it answers in a hundredth of a second, again and again
        stage.offer("fast")
        stage.reply("fast", after=0.01)
    stage.offer("fast")
    assert set(stage.offers("fast", 50)) == {Verdict.WAIT}


def test_all_merchants_in_trouble_together_may_hold_only_so_many() -> None:
    stage = Stage(limit=1, slots=100, max_waiting=3, max_blocked=5)
    verdicts = [verdict for i in range(10) for verdict in stage.offers(f"m{i}", 3)]
    assert verdicts.count(Verdict.WAIT) == 5
    assert stage.admission.blocked == 5


def test_orders_that_wait_for_a_slot_only_are_not_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(limit=10, slots=1, max_wait=5.0)
    stage.offer("other")
    stage.offers("m", 50)
    looks = []
    may_start = Turns.may_start

    def look(turns: Turns[str], lane: Lane[str]) -> bool:
        looks.append(lane)
        return may_start(turns, lane)

    monkeypatch.setattr(Turns, "may_start", look)
    for tenths in range(50, 99):
        stage.admission.overdue(tenths / 10)
    assert len(looks) == 50
    stage.admission.overdue(10.0)
    assert len(looks) == 100


def test_an_order_that_waited_too_long_for_its_merchant_is_handed_out_to_be_parked() -> None:
    stage = Stage(limit=1, max_wait=5.0)
    stage.offer("m", "running")
    stage.now = 1.0
    stage.offer("m", "early")
    stage.now = 4.0
    stage.offer("m", "late")
    assert stage.admission.overdue(5.9) == []
    assert stage.admission.overdue(6.0) == ["early"]
    assert stage.admission.waiting == 1


def test_orders_of_a_merchant_whose_record_is_not_here_yet_wait_for_it() -> None:
    stage = Stage(limit=None, max_waiting=1)
    assert set(stage.offers("m", 400)) == {Verdict.WAIT}
    stage.admission.set_terms("m", Terms(3))
    assert stage.starts() == ["m0", "m1", "m2"]
    assert stage.admission.overdue(stage.now) == []


def test_a_paused_merchant_starts_nothing_until_its_limit_is_raised_again() -> None:
    stage = Stage(limit=2)
    stage.offer("m", "running")
    stage.admission.set_terms("m", Terms(0))
    assert stage.offer("m") is Verdict.WAIT
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(2))
    assert stage.starts() == ["o"]


def test_the_merchants_of_one_provider_keep_to_its_share_while_others_could_want_more() -> None:
    stage = Stage(limit=10, slots=10, provider_share=0.5)
    assert stage.offers("other", 3) == [START] * 3
    assert [stage.offer(f"m{n}@vendor") for n in range(8)].count(START) == 5
    assert stage.starts() == []  # two slots are left, for others who hold three
    stage.reply("m0@vendor")
    assert len(stage.starts()) == 1


def test_slots_that_nobody_else_wants_are_not_kept_from_a_provider() -> None:
    stage = Stage(limit=10, slots=10, provider_share=0.5)
    assert [stage.offer(f"m{n}@vendor") for n in range(12)].count(START) == 5
    assert len(stage.starts()) == 5
    assert stage.offer("other") is Verdict.WAIT
    stage.reply("m0@vendor")
    assert stage.starts() == ["o"]
    assert stage.calls[-1].lane.merchant_id == "other"


def test_a_merchant_that_stands_alone_is_held_to_no_share() -> None:
    stage = Stage(limit=10, slots=10, provider_share=0.5)
    assert stage.offers("m", 10) == [START] * 10


def test_a_call_that_is_out_for_too_long_makes_its_merchant_slow_before_it_returns() -> None:
    stage = Stage(limit=2, slots=8, slow_share=0.25, slow_after=3.0)
    for merchant in ("a", "b", "c"):
        stage.offer(merchant)
    stage.pass_time(2.9)
    assert stage.offer("d") == START
    stage.pass_time(0.1)  # a, b and c are slow now, and more than the slow ones may be
    assert [stage.offer(merchant) for merchant in ("a", "b", "c")] == [Verdict.WAIT] * 3
    assert stage.offer("d") == START
    stage.reply("a")
    assert stage.starts() == []
    stage.reply("b")
    assert len(stage.starts()) == 1


def test_however_many_merchants_hang_the_rest_keep_their_part_of_the_slots() -> None:
    stage = Stage(limit=2, slots=100, slow_share=0.25, max_blocked=10_000)
    for first in range(0, 500, 100):
        for n in range(first, first + 100):
            stage.offer(f"hanging{n}")
        stage.pass_time(3.0)
        for n in range(first, first + 100):
            stage.reply(f"hanging{n}")
    started = [stage.offer(f"hanging{n}") for n in range(500)].count(START)
    assert started == 25
    assert [stage.offer(f"healthy{n}") for n in range(75)] == [START] * 75


def test_a_merchant_is_slow_sooner_if_that_is_unlike_it() -> None:
    """A hundred that stop at once would else take every slot before the first is out too long."""
    stage = Stage(limit=2, slots=8, slow_share=0.25, slow_after=3.0)
    for _ in range(20):
        stage.offer("quick")
        stage.reply("quick", after=0.02)
    stage.offer("quick")
    stage.offer("unknown")
    stage.pass_time(0.6)
    assert stage.admission._lane("quick").pace.slow
    assert not stage.admission._lane("unknown").pace.slow


def test_a_slow_merchant_is_healthy_again_after_quick_replies() -> None:
    stage = Stage(limit=1, slots=8)
    stage.make_slow("m")
    for _ in range(QUICK_REPLIES):
        assert stage.admission._lane("m").pace.slow
        stage.offer("m")
        stage.reply("m", after=0.01)
    assert not stage.admission._lane("m").pace.slow


def test_a_slow_merchant_is_healthy_again_after_a_quiet_spell() -> None:
    stage = Stage(limit=1, slots=8)
    stage.make_slow("m")
    stage.pass_time(QUIET + 1)
    stage.offer("m")
    assert not stage.admission._lane("m").pace.slow


def test_an_order_that_never_called_its_merchant_says_nothing_about_it() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m")
    stage.reply("m", after=100.0, contact=Contact.NONE)
    assert stage.admission._lane("m").pace.mean is None
    assert not stage.admission._lane("m").pace.slow


def test_a_merchant_that_moves_to_another_provider_takes_its_waiting_orders_along() -> None:
    stage = Stage(limit=5, slots=6, provider_share=0.17)
    stage.offers("other", 3)
    stage.offers("m@old", 3)
    assert stage.admission.in_flight == 4
    stage.admission.set_terms("m@old", Terms(5, "new"))
    assert len(stage.starts()) == 1
    stage.reply("m@old")
    assert stage.starts() == []  # the one that came back was the old provider's
    stage.reply("m@old")
    assert len(stage.starts()) == 1


def test_orders_of_a_merchant_that_does_not_answer_are_back_after_as_long_as_it_has_not() -> None:
    stage = Stage(limit=1, longest_park=30.0)
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


def test_of_a_paused_merchant_no_parked_order_comes_and_of_an_unknown_one_all_do() -> None:
    paused, unknown = Stage(limit=0), Stage(limit=None)
    assert paused.admission.let_out("m", 64, 100.0) == 0
    assert paused.admission.look_again("m", 0, 100.0) is None
    assert unknown.admission.let_out("m", 64, 100.0) == 64


def test_parked_orders_are_back_when_their_merchant_is_left_alone_no_more() -> None:
    stage = Stage(limit=2, slots=8)
    stage.offers("m", 2)
    stage.reply("m", contact=Contact.OVERLOADED, retry_after=120.0)
    open_for = stage.announced[-1].seconds
    delays = [stage.admission.park_delay("m", stage.now) for _ in range(50)]
    assert all(open_for <= delay <= open_for + 15 for delay in delays)
    assert stage.admission.let_out("m", 64, stage.now) == 0
    stage.pass_time(open_for)
    assert stage.admission.let_out("m", 64, stage.now) == PROBES_TO_CLOSE


def test_no_more_parked_orders_come_than_may_wait_here() -> None:
    stage = Stage(limit=1, max_blocked=12)
    stage.offers("m", 3)
    assert stage.admission.let_out("m", 64, stage.now) == 8
    full = Stage(limit=1, max_waiting=3, max_blocked=2)
    full.offers("m", 3)
    full.offers("n", 3)
    assert full.admission.let_out("m", 64, full.now) == 0
    # One that is not in trouble has its orders started, not waiting: it is not locked out.
    assert full.admission.let_out("other", 64, full.now) == 3


def test_a_merchant_is_not_blamed_for_a_slot_that_is_kept_after_its_answer() -> None:
    stage = Stage(limit=10, slots=10)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", 9)
    for call in stage.calls:
        stage.admission.answered(call, stage.now)
    stage.pass_time(60.0)  # the broker stores nothing meanwhile
    while stage.calls:
        stage.reply("m", contact=Contact.NONE)
    standing = stage.admission.merchant("m")
    assert standing is not None
    assert (standing.slow, standing.breaker, stage.announced) == (False, State.CLOSED, [])


def test_what_is_parked_is_counted_until_it_is_due() -> None:
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
    for order, within in (("later", 50.0), ("whenever", inf), ("soon", 20.0), ("soon too", 20.0)):
        stage.offer("m", order, within=within)
    started = []
    while stage.calls:
        stage.reply("m", after=0.1)
        started += stage.starts()
    assert started == ["soon", "soon too", "later", "whenever"]


def test_an_order_expires_where_it_waits_when_its_time_is_over() -> None:
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
    assert stage.offer("m", within=0.0) is Verdict.EXPIRE


def test_an_order_that_cannot_start_in_time_expires_at_once() -> None:
    stage = Stage(limit=1, slots=8)
    stage.offer("m", "running")
    stage.offer("m", "short", within=30.0)
    stage.offer("m", "long", within=300.0)
    stage.reply("m", contact=Contact.OVERLOADED, retry_after=60.0)
    assert stage.admission.expired() == ["short"]
    assert stage.offer("m", within=59.0) is Verdict.EXPIRE
    assert stage.offer("m", within=90.0) is Verdict.PARK


def test_a_limit_is_halved_once_for_all_calls_that_were_out_together() -> None:
    stage = Stage(limit=8, slots=20)
    stage.offers("m", 8)
    for _ in range(3):
        stage.reply("m", after=0.1, contact=Contact.OVERLOADED)
    assert stage.admission._lane("m").bulkhead.limit == 4
    for _ in range(5):
        stage.reply("m", contact=Contact.NONE)
    stage.admission.close_breaker("m")
    stage.offer("m")
    stage.reply("m", contact=Contact.TIMED_OUT)
    assert stage.admission._lane("m").bulkhead.limit == 2


def test_a_limit_never_falls_below_one() -> None:
    stage = Stage(limit=3, slots=20)
    for _ in range(4):
        stage.offer("m")
        stage.reply("m", after=0.1, contact=Contact.OVERLOADED)
    assert stage.admission._lane("m").bulkhead.limit == 1


def test_a_limit_rises_by_one_for_a_full_window_of_answers_if_it_was_reached() -> None:
    stage = Stage(limit=4, slots=20, max_waiting=50)
    lane = stage.admission._lane("m")
    stage.offers("m", 4)
    stage.reply("m", contact=Contact.OVERLOADED)
    stage.reply("m")
    stage.reply("m")
    stage.reply("m")
    assert lane.bulkhead.limit == 2  # it was answered, and had not reached its new limit since
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


def test_a_breaker_opens_at_the_call_that_makes_failures_too_many() -> None:
    stage = Stage(limit=20, slots=50)
    stage.offers("m", MINIMUM)
    for _ in range(MINIMUM - 1):
        stage.reply("m", contact=Contact.FAILED)
    assert stage.announced == []
    stage.reply("m", contact=Contact.FAILED)
    assert [(each.state, each.why) for each in stage.announced] == [(State.OPEN, "failures")]
    assert stage.offer("m") is Verdict.WAIT
    assert stage.starts() == []
    assert stage.offer("other") == START


def test_a_breaker_opens_when_calls_are_late_not_when_they_return() -> None:
    stage = Stage(limit=MINIMUM, slots=50, slow_after=3.0)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", MINIMUM)
    stage.pass_time(2.9)
    assert stage.announced == []
    stage.pass_time(0.1)
    assert [(each.state, each.why) for each in stage.announced] == [(State.OPEN, "late")]


def test_a_merchant_that_always_takes_its_time_is_slow_and_no_more_than_that() -> None:
    stage = Stage(limit=5, slots=50, slow_after=3.0, slow_share=0.5)
    for _ in range(20):
        stage.offers("m", 5)
        stage.starts()
        stage.pass_time(4.9)
        for _ in range(5):
            stage.reply("m")
    assert stage.admission._lane("m").pace.slow
    assert stage.announced == []
    assert stage.admission._lane("m").bulkhead.limit == 5


def test_a_breaker_half_opens_for_one_probe_at_a_time_and_closes_after_answers_in_a_row() -> None:
    stage = Stage(limit=5, slots=50)
    stage.open_circuit("m")
    assert stage.offers("m", 3) == [Verdict.WAIT] * 3
    stage.pass_time(stage.announced[-1].seconds)
    assert stage.announced[-1].state is State.HALF_OPEN
    for _ in range(PROBES_TO_CLOSE):
        assert len(stage.starts()) == 1
        assert stage.calls[-1].patience == 0.5
        stage.reply("m", after=0.1)
    assert stage.announced[-1].state is State.CLOSED
    assert len(stage.starts()) == 1
    assert stage.calls[-1].patience == 1


def test_a_probe_that_fails_opens_the_breaker_for_longer_and_the_next_has_more_patience() -> None:
    stage = Stage(limit=5, slots=50)
    stage.open_circuit("m")
    opened, patience = [], []
    for _ in range(8):
        opened.append(stage.announced[-1].seconds)
        stage.pass_time(opened[-1])
        assert stage.offer("m", "probe") == START
        patience.append(stage.calls[-1].patience)
        stage.reply("m", contact=Contact.TIMED_OUT)
    assert all(b > a for a, b in itertools.pairwise(opened[:5]))
    assert max(opened) <= LONGEST_OPEN
    assert patience[:4] == [0.5, 0.75, 1.0, 1.0]


def test_a_merchant_that_has_become_slow_for_good_is_not_locked_out() -> None:
    stage = Stage(limit=5, slots=50, slow_after=3.0)
    stage.offer("m")
    stage.reply("m", after=0.05)
    stage.offers("m", 5)
    stage.pass_time(4.9)
    assert stage.announced[-1].state is State.OPEN
    for _ in range(5):
        stage.reply("m")
    for _ in range(PROBES_TO_CLOSE):
        stage.pass_time(2.0)
        stage.offer("m")
        stage.pass_time(4.9)
        stage.reply("m")
    assert stage.announced[-1].state is State.CLOSED
    before = len(stage.announced)
    for _ in range(10):
        stage.offers("m", 5)
        stage.starts()
        stage.pass_time(4.9)
        while stage.calls:
            stage.reply("m")
    assert len(stage.announced) == before


def test_a_merchant_is_left_alone_for_as_long_as_it_asks() -> None:
    stage = Stage(limit=5, slots=50)
    stage.offers("m", 2)
    stage.reply("m", contact=Contact.OVERLOADED, retry_after=7.0)
    assert stage.announced[-1].why == "asked"
    assert 7.0 <= stage.announced[-1].seconds <= 7.5
    stage.reply("m", contact=Contact.OVERLOADED, retry_after=20.0)
    assert stage.announced[-1].seconds >= 20.0
    stage.pass_time(19.9)
    assert stage.announced[-1].state is State.OPEN


def test_what_was_on_its_way_before_the_breaker_opened_decides_nothing() -> None:
    stage = Stage(limit=20, slots=50)
    stage.offers("m", MINIMUM + 4)
    for _ in range(MINIMUM):
        stage.reply("m", contact=Contact.FAILED)
    stage.reply("m")
    stage.reply("m")
    stage.pass_time(stage.announced[-1].seconds)
    stage.reply("m")
    stage.reply("m", contact=Contact.FAILED)
    assert [each.state for each in stage.announced] == [State.OPEN, State.HALF_OPEN]


def test_a_merchant_that_comes_and_goes_stays_among_the_slow_for_longer_each_time() -> None:
    stage = Stage(limit=1, slots=8)
    needed = []
    for _ in range(4):
        stage.make_slow("m")
        replies = 0
        while stage.admission._lane("m").pace.slow:
            stage.offer("m")
            stage.reply("m", after=0.01)
            replies += 1
        needed.append(replies)
    assert needed == [QUICK_REPLIES, QUICK_REPLIES * RELAPSED, MOST_REPLIES, MOST_REPLIES]


def hanging(stage: Stage, number: int) -> None:
    """So many merchants that answered quickly before do not any more, but "healthy" does."""
    stage.answer("healthy", after=GRACE)
    for n in range(number):
        stage.offer(f"h{n}")
        stage.reply(f"h{n}", after=0.01)
    for n in range(number):
        assert stage.offer(f"h{n}") == START
    stage.pass_time(0.07)
    stage.answer("healthy", after=GRACE)


def cut_short(stage: Stage) -> list[str]:
    return [call.lane.merchant_id for call in stage.admission.to_cut_short()]


def test_calls_that_hang_are_cut_short_before_the_last_slot_is_taken() -> None:
    stage = Stage(limit=1, slots=40, slow_share=0.25)
    hanging(stage, 38)
    assert stage.admission.limits.reserve == 2
    assert cut_short(stage) == []  # two slots are free
    stage.offer("a")
    assert cut_short(stage) == ["h0"]
    assert cut_short(stage) == []  # it has not come back yet
    stage.offer("b")
    for n in range(4):
        assert stage.offer(f"waiting{n}") is Verdict.WAIT
    assert cut_short(stage) == [f"h{n}" for n in range(1, 6)]


def test_nothing_is_cut_short_for_the_orders_of_those_that_hang() -> None:
    stage = Stage(limit=2, slots=40, slow_share=0.25)
    for n in range(40):
        stage.answer(f"h{n}", after=0.01)
    for n in range(40):
        assert stage.offer(f"h{n}") == START
    for n in range(40):
        assert stage.offer(f"h{n}") is Verdict.WAIT
    stage.pass_time(0.5)  # they are slow now, and theirs in line more than the slow may have
    stage.pass_time(GRACE)
    assert cut_short(stage) == ["h0", "h1"]  # for the reserve
    stage.offer("healthy")
    assert cut_short(stage) == ["h2"]


def test_half_the_share_of_the_slow_is_not_cut_short() -> None:
    stage = Stage(limit=1, slots=40, slow_share=0.25)
    hanging(stage, 38)
    for n in range(50):
        stage.offer(f"other{n}")
    assert len(cut_short(stage)) == 38 - 5


def test_the_slow_have_a_quarter_of_their_share_until_one_of_them_answers() -> None:
    stage = Stage(limit=2, slots=40, slow_share=0.2)
    for n in range(8):
        stage.answer(f"s{n}", after=0.01)
    for n in range(8):
        assert stage.offer(f"s{n}") == START
    stage.pass_time(NEVER_SLOW)
    for n in range(2, 8):
        stage.reply(f"s{n}", contact=Contact.TIMED_OUT)
    assert stage.offer("s2") is Verdict.WAIT  # s0 and s1 are two of eight
    assert stage.offer("s3") is Verdict.WAIT
    stage.reply("s0")
    assert len(stage.starts()) == 2


def test_less_is_let_be_while_none_of_the_slow_answers() -> None:
    stage = Stage(limit=1, slots=40, slow_share=0.4)
    hanging(stage, 38)
    stage.offer("a")
    assert cut_short(stage) == ["h0"]
    stage.reply("h0", contact=Contact.TIMED_OUT)  # it is slow now, and silent
    for n in range(50):
        stage.offer(f"other{n}")
    assert len(cut_short(stage)) == 37 - 2


def test_a_merchant_that_has_never_answered_is_suspect_when_others_would_be() -> None:
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    for n in range(20):
        stage.answer(f"known{n}", after=0.2)
    for n in range(7):
        assert stage.offer(f"stranger{n}") == START
    stage.answer("known0", after=0.2)
    assert stage.offer("known1") == START
    assert cut_short(stage) == []  # the strangers are not out for longer than usual
    stage.pass_time(0.06)
    stage.reply("known1", after=0.14)
    assert stage.offer("known2") == START
    assert cut_short(stage) == ["stranger0"]


def test_what_is_usual_for_all_follows_them_however_many_have_answered() -> None:
    stage = Stage(limit=1, slots=8)
    for n in range(1000):
        stage.answer(f"quick{n}", after=0.1)
    for n in range(200):
        stage.answer(f"slower{n}", after=1.0)
    stage.offer("stranger")
    stage.pass_time(1.0)
    assert stage.admission._suspects.number == 0
    stage.pass_time(1.0)
    assert stage.admission._suspects.number == 1


def test_a_few_calls_that_hang_are_let_be_however_many_wait() -> None:
    stage = Stage(limit=1, slots=6, slow_share=1.0)
    hanging(stage, 3)
    for n in range(9):
        stage.offer(f"other{n}")
    assert cut_short(stage) == []


def test_where_nobody_answers_calls_are_cut_short_only_when_they_are_slow() -> None:
    """The network is away; or they hold all slots, so that nobody else can answer."""
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    for n in range(8):
        stage.answer(f"h{n}", after=0.01)
    for n in range(8):
        stage.offer(f"h{n}")
    stage.offer("healthy")
    stage.pass_time(0.4)
    stage.pass_time(GRACE)
    assert cut_short(stage) == []
    stage.pass_time(0.1)
    assert cut_short(stage) == ["h0", "h1"]  # one for the reserve


def test_a_call_of_a_merchant_that_takes_its_time_keeps_none_from_being_cut_short() -> None:
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    stage.answer("steady", after=1.0)
    for n in range(7):
        stage.answer(f"h{n}", after=0.01)
    stage.offer("steady")  # a suspect after 1.5 s, slow after 3
    stage.pass_time(1.45)
    for n in range(7):
        stage.offer(f"h{n}")  # suspects after 0.06 s, slow after half a second
    stage.offer("healthy")
    for _ in range(6):
        stage.pass_time(0.1)
    assert cut_short(stage) == ["h0", "h1"]


def test_nothing_holds_on_to_a_suspect_that_has_come_back() -> None:
    stage = Stage(limit=1, slots=8)
    for n in range(8):
        stage.answer(f"h{n}", after=0.01)
    for n in range(8):
        stage.offer(f"h{n}")
    stage.pass_time(1.0)
    suspects = stage.admission._suspects
    assert suspects.number == 8
    for n in (1, 3, 5, 7, 6, 4, 2):
        stage.reply(f"h{n}")
    assert len(suspects._calls) + len(suspects._slow) <= 4  # h0 is still out
    stage.reply("h0")
    assert len(suspects._calls) + len(suspects._slow) == 0


def test_where_all_answers_are_late_no_call_is_cut_short_before_it_is_slow() -> None:
    """It may be this process that is late: two hundred handshakes at once take it a while."""
    stage = Stage(limit=1, slots=40, slow_share=0.25)
    for n in range(40):
        stage.answer(f"m{n}", after=0.01)
    stage.answer("prompt", after=0.01)
    for n in range(40):
        assert stage.offer(f"m{n}") == START
    stage.offer("prompt")
    for n in range(40):
        stage.offer(f"waiting{n}")
    stage.pass_time(0.1)
    for n in range(15):
        stage.reply(f"m{n}", after=0.02)
        assert cut_short(stage) == []
    stage.starts()
    stage.reply("prompt", after=0.01)  # one of many
    stage.starts()
    assert cut_short(stage) == []


def test_where_all_first_answers_are_late_no_call_is_cut_short_before_it_is_slow() -> None:
    """A worker that has just started: two hundred connections at once take it a while."""
    stage = Stage(limit=1, slots=40, slow_share=0.25)
    for _ in range(2):
        stage.answer("prompt", after=0.01)
    for n in range(40):
        assert stage.offer(f"stranger{n}") == START
    stage.pass_time(0.1)
    for n in range(10):
        stage.reply(f"stranger{n}", after=0.002)
    stage.answer("prompt", after=0.01)  # one of many
    for n in range(40):
        stage.offer(f"waiting{n}")
    stage.pass_time(GRACE)
    assert cut_short(stage) == []


def test_answers_that_lie_unread_are_read_before_calls_are_cut_short() -> None:
    """After this process was held up all calls have been out for long, and most were answered."""
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    for n in range(8):
        stage.answer(f"h{n}", after=0.01)
    for n in range(8):
        stage.offer(f"h{n}")
    stage.offer("healthy")
    stage.pass_time(5.0)
    stage.reply("h7")
    assert cut_short(stage) == []


def test_a_call_is_not_cut_short_where_the_order_could_not_be_sent_again() -> None:
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    stage.terms = Terms(1, may_be_cut_short=False)
    hanging(stage, 8 - 1)
    stage.offer("other")
    assert cut_short(stage) == []


def test_a_merchant_whose_call_was_cut_short_is_slow() -> None:
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    hanging(stage, 7)
    stage.offer("other")
    (chosen,) = cut_short(stage)
    stage.reply(chosen, contact=Contact.TIMED_OUT)
    standing = stage.admission.merchant(chosen)
    assert standing is not None
    assert standing.slow


def test_a_merchant_that_takes_its_time_is_suspected_later() -> None:
    stage = Stage(limit=1, slots=8, slow_share=0.25)
    for seconds in (0.1, 0.9) * 10:
        stage.answer("erratic", after=seconds)
    for _ in range(20):
        stage.answer("steady", after=0.5)
    erratic = stage.admission._lane("erratic").pace.exceeded_after(3.0)
    steady = stage.admission._lane("steady").pace.exceeded_after(3.0)
    assert steady < 0.7
    assert 1.5 < erratic < 3


def test_a_provider_of_which_nobody_answers_has_the_share_of_the_slow() -> None:
    stage = Stage(limit=2, slots=8, provider_share=0.5, slow_share=0.25)
    for n in range(4):
        assert stage.offer(f"{n}@x") == START
    stage.pass_time(3.0)
    stage.reply("0@x", contact=Contact.TIMED_OUT)
    assert stage.offer("5@x") is Verdict.WAIT
    stage.reply("1@x", contact=Contact.TIMED_OUT)
    stage.reply("2@x", contact=Contact.TIMED_OUT)
    assert stage.starts() == ["o"]
    assert [stage.offer("6@x"), stage.offer("7@x")] == [Verdict.WAIT] * 2
    stage.admission.answered(stage.calls[-1], stage.now)  # the broker stores nothing yet
    assert len(stage.starts()) == 2


def test_a_provider_whose_calls_are_cut_short_has_the_share_of_the_slow_too() -> None:
    stage = Stage(limit=1, slots=8, provider_share=0.5, slow_share=0.25)
    for n in range(4):
        stage.answer(f"{n}@x", after=0.01)
    stage.answer("healthy", after=1.0)
    for merchant in ("0@x", "1@x", "2@x", "3@x", "a", "b", "c"):
        assert stage.offer(merchant) == START
    stage.pass_time(0.07)
    stage.answer("healthy", after=GRACE)
    stage.offer("d")
    assert cut_short(stage) == ["0@x"]
    stage.reply("0@x", contact=Contact.TIMED_OUT)
    assert stage.offer("5@x") is Verdict.WAIT
    assert stage.starts() == []
    stage.reply("1@x")
    assert stage.starts() == ["o"]


def test_those_that_waited_too_long_come_a_few_at_a_time_if_that_is_wanted() -> None:
    stage = Stage(limit=1, slots=8, max_waiting=5)
    stage.offers("m", 6)
    stage.pass_time(3.0)
    handed_out = []
    while some := stage.admission.overdue(6.0, 2):
        assert len(some) <= 2
        handed_out += some
    assert handed_out == [f"m{n}" for n in range(1, 6)]


def test_nothing_starts_while_it_is_not_certain_what_is_agreed() -> None:
    stage = Stage(limit=3, slots=8)
    stage.offer("m", "before")
    stage.admission.forget_terms("m")
    assert stage.offers("m", 2) == [Verdict.WAIT] * 2
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(0))
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(3))
    assert stage.starts() == ["m0", "m1"]


def test_a_merchant_that_asked_to_be_left_alone_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pos_gateway.admission.admission.LANES", 10)
    stage = Stage(limit=1, slots=8)
    stage.offer("m")
    stage.reply("m", contact=Contact.OVERLOADED, retry_after=900.0)
    for n in range(30):
        assert stage.offer(f"other{n}") == START
        stage.reply(f"other{n}")
    assert stage.offer("m") is Verdict.PARK


def test_nothing_holds_on_to_an_order_that_is_done() -> None:
    class Order:
        """Something that can be watched."""

    admission: Admission[Order] = Admission(Limits(slots=1), lambda _: Terms(1))
    watched: list[weakref.ref[Order]] = []
    for n in range(50):
        order = Order()
        watched.append(weakref.ref(order))
        admission.offer(f"m{n}", order, 0.0, 3600.0)
    del order
    busy = next(iter(admission._lanes.values()))
    assert busy.bulkhead.in_flight == 1
    call: Call[Order] | None = admission._agenda._entries[0][3]  # type: ignore[assignment]
    while call is not None:
        admission.release(call, 0.1)
        call = admission.next_start(0.1)
    admission.tick(10.0)
    assert [ref for ref in watched if ref() is not None] == []


def test_no_more_of_a_merchants_orders_start_in_a_second_than_it_takes() -> None:
    stage = Stage(limit=10, slots=20)
    stage.terms = Terms(10, per_second=3.0)
    assert stage.offers("m", 5) == [START] * 3 + [Verdict.WAIT] * 2
    stage.now = 0.5
    for _ in range(3):
        stage.reply("m")
    assert stage.starts() == []
    assert stage.admission.next_at == 1.0
    stage.pass_time(0.5)
    assert stage.starts() == ["m3", "m4"]


def test_one_that_has_started_all_of_its_second_takes_no_slot_and_no_turn() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms = Terms(10, per_second=1.0)
    stage.offers("paced", 3)
    assert stage.admission.in_flight == 1
    assert stage.admission.blocked == 2
    assert stage.offer("other") == START


def test_of_less_than_one_a_second_one_starts_in_each_span() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms = Terms(10, per_second=0.25)
    stage.offers("m", 2)
    stage.reply("m", after=0.1)
    stage.pass_time(3.8)
    assert stage.starts() == []
    stage.pass_time(0.1)
    assert stage.starts() == ["m1"]


def test_a_record_that_is_read_again_begins_no_new_second() -> None:
    stage = Stage(limit=10, slots=4)
    stage.terms = Terms(10, per_second=1.0)
    stage.offers("m", 2)
    stage.admission.set_terms("m", Terms(10, per_second=1.0))
    assert stage.starts() == []
    stage.admission.set_terms("m", Terms(10))
    assert stage.starts() == ["m1"]


def test_parked_orders_come_back_at_the_rate_that_the_merchant_takes() -> None:
    stage = Stage(limit=10, slots=20, longest_park=30.0)
    stage.terms = Terms(10, per_second=2.0)
    stage.answer("m", after=0.01)
    for _ in range(600):  # no bundle is looked at before all others may have been
        stage.admission.parked_count.add("other", 1, 1000.0)
    for parked, seconds in ((8, 2.5), (8, 6.5), (8, 10.5)):
        stage.admission.parked_count.add("m", parked, 1000.0)
        assert stage.admission.park_delay("m", stage.now) == seconds


def test_in_a_fleet_each_worker_starts_its_part_of_what_the_merchant_takes() -> None:
    stage = Stage(limit=10, slots=20, in_fleet=True)
    stage.terms = Terms(10, per_second=10.0)
    stage.offers("m", 9)
    stage.admission.allot("m", 4)
    assert len(stage.starts()) == 4
    for _ in range(4):
        stage.reply("m", after=0.1)
    assert stage.starts() == []
    stage.admission.allot("m", 5)
    assert len(stage.starts()) == 1


def test_what_has_just_started_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pos_gateway.admission.admission.LANES", 10)
    stage = Stage(limit=5, slots=8)
    stage.terms = Terms(5, per_second=1.0)
    stage.answer("m", after=0.0)
    for n in range(30):
        stage.answer(f"other{n}", after=0.0)
    assert stage.offer("m") is Verdict.WAIT


def test_in_a_fleet_a_merchant_starts_no_more_than_it_was_allotted() -> None:
    stage = Stage(limit=3, slots=8, in_fleet=True)
    assert stage.offers("m", 3) == [Verdict.WAIT] * 3
    assert stage.short == ["m"] * 3
    stage.admission.allot("m", 2)
    assert stage.starts() == ["m0", "m1"]
    stage.admission.allot("m", None)
    assert stage.starts() == ["m2"]


def test_what_another_worker_found_out_about_a_merchant_holds_here() -> None:
    stage = Stage(limit=3, slots=8)
    stage.admission.open_breaker("m", 3.0)
    assert stage.offer("m") is Verdict.WAIT
    stage.admission.close_breaker("m")
    assert stage.starts() == ["o"]


@pytest.mark.parametrize(
    "limits",
    [
        {"slots": 0},
        {"slots": -1},
        {"max_waiting": 0},
        {"max_wait": float("nan")},
        {"longest_park": 0.5},
        {"slow_share": 0.0},
        {"slow_share": 1.5},
        {"provider_share": float("nan")},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)
