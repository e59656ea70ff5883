"""Arrivals, completions, hangs, edits and lost connections in any order, beside a naive model."""

import os
from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.breaker import FIRST_OPEN, LONGEST_OPEN
from pos_gateway.admission.health import Transition
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import LONGEST_HERE, AdmissionLimits, QuotaTerms, Terms
from pos_gateway.admission.outliers import GRACE, LATE
from pos_gateway.domain.outcome import CallResult
from tests.admission.model import Kept, Merchant, Model, Sent

#: A pool this small has no reserve: a light merchant may take every slot, however much it uses.
LIMITS = AdmissionLimits(slots=24, max_waiting=2, local_wait_timeout=5.0, max_blocked=60)
SMALL = replace(LIMITS, slots=4, max_waiting=4, max_blocked=20)
TERMS: dict[str, Terms | None] = {
    "a": Terms(1),
    "b": Terms(6, "x"),
    "c": Terms(20, "x"),
    "d": None,
    "e": Terms(8, "y", may_be_cut_short=False),
    "f": Terms(12),
    "g": Terms(4, "x"),
    "h": Terms(5, quotas=(QuotaTerms("h", 3.0),)),
}
#: A thousand examples each take most of a minute on an idle machine.
pytestmark = pytest.mark.timeout(900)

MERCHANTS = st.sampled_from(sorted(TERMS))
SECONDS = st.sampled_from([0.0, 0.01, 0.1, 0.7, 1.5, 3.0, 3.5, 11.0])


