"""The rules of admission, driven with a time that is handed in."""

import itertools

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pos_gateway.admission.admission import Admission, Limits, Verdict


def an_admission(limit: int | None = 2, **limits: float) -> Admission[str]:
    return Admission(Limits(**{"slots": 4, "max_waiting": 3, **limits}), lambda _merchant: limit)  # type: ignore[arg-type]


def starts(admission: Admission[str]) -> list[str]:
    """Everything that may start now, in its order."""
    started = []
    while (admitted := admission.next_start()) is not None:
        started.append(admitted[1])
    return started


def test_an_order_starts_while_its_merchant_is_under_its_limit() -> None:
    admission = an_admission(limit=2)
    assert [admission.offer("m", f"o{i}", 0.0) for i in range(3)] == [
        Verdict.START,
        Verdict.START,
        Verdict.WAIT,
    ]


def test_a_merchant_at_its_limit_takes_no_slot_from_another() -> None:
    admission = an_admission(limit=2)
    for i in range(5):
        admission.offer("hanging", f"h{i}", 0.0)
    assert admission.in_flight == 2
    assert admission.offer("healthy", "o", 0.0) is Verdict.START


def test_no_more_start_than_there_are_slots() -> None:
    admission = an_admission(limit=10)
    verdicts = [admission.offer(f"m{i}", "o", 0.0) for i in range(6)]
    assert verdicts.count(Verdict.START) == 4
    assert starts(admission) == []


def test_waiting_orders_are_taken_merchant_by_merchant_in_turn() -> None:
    admission = an_admission(limit=10, slots=1)
    admission.offer("first", "running", 0.0)
    for order in ("a1", "a2", "a3", "b1", "b2", "c1"):
        admission.offer(order[0], order, 0.0)
    taken = []
    admission.release("first", 0.1)
    while (admitted := admission.next_start()) is not None:
        taken.append(admitted[1])
        admission.release(admitted[0], 0.1)
    assert taken == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    admission = an_admission(limit=10, slots=1)
    admission.offer("a", "running", 0.0)
    admission.offer("b", "waiting", 0.0)
    admission.release("a", 0.1)
    assert admission.offer("c", "newcomer", 0.0) is Verdict.WAIT
    assert starts(admission) == ["waiting"]


def test_a_merchant_at_its_limit_may_hold_only_so_many() -> None:
    admission = an_admission(limit=1, max_waiting=3)
    verdicts = [admission.offer("m", f"o{i}", 0.0) for i in range(6)]
    assert verdicts == [Verdict.START, *[Verdict.WAIT] * 3, *[Verdict.PARK] * 2]


def test_orders_that_wait_for_a_slot_only_are_not_parked() -> None:
    admission = an_admission(limit=10, slots=1, max_waiting=1, max_wait=1.0)
    admission.offer("other", "running", 0.0)
    assert {admission.offer("m", f"o{i}", 0.0) for i in range(50)} == {Verdict.WAIT}
    assert list(admission.overdue(100.0)) == []


def test_orders_whose_turn_comes_sooner_than_a_parked_one_could_return_wait_here() -> None:
    admission = an_admission(limit=1, max_waiting=1)
    admission.offer("fast", "o", 0.0)
    for _ in range(60):  # it answers in a hundredth of a second, again and again
        admission.release("fast", 0.01)
        admission.offer("fast", "o", 0.0)
    assert {admission.offer("fast", f"w{i}", 0.0) for i in range(50)} == {Verdict.WAIT}


def test_all_merchants_at_their_limits_together_may_hold_only_so_many() -> None:
    admission = an_admission(limit=1, slots=100, max_waiting=3, max_blocked=5)
    verdicts = [admission.offer(f"m{i}", f"o{j}", 0.0) for i in range(10) for j in range(3)]
    assert verdicts.count(Verdict.WAIT) == 5
    assert admission.blocked == 5


def test_an_order_that_waited_too_long_for_its_merchant_is_handed_out_to_be_parked() -> None:
    admission = an_admission(limit=1, max_wait=5.0)
    admission.offer("m", "running", 0.0)
    admission.offer("m", "early", 1.0)
    admission.offer("m", "late", 4.0)
    assert list(admission.overdue(5.9)) == []
    assert list(admission.overdue(6.0)) == [("m", "early")]
    assert admission.waiting == 1


def test_orders_of_a_merchant_whose_record_is_not_here_yet_wait_for_it() -> None:
    admission = an_admission(limit=None, max_waiting=1, max_blocked=2)
    assert {admission.offer("m", f"o{i}", 0.0) for i in range(10)} == {Verdict.WAIT}
    admission.set_limit("m", 3)
    assert starts(admission) == ["o0", "o1", "o2"]


def test_a_paused_merchant_starts_nothing_until_its_limit_is_raised_again() -> None:
    admission = an_admission(limit=2)
    admission.offer("m", "running", 0.0)
    admission.set_limit("m", 0)
    assert admission.offer("m", "o", 0.0) is Verdict.WAIT
    assert starts(admission) == []
    admission.set_limit("m", 2)
    assert starts(admission) == ["o"]


