"""Arrivals, completions, hangs, edits and lost connections in any order, beside a naive model."""

import os

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pos_gateway.admission.admission import Admission, Verdict
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import Limits, Terms

MERCHANTS = ("a", "b", "c", "d", "e", "f")
LIMITS = Limits(
    slots=6,
    provider_share=0.5,
    slow_share=0.34,
    slow_after=3.0,
    max_waiting=2,
    max_wait=5.0,
    max_blocked=6,
)
PROVIDER_CAP, SLOW_CAP = 3, 2


class AdmissionMachine(RuleBasedStateMachine):
    """The model keeps lists and looks at all of them; admission must come to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: dict[str, Terms | None] = {
            "a": Terms(1),
            "b": Terms(2, "x"),
            "c": Terms(5, "x"),
            "d": None,
            "e": Terms(3, "y"),
            "f": Terms(6),
        }
        self.admission: Admission[int] = Admission(LIMITS, lambda merchant: self.terms[merchant])
        self.now = 0.0
        self.number = 0
        self.running: list[tuple[str, int, Call[int]]] = []
        self.waiting: list[tuple[str, int]] = []
        self.ended: set[int] = set()

    @rule(merchant=st.sampled_from(MERCHANTS))
    def arrive(self, merchant: str) -> None:
        self.number += 1
        could_start = self._may_start(merchant) and self._slots_free() > 0
        match self.admission.offer(merchant, self.number, self.now):
            case Call() as call:
                assert could_start
                assert not self._startable()
                self._began(merchant, self.number, call)
            case Verdict.WAIT:
                self.waiting.append((merchant, self.number))
            case Verdict.PARK:
                assert not could_start
                assert not self._may_start(merchant)
                place = self.admission.place(merchant, 1, self.now)
                assert 0 < place.delay <= LIMITS.longest_park
                self._end(self.number)
        self._dispatch()

    @precondition(lambda self: self.running)
    @rule(
        which=st.integers(0, 20),
        seconds=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
        answered=st.sampled_from([True, False, None]),
    )
    def complete(self, which: int, seconds: float, answered: bool | None) -> None:
        self._pass(seconds)
        _, number, call = self.running.pop(which % len(self.running))
        self.admission.release(call, self.now, answered=answered)
        self._end(number)
        self._dispatch()

    @rule(
        merchant=st.sampled_from(MERCHANTS),
        limit=st.integers(0, 6),
        provider=st.sampled_from([None, "x", "y"]),
    )
    def edit(self, merchant: str, limit: int, provider: str | None) -> None:
        self.terms[merchant] = Terms(limit, provider)
        self.admission.set_terms(merchant, Terms(limit, provider))
        self._dispatch()

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.5, 61.0]))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)
        self._dispatch()
        startable = self._startable()
        for merchant, number in self.admission.overdue(self.now):
            assert merchant not in startable
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
        troubled = [m for m, _ in self.waiting if self._slow(m) or self._at_limit(m)]
        assert self.admission.blocked == len(troubled)
        assert sum(waiting for _, _, waiting in self.admission.lanes()) == len(self.waiting)

    @invariant()
    def nobody_waits_who_may_start(self) -> None:
        assert len(self.running) <= LIMITS.slots
        if self._slots_free():
            assert self._startable() == set()

    def _dispatch(self) -> None:
        turns: list[str] = []
        while (admitted := self.admission.next_start(self.now)) is not None:
            number, call = admitted
            merchant = call.lane.merchant_id
            oldest = next(n for m, n in self.waiting if m == merchant)
            assert number == oldest
            self.waiting.remove((merchant, number))
            self._began(merchant, number, call)
            turns.append(merchant)
            others = self._startable() - set(turns)
            assert not (others and turns.count(merchant) > 1), f"{turns} before {others}"

    def _began(self, merchant: str, number: int, call: Call[int]) -> None:
        assert self._may_start(merchant)
        assert self._slots_free() > 0
        self.running.append((merchant, number, call))

    def _slots_free(self) -> int:
        return LIMITS.slots - len(self.running)

    def _startable(self) -> set[str]:
        return {m for m, _ in self.waiting if self._may_start(m)}

    def _may_start(self, merchant: str) -> bool:
        terms = self.terms[merchant]
        if terms is None or sum(m == merchant for m, _, _ in self.running) >= terms.limit:
            return False
        # A call counts for the provider that its merchant had when it started.
        share = self.admission._providers.get(terms.provider) if terms.provider else None
        held = sum(call.provider is share for _, _, call in self.running)
        if share is not None and held >= PROVIDER_CAP:
            return False
        slow = sum(self._slow(m) for m, _, _ in self.running)
        return not (self._slow(merchant) and slow >= SLOW_CAP)

    def _at_limit(self, merchant: str) -> bool:
        terms = self.terms[merchant]
        running = sum(m == merchant for m, _, _ in self.running)
        return terms is not None and running >= terms.limit

    def _slow(self, merchant: str) -> bool:
        lane = self.admission._lanes.get(merchant)
        # The benefit of the doubt is given when an order comes, and that is when this is asked.
        return lane is not None and lane.slow and not lane.is_quiet(self.now)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.admission.tick(self.now)
        for merchant, _, call in self.running:
            # Out for longer than anybody may be: it is slow by now, whoever it is.
            assert self.now - call.started < LIMITS.slow_after or self._slow(merchant)

    def _end(self, number: int) -> None:
        assert number not in self.ended
        self.ended.add(number)


AdmissionMachine.TestCase.settings = hypothesis_settings(
    max_examples=int(os.environ.get("EXAMPLES", "400")), stateful_step_count=100, deadline=None
)
TestAdmissionAsAWhole = AdmissionMachine.TestCase