class AdmissionMachine(RuleBasedStateMachine):
    """The model recomputes everything each time; admission must agree with it."""

    #: Whether merchants need an allotment.
    in_fleet = False
    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.limits, TERMS)
        self.now = 0.0
        self.number = 0
        self.calls: list[tuple[Sent, Call[int]]] = []
        #: Orders whose merchant has answered, while the broker stores nothing.
        self.held: list[tuple[Sent, Call[int]]] = []
        #: Orders that start wait for their claims.
        self.database_stalls = False
        self.announced: list[tuple[str, str]] = []
        self.short: set[str] = set()
        self.ended: set[int] = set()
        #: Merchants that may have had more waiting orders than allowed, since their terms are
        #: known.
        self.known: set[str] = set()
        self.admission: Admission[int] = Admission(
            self.limits,
            lambda name: self.model.merchants[name].terms,
            announce=self._announced,
            on_short=self._is_short,
            in_fleet=self.in_fleet,
        )

    @rule(
        merchant=MERCHANTS,
        time_limit_share=st.sampled_from([inf, inf, 20.0, 6.0, 0.5, 0.0]),
        times=st.sampled_from([1, 1, 2, 12]),
        is_look_up=st.booleans(),
    )
    def arrive(
        self, merchant: str, time_limit_share: float, times: int, is_look_up: bool = False
    ) -> None:
        for _ in range(times):
            self._offer(merchant, self.now + time_limit_share, is_look_up=is_look_up)
        self._dispatch()

    @rule(merchants=st.lists(MERCHANTS, min_size=4, max_size=12), seconds=SECONDS)
    def arrive_from_everywhere(self, merchants: list[str], seconds: float) -> None:
        for merchant in merchants:
            self._offer(merchant, inf)
            self._dispatch()
        self._pass(seconds)
        self._dispatch()

    @rule(merchants=st.lists(MERCHANTS, min_size=1, max_size=12), seconds=SECONDS)
    def wait_for_the_database(self, merchants: list[str], seconds: float) -> None:
        """Orders start, and their claims take this long."""
        self.database_stalls = True
        for merchant in merchants:
            self._offer(merchant, inf)
            self._dispatch()
        self._pass(seconds)
        self._dispatch()
        self.every_merchants_status_is_the_models()
        self.database_stalls = False
        for sent, call in self.calls:
            if sent.began == inf:
                self._begin(sent, call)

    @precondition(lambda self: self.calls)
    @rule(
        which=st.integers(0, 20),
        seconds=SECONDS,
        contact=st.sampled_from(
            [*CallResult, *[CallResult.ANSWERED] * 2, *[CallResult.OVERLOADED] * 2]
        ),
        retry_after=st.sampled_from([None, None, 2.0, 40.0]),
        held=st.sampled_from([False, False, True]),
    )
    def complete(
        self,
        which: int,
        seconds: float,
        contact: CallResult,
        retry_after: float | None,
        held: bool = False,
    ) -> None:
        self._pass(seconds)
        sent, call = self.calls.pop(which % len(self.calls))
        asked = retry_after if contact is not CallResult.NONE else None
        end = self.admission.answered if held else self.admission.release
        end(call, self.now, contact, asked)
        self.model.come_back(sent, self.now, contact, asked)
        if held:
            self.held.append((sent, call))
        else:
            self.model.release(sent)
        self._expire()
        self._end(sent.number)
        self._dispatch()

    @precondition(lambda self: self.held)
    @rule(seconds=SECONDS, number=st.integers(1, 20))
    def be_stored(self, seconds: float, number: int) -> None:
        """Some outcomes are stored; the release that follows says nothing more."""
        self._pass(seconds)
        for sent, call in self.held[:number]:
            self.admission.release(call, self.now, CallResult.FAILED, 9.0)
            self.model.release(sent)
        del self.held[:number]
        self._dispatch()

    @rule(
        merchant=MERCHANTS,
        contact=st.sampled_from(CallResult),
        seconds=SECONDS,
        between=st.sampled_from([0.0, 0.1]),
    )
    def come_back_together(
        self, merchant: str, contact: CallResult, seconds: float, between: float
    ) -> None:
        """All that is out at a merchant, as when it is restarted."""
        self._pass(seconds)
        self._dispatch()
        for sent, _ in [each for each in self.calls if each[0].merchant.name == merchant]:
            place = next(i for i, (each, _) in enumerate(self.calls) if each is sent)
            self.complete(place, between, contact, None)

    @rule(merchant=MERCHANTS, times=st.integers(1, 15), seconds=st.sampled_from([0.01, 0.1, 4.0]))
    def be_answered(self, merchant: str, times: int, seconds: float) -> None:
        """A merchant's orders are answered one after the other, as most are."""
        for _ in range(times):
            if not any(sent.merchant.name == merchant for sent, _ in self.calls):
                self.arrive(merchant, inf, 1)
            places = [i for i, (s, _) in enumerate(self.calls) if s.merchant.name == merchant]
            if not places:
                return
            self.complete(places[0], seconds, CallResult.ANSWERED, None)

    @rule(
        seconds=st.sampled_from([0.07, 0.3]),
        contact=st.sampled_from([CallResult.TIMED_OUT, CallResult.ANSWERED]),
    )
    def fall_silent(self, seconds: float, contact: CallResult) -> None:
        """All quick calls but one; calls that are cut short for that return."""
        for merchant in sorted(TERMS):
            self.be_answered(merchant, 2, 0.01)
        for merchant in sorted(TERMS) * 3:
            self._offer(merchant, inf)
            self._dispatch()
        self._pass(seconds)
        self._dispatch()
        for _ in range(2):  # the second round may have a call that starts only now, and is in time
            if self.calls:
                self.complete(len(self.calls) - 1, 0.0, CallResult.ANSWERED, None)
        self._pass(0.06)
        self._dispatch()
        for sent in [sent for sent, _ in self.calls if sent.cut_short]:
            place = next(i for i, (each, _) in enumerate(self.calls) if each is sent)
            self.complete(place, 0.0, contact, None)

    @rule(merchant=MERCHANTS, limit=st.integers(0, 20), provider=st.sampled_from([None, "x", "y"]))
    def edit(self, merchant: str, limit: int, provider: str | None) -> None:
        known = self.model.merchants[merchant]
        # Whether its calls may be cut short stays: an outlier that was passed over is not checked
        # again. So does its rate: earlier starts do not count for another rate.
        quotas = TERMS["h"].quotas if merchant == "h" and TERMS["h"] else ()
        terms = Terms(limit, provider, may_be_cut_short=merchant != "e", quotas=quotas)
        known.agree(terms, known.allotment, self.now)
        self.admission.set_terms(merchant, known.terms)
        self._dispatch()

    @rule(
        merchant=MERCHANTS,
        what=st.sampled_from(["allot", "opened", "opened", "closed", "connection"]),
        number=st.integers(0, 6),
    )
    def do_something_rare(self, merchant: str, what: str, number: int) -> None:
        match what:
            case "allot" if self.in_fleet:
                self._allot(merchant, None if number == 6 else number)
            case "opened":
                self._hear_that_a_breaker_opened(merchant, 1.0 + 5 * number)
            case "closed":
                self._hear_that_a_breaker_closed(merchant)
            case "connection" if number < 2:
                self._lose_the_connection()
        self._dispatch()

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.5, 31.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self._pass(seconds)
        self._dispatch()
        handed_out = set(self.admission.overdue(self.now))
        for each in list(self.model.kept):
            too_long = each.since <= self.now - self.limits.local_wait_timeout
            may_stay = self.now - each.came_at < LONGEST_HERE and self.model.may_stay(each.merchant)
            assert (each.number in handed_out) == (too_long and not may_stay)
            if too_long and may_stay:
                each.since = self.now
            if each.number in handed_out:
                self.model.let_go(each)
                self._end(each.number)
        self._dispatch()  # orders that waited for long are checked again

    @rule(merchant=MERCHANTS)
    def park(self, merchant: str) -> None:
        if merchant in self.known:
            until = self.model.merchants[merchant].until
            longest = max(
                self.limits.park_delay_max, until - self.now + self.limits.park_delay_max / 2
            )
            assert 0 < self.admission.park_delay(merchant, self.now) <= longest

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.in_flight == len(self.model.sent) <= self.limits.slots
        assert self.admission.waiting == len(self.model.kept)
        least, most = self.model.kept_in_trouble()
        assert least <= self.admission.blocked <= most
        troubled = (each.waiting for each in self.admission.merchants() if each.troubled)
        assert self.admission.blocked == sum(troubled)

    @invariant()
    def every_merchants_status_is_the_models(self) -> None:
        in_flight = Counter(each.merchant for each in self.model.sent)
        waiting = Counter(each.merchant for each in self.model.kept)
        assert self.model.waiting == waiting
        for name in self.known:
            merchant = self.model.merchants[name]
            standing = self.admission.merchant(name)
            assert standing is not None
            assert standing.in_flight == in_flight[merchant]
            assert standing.waiting == waiting[merchant]
            assert standing.silent == self.model.is_silent(merchant)
            assert standing.breaker == merchant.state
            allotted = inf if merchant.allotment is None else max(0, merchant.allotment)
            assert standing.limit == min(merchant.limit, allotted)
        troubled = {each.merchant_id for each in self.admission.merchants()}
        assert troubled >= {each.merchant.name for each in [*self.model.sent, *self.model.kept]}

    @invariant()
    def no_order_waits_that_may_start(self) -> None:
        for merchant in +self.model.waiting:
            standing = self.admission.merchant(merchant.name)
            assert standing is not None
            if not self.model.may_start(merchant):
                continue
            if standing.light or not self.model.is_light(merchant):
                assert not self.model.has_slot(merchant), merchant.name
            else:  # it became light while it waited, and is checked when something happens to it
                has_slot = self.model.has_heavy_slot(of=merchant)
                assert not has_slot or self.model.is_paced() is not False, merchant.name

    @invariant()
    def every_transition_is_announced_and_no_other(self) -> None:
        assert sorted(self.announced) == sorted(self.model.transitions)

    @invariant()
    def only_merchants_without_an_allotment_have_asked(self) -> None:
        for merchant in self.model.waiting:
            in_flight = len(self.model.of(merchant))
            if merchant.terms is None or merchant.allotment is None:
                continue
            if merchant.allotment <= in_flight < merchant.limit:
                assert merchant.name in self.short

    def _offer(self, name: str, deadline: float, *, is_look_up: bool = False) -> None:
        self.number += 1
        merchant = self._met(name)
        self.model.on_arrival(merchant, self.now)
        is_expired = deadline <= (merchant.until if merchant.state == "open" else self.now)
        may_start = self.model.may_start(merchant)
        has_slot = self.model.has_slot(merchant) if may_start else False
        is_light = self.model.is_light(merchant)
        too_much = {
            self.model.is_too_much(merchant, self.now, is_light=each, is_look_up=is_look_up)
            for each in ((True, False) if is_light is None else (is_light,))
        }
        verdict = self.admission.offer(name, self.number, self.now, deadline, is_look_up=is_look_up)
        self._note_the_heavy()
        match verdict:
            case Call() as call:
                assert may_start and has_slot is not False and not is_expired
                self._began(call, is_light)
            case AdmissionVerdict.WAIT:
                assert not is_expired and False in too_much
                assert not has_slot or self.model.kept
                assert not (has_slot and is_light and not self.model.waiting[merchant])
                self.model.keep(Kept(merchant, self.number, self.now, deadline, is_look_up))
            case AdmissionVerdict.PARK:
                assert not is_expired and True in too_much
                assert not (has_slot and not self.model.kept)
                self._end(self.number)
            case AdmissionVerdict.EXPIRE:
                assert is_expired
                self._end(self.number)

    def _met(self, name: str) -> Merchant:
        """The merchant, which admission knows from now on."""
        merchant = self.model.merchants[name]
        if self.in_fleet and name not in self.known:
            merchant.allotment = -1
        self.known.add(name)
        return merchant

    def _allot(self, name: str, permits: int | None) -> None:
        self.admission.allot(name, permits)
        if name in self.known:
            known = self.model.merchants[name]
            known.agree(known.terms, permits, self.now)

    def _hear_that_a_breaker_opened(self, name: str, seconds: float) -> None:
        merchant = self._met(name)
        self.admission.open_breaker(name, seconds)
        if merchant.state != "open":
            self.model.open(merchant)
        self._expire()

    def _hear_that_a_breaker_closed(self, name: str) -> None:
        self.admission.close_breaker(name)
        merchant = self.model.merchants[name]
        if name in self.known and merchant.state != "closed":
            self.model.close(merchant)

    def _lose_the_connection(self) -> None:
        dropped = self.admission.drop_waiting()
        assert sorted(dropped) == sorted(each.number for each in self.model.kept)
        for number in dropped:
            self._end(number)
        self.model.let_all_go()

    def _cut_short(self) -> None:
        chosen = self.admission.to_cut_short()
        ending = sum(each.cut_short for each in self.model.sent)
        outliers = sum(each.outlier_since < inf for each in self.model.out())
        beyond = outliers - self.limits.silent_budget - ending
        lacking = [each for each in +self.model.waiting if self.model.may_start(each)]
        light = [each for each in lacking if self._is_light(each)]
        strangers = [
            e
            for e in lacking
            if e.mean is None and not self.model.of(e) and not self.model.is_silent(e)
        ]
        able = self._to_cut_short()
        # Some waiting merchants are checked when it is their turn: they count as what they were.
        assert len(chosen) <= max(0, min(beyond, len(lacking) - ending))
        ones = [next(each for each, own in self.calls if own is call) for call in chosen]
        assert all(each in able for each in ones)
        known = [each for each in able if not (each.was_stranger or each.is_usual)]
        wanted = min(beyond, len(light) + len(strangers) - ending, len(known))
        assert len(chosen) >= wanted
        for one in ones:
            one.cut_short = True

    def _is_light(self, merchant: Merchant) -> bool:
        standing = self.admission.merchant(merchant.name)
        return standing is not None and standing.light

    def _note_the_heavy(self) -> None:
        """Calls of merchants that were found to be heavy are not light."""
        for name in self.known:
            merchant, lane = self.model.merchants[name], self.admission.merchant(name)
            if lane is not None and not lane.light:
                self.model.is_heavy(merchant)
        for sent, call in [*self.calls, *self.held]:
            if sent.is_light and not call.is_light:  # and it has become light again since
                sent.is_light = False
                self.model.light.end(sent.started, self.now)

    def _is_short(self, name: str) -> None:
        self.short.add(name)

    def _announced(self, transition: Transition) -> None:
        self.announced.append((transition.merchant_id, str(transition.state)))
        merchant = self.model.merchants[transition.merchant_id]
        if transition.state == "open":
            asked = transition.why in ("asked", "fleet")
            longest = max(31.0, 1.05 * LONGEST_OPEN)  # the longest that another worker reports
            shortest = 0.999 if asked else FIRST_OPEN / 2
            assert shortest <= transition.seconds <= longest
            merchant.until = self.now + transition.seconds

    def _dispatch(self) -> None:
        while True:
            before = {each: self.model.is_light(each) for each in +self.model.waiting}
            able = [each for each in before if self.model.may_start(each)]
            may = {each: self.model.has_slot(each) for each in able}
            call = self.admission.next_start(self.now)
            self._note_the_heavy()
            if call is None:
                break
            merchant = self.model.merchants[call.lane.merchant_id]
            # Or since others, which were checked before it, are heavy now.
            had_a_slot = may[merchant] is not False
            assert had_a_slot or self.model.has_slot(merchant) is not False
            own = self.model.next_of(merchant)
            assert call.ticket in [each.number for each in own]
            self.model.let_go(next(each for each in own if each.number == call.ticket))
            self._began(call, before[merchant])
        self._cut_short()

    def _began(self, call: Call[int], is_light: bool | None) -> None:
        merchant = self.model.merchants[call.lane.merchant_id]
        assert is_light is not False or not call.is_light
        assert (call.time_limit_share < 1) <= (merchant.state == "half_open")
        sent = self.model.start(
            merchant.name,
            call.ticket,
            self.now,
            is_light=call.is_light,
            was_light=call.light is not None,
            is_look_up=call.is_look_up,
        )
        self.calls.append((sent, call))
        if not self.database_stalls:
            self._begin(sent, call)

    def _begin(self, sent: Sent, call: Call[int]) -> None:
        self.admission.began(call, self.now)
        self.model.begin(sent, self.now)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.admission.tick(self.now)
        self._expire(self.model.pass_time(self.now))

    def _expire(self, too_late: list[int] | None = None) -> None:
        """Admission must expire the orders that the model does."""
        gone = self.model.too_late(self.now) if too_late is None else too_late
        assert sorted(self.admission.expired()) == sorted(gone)
        for number in gone:
            self._end(number)

    def _to_cut_short(self) -> list[Sent]:
        """Calls that must be cut short, as far as that is certain."""
        able = []
        for each in self.model.out():
            in_time = self.model.late < LATE
            others_answer = in_time and each.outlier_since <= self.model.last_answer
            if each.outlier_since > self.now - GRACE or not (others_answer or each.seen_silent):
                continue
            if self.now - each.began < self.model.unusual_after(each.merchant):
                continue
            terms = each.merchant.terms
            may_be = terms is not None and terms.may_be_cut_short and not each.cut_short
            if may_be and each.merchant.last_answer < each.outlier_since:
                able.append(each)
        return able

    def _end(self, number: int) -> None:
        assert number not in self.ended
        self.ended.add(number)


