"""Admission: who may start now.

An order starts when a slot is free, its merchant is under its limits (at once, and in a second) and
its breaker lets it through, its provider is under its share of the slots, and, if its merchant is
slow, the slow ones together are under theirs.

Orders that cannot start wait here, merchant by merchant in turn, the most urgent of a merchant
first. A merchant in trouble may hold only so many; its further orders are parked in the broker
until about their turn, so that they do not fill the window through which everybody's come.

Every operation costs the same whatever is known or waiting (the agenda and the line: the logarithm
of what is under way or waits). Not safe from threads: one thread, or the green threads of one process,
which switch only where they block, and nothing here blocks.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from math import inf
from typing import Generic

from pos_gateway.admission.agenda import Agenda
from pos_gateway.admission.breaker import State
from pos_gateway.admission.bulkhead import UNASKED
from pos_gateway.admission.lane import Call, Demand, Lane, Queued, Standing, Ticket, Waiting
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.admission.parked_count import ParkedCount
from pos_gateway.admission.parking import look_again
from pos_gateway.admission.rate import Rate
from pos_gateway.admission.room import WaitBudget
from pos_gateway.admission.share import Share
from pos_gateway.admission.suspects import Suspects
from pos_gateway.admission.turns import Turns
from pos_gateway.outcome import Contact

#: Merchants of whom something is remembered (their replies' durations) before the idle ones are
#: forgotten: twice the ten thousand that a pod is expected to know.
LANES = 20_000
#: Why a breaker changed, when another worker said so.
FLEET = "fleet"


class Verdict(Enum):
    """What becomes of an order that is offered and does not start."""

    WAIT = "wait"
    PARK = "park"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Transition:
    """A merchant's breaker has changed its state."""

    merchant_id: str
    state: State
    #: For how long, if it opened.
    seconds: float
    why: str