def test_parked_orders_come_back_one_turn_after_the_other() -> None:
    admission = an_admission(limit=1, max_waiting=1, longest_park=1000.0)
    admission.offer("m", "running", 0.0)
    for _ in range(100):
        admission.release("m", 3.0)  # its replies take three seconds
        admission.offer("m", "running", 0.0)
    delays = [admission.park_delay("m", 0.0) for _ in range(5)]
    gaps = [later - sooner for sooner, later in itertools.pairwise(delays)]
    assert all(gap == pytest.approx(3.0, rel=0.01) for gap in gaps)


def test_a_parked_order_never_stays_away_longer_than_the_bound() -> None:
    admission = an_admission(limit=1, longest_park=10.0)
    admission.offer("m", "running", 0.0)
    delays = [admission.park_delay("m", 0.0) for _ in range(1000)]
    assert max(delays) <= 10.0
    assert len(set(delays[500:])) > 400  # spread, so that they do not come back at once


@pytest.mark.parametrize(
    "limits",
    [
        {"slots": 0},
        {"slots": -1},
        {"max_waiting": 0},
        {"max_wait": float("nan")},
        {"longest_park": 0.5},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(limits))):
        Limits(**limits)  # type: ignore[arg-type]


MERCHANTS = ("a", "b", "c", "d")


class AdmissionMachine(RuleBasedStateMachine):
    """Arrivals, completions, edits and lost connections in any order, beside a naive model."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, int | None] = {"a": 1, "b": 2, "c": 5, "d": None}
        self.admission: Admission[int] = Admission(
            Limits(slots=self.SLOTS, max_waiting=2, max_wait=5.0, max_blocked=6),
            lambda merchant: self.limits[merchant],
        )
        self.now = 0.0
        self.number = 0
        self.running: list[tuple[str, int]] = []
        self.waiting: list[tuple[str, int]] = []
        self.ended: set[int] = set()

    @rule(merchant=st.sampled_from(MERCHANTS))
    def arrive(self, merchant: str) -> None:
        self.number += 1
        match self.admission.offer(merchant, self.number, self.now):
            case Verdict.START:
                self.running.append((merchant, self.number))
            case Verdict.WAIT:
                self.waiting.append((merchant, self.number))
            case Verdict.PARK:
                assert self._is_full(merchant)
                self.admission.park_delay(merchant, self.now)
                self._end(self.number)
        self._dispatch()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 10), seconds=st.floats(0, 30))
    def complete(self, which: int, seconds: float) -> None:
        merchant, number = self.running.pop(which % len(self.running))
        self.admission.release(merchant, seconds)
        self._end(number)
        self._dispatch()

    @rule(merchant=st.sampled_from(MERCHANTS), limit=st.integers(0, 6))
    def edit(self, merchant: str, limit: int) -> None:
        self.limits[merchant] = limit
        self.admission.set_limit(merchant, limit)
        self._dispatch()

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for merchant, number in self.admission.overdue(self.now):
            assert not self._has_room(merchant)
            self.waiting.remove((merchant, number))
            self._end(number)

    @rule()
    def lose_the_connection(self) -> None:
        dropped = self.admission.drop_waiting()
        assert sorted(dropped) == sorted(number for _, number in self.waiting)
        for number in dropped:
            self._end(number)
        self.waiting.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.in_flight == len(self.running)
        assert self.admission.waiting == len(self.waiting)
        blocked = [m for m, _ in self.waiting if self._is_full(m)]
        assert self.admission.blocked == len(blocked)

    @invariant()
    def no_slot_is_exceeded_and_none_is_left_free_beside_one_who_may_start(self) -> None:
        assert len(self.running) <= self.SLOTS
        if len(self.running) < self.SLOTS:
            assert not [m for m, _ in self.waiting if self._has_room(m)]

    def _dispatch(self) -> None:
        turn: list[str] = []
        while (admitted := self.admission.next_start()) is not None:
            merchant, number = admitted
            assert self._has_room(merchant)
            oldest = next(n for m, n in self.waiting if m == merchant)
            assert number == oldest
            self.waiting.remove(admitted)
            self.running.append(admitted)
            turn.append(merchant)
        others = {m for m, _ in self.waiting if self._has_room(m)}
        if others and len(turn) > len(set(turn)):
            raise AssertionError(f"{turn} had two turns while {others} had none")

    def _has_room(self, merchant: str) -> bool:
        limit = self.limits[merchant]
        return limit is not None and sum(m == merchant for m, _ in self.running) < limit

    def _is_full(self, merchant: str) -> bool:
        return self.limits[merchant] is not None and not self._has_room(merchant)

    def _end(self, number: int) -> None:
        assert number not in self.ended
        self.ended.add(number)


AdmissionMachine.TestCase.settings = hypothesis_settings(
    max_examples=300, stateful_step_count=60, deadline=None
)
TestAdmissionAsAWhole = AdmissionMachine.TestCase