class FleetMachine(AdmissionMachine):
    """The same, where other workers may leave this one no permits."""

    in_fleet = True


class SmallMachine(AdmissionMachine):
    """The same, where everything is scarce."""

    limits = SMALL


class SmallFleetMachine(SmallMachine):
    """Both."""

    in_fleet = True


#: A quarter of the examples each: they get slower the more there are. ``make explore`` tries more.
SETTINGS = hypothesis_settings(
    max_examples=int(os.environ.get("EXAMPLES", "48")) // 4,
    stateful_step_count=100,
    deadline=None,
)
if "HUNT" in os.environ:  # for test_planted_faults: the same examples each time, without shrinking
    SETTINGS = hypothesis_settings(
        SETTINGS, derandomize=True, database=None, phases=(Phase.generate,)
    )
TestAdmissionAsAWhole = AdmissionMachine.TestCase
TestAdmissionInAFleet = FleetMachine.TestCase
TestAdmissionWhereAllIsScarce = SmallMachine.TestCase
TestAdmissionInAFleetWhereAllIsScarce = SmallFleetMachine.TestCase
for case in (
    TestAdmissionAsAWhole,
    TestAdmissionInAFleet,
    TestAdmissionWhereAllIsScarce,
    TestAdmissionInAFleetWhereAllIsScarce,
):
    case.settings = SETTINGS
del case  # pytest would collect it as another test case