class Admission(Generic[Ticket]):
    """Decides which orders start. Times are seconds of one clock that never jumps.

    Args:
        limits: what to keep to.
        terms_of: what is agreed with a merchant, when its first order comes; None if that is not
            known yet: its orders wait until ``set_terms`` says.
        announce: called with every breaker's transition.
        on_short: called with a merchant whose order waits for want of an allotment only.
        in_fleet: merchants need an allotment (``allot``) to start anything.
    """

    def __init__(
        self,
        limits: Limits,
        terms_of: Callable[[str], Terms | None],
        *,
        announce: Callable[[Transition], None] = lambda _transition: None,
        on_short: Callable[[str], None] = lambda _merchant_id: None,
        in_fleet: bool = False,
    ) -> None:
        self.limits = limits
        self._terms_of = terms_of
        self._announce = announce
        self._on_short = on_short
        self._in_fleet = in_fleet
        self._lanes: dict[str, Lane[Ticket]] = {}
        self._turns: Turns[Ticket] = Turns(limits)
        #: Every order that waits, by ``since``; those that are done are skipped.
        self._by_age: deque[Waiting[Ticket]] = deque()
        self._suspects: Suspects[Ticket] = Suspects()
        self._expired: list[Ticket] = []
        self._agenda = Agenda()
        #: The time, as far as it is known.
        self._now = 0.0
        #: Orders that this worker has parked.
        self.parked_count = ParkedCount()
        self._room: WaitBudget[Ticket] = WaitBudget(limits, self.parked_count)
        self.in_flight = 0

    @property
    def waiting(self) -> int:
        """How many orders wait."""
        return self._room.waiting

    @property
    def blocked(self) -> int:
        """How many of them have a merchant in trouble."""
        return self._room.blocked

    @property
    def slow_in_flight(self) -> int:
        """How many of those under way have a merchant that is slow."""
        return self._turns.slow.in_flight

    def offer(
        self, merchant_id: str, ticket: Ticket, now: float, deadline: float = inf
    ) -> Call[Ticket] | Verdict:
        """Take an order in.

        Returns:
            A call: it has started and holds its slot until ``release``. WAIT: it will come out
            of ``next_start``, ``expired``, ``overdue`` or ``drop_waiting``. PARK: it is the
            caller's again, to be handed back to the broker until ``place`` says. EXPIRE:
            it is the caller's again, and can certainly not be started before its deadline.
        """
        self.tick(now)
        lane = self._lane(merchant_id)
        if lane.is_quiet(now):
            self._forget(lane)
        if deadline <= self._not_before(lane, now):
            return Verdict.EXPIRE
        only_a_slot_is_missing = not self._turns and self._turns.may_start(lane)
        if not lane.waiting and self._slot_is_free and only_a_slot_is_missing:
            return self._start(lane, ticket, now)
        if self._room.is_spent(lane, now):
            return Verdict.PARK
        waiting = lane.put(ticket, now, deadline)
        self._by_age.append(waiting)
        self._room.count(lane, 1)
        if deadline < inf:
            self._agenda.add(deadline, self._expire, waiting)
        self._line_up(lane)
        return Verdict.WAIT

    def next_start(self, now: float) -> Call[Ticket] | None:
        """The call of the next waiting order that may start; None if there is none."""
        self.tick(now)
        while self._slot_is_free and (lane := self._turns.next()) is not None:
            call = self._start_first(lane, now) if self._turns.may_start(lane) else None
            self._turns.done_with(lane)
            self._ask_if_short(lane)
            if call is not None:
                return call
        return self._start_above_share(now) if self._slot_is_free else None

    def answered(
        self,
        call: Call[Ticket],
        now: float,
        contact: Contact = Contact.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """An order's merchant is done with; the slot is held until ``release``. Once at most.

        Args:
            call: what starting returned.
            now: the time.
            contact: how its merchant fared; NONE says nothing about it.
            retry_after: for how many seconds the merchant asked to be left alone.
        """
        call.done = contact is Contact.NONE  # then the time it took says nothing either
        self.tick(now)
        call.done = True
        lane = call.lane
        lane.last_call = now
        lane.late_calls -= call.late
        self._suspects.came_back(call)
        if contact in (Contact.ANSWERED, Contact.OVERLOADED):
            self._heard_from(call, now)
        self._change(lane, lambda: self._judge_load(call, now, contact))
        if contact is not Contact.NONE:
            self._judge_speed(call, now, contact)
        self._judge_health(call, now, contact, retry_after)
        self._line_up(lane)

    def release(
        self,
        call: Call[Ticket],
        now: float,
        contact: Contact = Contact.ANSWERED,
        retry_after: float | None = None,
    ) -> None:
        """An order that was started is done, and its slot free. Exactly once for each.

        The arguments are those of ``answered``, which need not have been called before.
        """
        if not call.done:
            self.answered(call, now, contact, retry_after)
        self._suspects.released(call)
        self._change(call.lane, lambda: self._move(call, -1))
        self._line_up(call.lane)
        if call.provider is not None:
            self._turns.wake(call.provider)
        self._turns.wake(self._turns.slow)

    def tick(self, now: float) -> None:
        """Let time pass: calls become slow and late, breakers half open, waiting orders expire."""
        self._now = now
        self._agenda.run(now)
        self.parked_count.pass_time(now)

    @property
    def next_at(self) -> float:
        """When time will change something by itself; then ``tick`` is due."""
        return self._agenda.next_at

    def set_terms(self, merchant_id: str, terms: Terms) -> None:
        """This is now agreed with a merchant. Orders under way go on."""
        lane = self._lanes.get(merchant_id)
        if lane is None:
            return
        provider = self._turns.provider(terms.provider)

        def agree() -> None:
            lane.known, lane.provider = True, provider
            lane.bulkhead.ceiling = terms.limit
            lane.may_be_cut_short = terms.may_be_cut_short
            if not terms.is_shared:
                lane.bulkhead.allotment = None
            if terms.per_second is None:
                lane.rate = None
            elif lane.rate is None or lane.rate.per_second != terms.per_second:
                lane.rate = Rate(terms.per_second)
            self._reckon(lane)

        self._change(lane, agree)
        self._line_up(lane)

    def forget_terms(self, merchant_id: str) -> None:
        """What was agreed may not hold any more: nothing starts until ``set_terms`` says."""
        lane = self._lanes.get(merchant_id)
        if lane is not None and lane.known:
            self._change(lane, lambda: setattr(lane, "known", False))

    def allot(self, merchant_id: str, permits: int | None) -> None:
        """The fleet leaves so many of a merchant's orders at once to this process.

        None: it has nothing to say. What is under way goes on.
        """
        lane = self._lanes.get(merchant_id)
        if lane is None:
            return

        def allot() -> None:
            lane.bulkhead.allotment = permits
            self._reckon(lane)

        self._change(lane, allot)
        self._line_up(lane)

    def demand(self, merchant_id: str) -> Demand:
        """What a merchant's orders want here; nothing, of one that is not known."""
        lane = self._lanes.get(merchant_id)
        if lane is None or not lane.known:
            return Demand(0, 0, 0)
        return Demand(lane.bulkhead.ceiling, lane.bulkhead.in_flight, lane.waiting)

    def merchant(self, merchant_id: str) -> Standing | None:
        """How things stand with a merchant; None if nothing is known of it."""
        lane = self._lanes.get(merchant_id)
        return lane.standing(self.parked_count.of(merchant_id)) if lane else None

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        """Another worker found that the merchant is to be left alone for so long."""
        lane = self._lane(merchant_id)
        if not lane.breaker.is_open:
            self._open(lane, self._now, FLEET, seconds)

    def close_breaker(self, merchant_id: str) -> None:
        """Another worker found that the merchant answers again."""
        lane = self._lanes.get(merchant_id)
        if lane is not None and not lane.breaker.is_closed:
            self._close(lane, FLEET)

    def to_cut_short(self) -> list[Call[Ticket]]:
        """Calls to end early: too many are suspect, and hardly a slot is left for anybody else.

        As many may go on as half the share of the slow. Each is named once; the caller may let it
        go on.
        """
        suspects, limits = self._suspects, self.limits
        too_many = suspects.number - max(1, self._turns.slow.cap_now // 2)
        # Those in line that have become slow meanwhile would not start if there were a slot.
        in_line = min(len(self._turns), self.waiting - self.blocked)
        lacking = limits.reserve - (limits.slots - self.in_flight) + in_line
        return suspects.cut_short(min(too_many, lacking) - suspects.ending, self._now)

    def answers(self, merchant_id: str, now: float) -> bool:
        """Whether the merchant answers, so that its orders that are parked now are back soon."""
        return self._room.state(self._lane(merchant_id), now).answers

    def park_delay(self, merchant_id: str, now: float, *, few: bool = False) -> float:
        """Seconds until orders that are parked now are to be back; ``few`` are to meet others."""
        lane = self._lane(merchant_id)
        return lane.parking.delay(self._room.state(lane, now), few=few)

    def let_out(self, merchant_id: str, orders: int, now: float) -> int:
        """How many of so many parked orders that are back may come to the queue now.

        Args:
            merchant_id: whose orders they are.
            orders: how many are back.
            now: the time.
        """
        self.tick(now)
        lane = self._lane(merchant_id)
        return lane.parking.let_out(orders, self._room.state(lane, now))

    def look_again(self, merchant_id: str, orders_at_hand: int, now: float) -> float | None:
        """Seconds until a look at a bundle that is kept in the worker; None: it is to be parked.

        Args:
            merchant_id: whose orders are in it.
            orders_at_hand: how many of its orders are kept so already.
            now: the time.
        """
        return look_again(orders_at_hand, self._room.state(self._lane(merchant_id), now))

    def expired(self) -> list[Ticket]:
        """Orders whose time ran out while they waited, or will before they can start."""
        expired, self._expired = self._expired, []
        return expired

    def overdue(self, now: float, most: int = sys.maxsize) -> list[Ticket]:
        """Orders that have waited too long for their merchant; they are the caller's, to park.

        If there are as many as ``most``, there may be more.
        """
        handed_out: list[Ticket] = []
        until = now - self.limits.max_wait
        again: list[Waiting[Ticket]] = []
        while self._by_age and len(handed_out) < most:
            waiting = self._by_age[0]
            if not waiting.done and waiting.since > until:
                break
            self._by_age.popleft()
            if waiting.done:
                continue
            if self._turns.may_start(waiting.lane) or self._room.may_stay(waiting.lane):
                # It has its turn here, and parking would only delay it. It is looked at again after
                # as long: each time, thousands would be.
                waiting.since = now
                again.append(waiting)
            else:
                handed_out.append(self._take(waiting))
        self._by_age.extend(again)
        return handed_out

    def merchants(self) -> Iterator[Standing]:
        """How things stand with every merchant that has orders here, or parked, or is in trouble."""
        return chain.from_iterable(self.merchants_by(LANES))

    def merchants_by(self, few: int) -> Iterator[list[Standing]]:
        """The same, so few looked at in one go: whoever asks may let others have their turns."""
        lanes, parked = list(self._lanes.values()), self.parked_count.of
        for start in range(0, len(lanes), few):
            yield [
                lane.standing(parked(lane.merchant_id))
                for lane in lanes[start : start + few]
                if not lane.is_idle or lane.is_troubled or parked(lane.merchant_id)
            ]

    def drop_waiting(self) -> list[Ticket]:
        """Let go of everything that waits (the connection it came by is gone). Those under way stay."""
        dropped = [ticket for lane in self._lanes.values() for ticket in lane.take_all()]
        dropped += self.expired()
        for lane in self._lanes.values():
            lane.queued, lane.woken_by = Queued.NOWHERE, None
        self._turns.clear()
        self._by_age.clear()
        self._room.clear()
        return dropped

    # Whether an order may start

    @property
    def _slot_is_free(self) -> bool:
        return self.in_flight < self.limits.slots

    def _may_exceed(self, provider: Share) -> bool:
        """Whether a provider may go above its share: nobody wants the slots that it would take.

        It leaves the others as many slots free as they hold.
        """
        others = self.in_flight - provider.in_flight
        return self.limits.slots - self.in_flight > others

    def _not_before(self, lane: Lane[Ticket], now: float) -> float:
        """The soonest that one of the merchant's orders can start, as far as is certain."""
        return lane.breaker.until if lane.breaker.is_open else now

    # Starting and coming back

    def _start(self, lane: Lane[Ticket], ticket: Ticket, now: float) -> Call[Ticket]:
        call = Call(lane, ticket, now, lane.provider, lane.breaker.patience)
        if not lane.breaker.is_closed:
            call.probe = lane.breaker.begin_probe()
        self._change(lane, lambda: self._begin(call, now))
        slow_after = lane.pace.slow_after(self.limits.slow_after)
        suspicious_at = now + self._suspects.suspicious_after(lane, slow_after)
        self._agenda.add(suspicious_at, self._suspicious_now, call)
        return call

    def _begin(self, call: Call[Ticket], now: float) -> None:
        self._move(call, 1)
        if call.lane.rate is not None:
            call.lane.rate.started(now)
            self._reckon(call.lane)

    def _start_first(self, lane: Lane[Ticket], now: float) -> Call[Ticket] | None:
        first = lane.first()
        if first is None:
            return None
        return self._start(lane, self._take(first), now)

    def _start_above_share(self, now: float) -> Call[Ticket] | None:
        """With slots to spare: the next order of a provider that is at its share."""
        for provider in self._turns.at_share():
            while self._may_exceed(provider):
                lane = self._turns.next_of(provider)
                if lane is None:
                    break
                may = self._turns.may_start_above_share(lane)
                call = self._start_first(lane, now) if may else None
                self._turns.done_with(lane)
                self._ask_if_short(lane)
                if call is not None:
                    return call
        return None

    def _move(self, call: Call[Ticket], by: int) -> None:
        bulkhead = call.lane.bulkhead
        bulkhead.enter() if by > 0 else bulkhead.leave()
        self.in_flight += by
        if call.provider is not None:
            call.provider.in_flight += by
        if call.lane.pace.slow:
            self._turns.slow.in_flight += by

    def _heard_from(self, call: Call[Ticket], now: float) -> None:
        """Its merchant has answered, so its provider does, and the slow do if it is one of them."""
        call.lane.last_answer = now
        self._suspects.answered(call, now)
        for share in self._shares(call):
            was_silent = share.silent
            share.answered(now)
            if was_silent:
                self._turns.wake(share)

    def _shares(self, call: Call[Ticket]) -> list[Share]:
        """Those that a call draws on."""
        slow = self._turns.slow if call.lane.pace.slow else None
        return [share for share in (call.provider, slow) if share is not None]

    def _judge_load(self, call: Call[Ticket], now: float, contact: Contact) -> None:
        """What its limit learns from a call."""
        lane = call.lane
        match contact:
            case Contact.ANSWERED if not call.late or call.probe is not None:
                lane.bulkhead.answered()
            case Contact.ANSWERED | Contact.FAILED:
                lane.bulkhead.hesitated()
            case Contact.OVERLOADED | Contact.TIMED_OUT:
                lane.bulkhead.overloaded(call.started, now)
            case Contact.NONE:
                pass

    def _judge_speed(self, call: Call[Ticket], now: float, contact: Contact) -> None:
        """Whether the merchant is slow, from how long a call took."""
        lane, seconds = call.lane, now - call.started
        slow = seconds >= lane.pace.slow_after(self.limits.slow_after)
        is_first = lane.pace.mean is None
        lane.pace.came_back(seconds, contact, slow=slow, late=call.late)
        if call.probe is not None and contact is Contact.ANSWERED:
            lane.pace.is_now(seconds)
        if is_first and lane.pace.mean is not None:
            self._suspects.first_took(seconds)
        if call.cut_short and contact is Contact.TIMED_OUT:
            self._out_too_long(call, now)
        elif slow:
            self._set_slow(lane, now, slow=True)
        elif lane.pace.has_recovered:
            self._set_slow(lane, now, slow=False)

    def _judge_health(
        self, call: Call[Ticket], now: float, contact: Contact, retry_after: float | None
    ) -> None:
        """Whether the merchant is to be called at all, from how a call ended."""
        lane, breaker = call.lane, call.lane.breaker
        answered = None if contact is Contact.NONE else contact is Contact.ANSWERED
        if call.probe is not None:
            is_present = breaker.state is State.HALF_OPEN and call.probe == breaker.spell
            if breaker.end_probe(call.probe, answered=answered):
                self._close(lane, "answered")
            elif is_present and answered is False:
                self._open(lane, now, "probe_failed", retry_after or 0.0)
                return
        elif breaker.is_closed and answered is not None:
            breaker.record(failed=not answered, late=call.late)
            if breaker.is_tripped(lane.late_calls):
                self._open(lane, now, "failures" if not answered else "late", retry_after or 0.0)
                return
        if retry_after is not None:
            self._open(lane, now, "asked", retry_after)

    # What time does

    def _suspicious_now(self, call: Call[Ticket], now: float) -> None:
        """A call is out for longer than is usual; should it go on, it will be slow."""
        self._suspects.add(call, now)
        slow_at = call.started + call.lane.pace.slow_after(self.limits.slow_after)
        self._agenda.add(slow_at, self._slow_now, call)

    def _slow_now(self, call: Call[Ticket], now: float) -> None:
        """A call has been out for too long: its merchant is slow from now, not from its return."""
        self._suspects.became_slow(call)
        self._out_too_long(call, now)
        late_at = call.started + call.lane.pace.late_after(self.limits.slow_after)
        if late_at < inf:
            self._agenda.add(late_at, self._late_now, call)

    def _out_too_long(self, call: Call[Ticket], now: float) -> None:
        """Its merchant is slow, and silent; so is who shares its slots, unless another answers."""
        lane = call.lane
        lane.pace.out_too_long()
        self._set_slow(lane, now, slow=True)
        for share in self._shares(call):
            share.out_too_long(call.started)

    def _late_now(self, call: Call[Ticket], now: float) -> None:
        """It counts against its merchant from now."""
        call.late = True
        lane = call.lane
        lane.late_calls += 1
        if lane.breaker.is_closed and lane.breaker.is_tripped(lane.late_calls):
            self._open(lane, now, "late")

    def _reckon(self, lane: Lane[Ticket]) -> None:
        """See whether one more of its orders may start in this second; if not, again in time."""
        rate = lane.rate
        if rate is None:
            return
        before = rate.free_at
        rate.reckon(self._now, lane.bulkhead.part)
        if rate.is_spent and rate.free_at != before:
            self._agenda.add(rate.free_at, self._next_second, lane)

    def _next_second(self, lane: Lane[Ticket], now: float) -> None:
        if lane.is_spent and lane.rate is not None and lane.rate.free_at <= now:
            self._change(lane, lambda: self._reckon(lane))
            self._line_up(lane)

    def _expire(self, waiting: Waiting[Ticket], _now: float) -> None:
        self._expired.append(self._take(waiting))

    def _forget(self, lane: Lane[Ticket]) -> None:
        """The benefit of the doubt, after a quiet spell."""
        self._set_slow(lane, lane.last_call, slow=False)
        self._change(lane, lane.bulkhead.forget)
        lane.breaker.forget()

    # Transitions

    def _open(self, lane: Lane[Ticket], now: float, why: str, at_least: float = 0.0) -> None:
        breaker = lane.breaker
        again = breaker.is_open or why == FLEET

        def change() -> None:
            breaker.open_for(now, at_least) if again else breaker.open(now, at_least=at_least)

        self._change(lane, change)
        self._agenda.add(breaker.until, self._half_open, lane)
        self._announce(Transition(lane.merchant_id, State.OPEN, breaker.until - now, why))
        while (first := lane.first()) is not None and first.deadline <= breaker.until:
            self._expire(first, now)

    def _half_open(self, lane: Lane[Ticket], now: float) -> None:
        if lane.breaker.is_open and lane.breaker.until <= now:
            self._change(lane, lane.breaker.half_open)
            self._announce(Transition(lane.merchant_id, State.HALF_OPEN, 0.0, "time"))
            self._line_up(lane)

    def _close(self, lane: Lane[Ticket], why: str) -> None:
        self._change(lane, lane.breaker.close)
        self._announce(Transition(lane.merchant_id, State.CLOSED, 0.0, why))
        self._line_up(lane)

    def _set_slow(self, lane: Lane[Ticket], now: float, *, slow: bool) -> None:
        if lane.pace.slow is slow:
            return

        def turn() -> None:
            lane.pace.became_slow(now) if slow else lane.pace.became_healthy(now)
            in_flight = lane.bulkhead.in_flight
            self._turns.slow.in_flight += in_flight if slow else -in_flight

        self._change(lane, turn)
        if not slow:
            self._turns.line_up(lane)
            self._turns.wake(self._turns.slow)

    # Bookkeeping

    def _change(self, lane: Lane[Ticket], change: Callable[[], None]) -> None:
        """Do something that may bring the lane into trouble or out of it, and keep the counts."""
        if not lane.waiting:  # then there is nothing to count
            change()
            return
        was_troubled = lane.is_troubled
        change()
        self._room.recount(lane, was_troubled=was_troubled)

    def _take(self, waiting: Waiting[Ticket]) -> Ticket:
        ticket = waiting.lane.take(waiting)
        self._room.count(waiting.lane, -1)
        return ticket

    def _line_up(self, lane: Lane[Ticket]) -> None:
        self._turns.line_up(lane)
        self._ask_if_short(lane)

    def _ask_if_short(self, lane: Lane[Ticket]) -> None:
        if lane.waiting and lane.known and lane.bulkhead.is_short:
            self._on_short(lane.merchant_id)

    def _lane(self, merchant_id: str) -> Lane[Ticket]:
        lane = self._lanes.get(merchant_id)
        if lane is None:
            if len(self._lanes) >= LANES:
                self._forget_idle()
            lane = self._lanes[merchant_id] = Lane(merchant_id)
            if self._in_fleet:
                lane.bulkhead.allotment = UNASKED
            terms = self._terms_of(merchant_id)
            if terms is not None:
                self.set_terms(merchant_id, terms)
        return lane

    def _forget_idle(self) -> None:
        """Once in so many newcomers, so that each of them pays a constant part of it."""
        lanes = self._lanes.items()
        # A merchant that asked to be left alone is to be, however many others come.
        self._lanes = {key: lane for key, lane in lanes if not lane.is_forgettable(self._now)}
