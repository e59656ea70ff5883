"""One merchant's lane: its bulkhead, breaker, latency estimate, usage, and waiting orders; and queues of lanes."""

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from pos_gateway.admission import pacing
from pos_gateway.admission.breaker import Breaker, BreakerState
from pos_gateway.admission.bulkhead import Bulkhead
from pos_gateway.admission.evidence import Evidence
from pos_gateway.admission.latency import LatencyEstimate
from pos_gateway.admission.limits import Terms
from pos_gateway.admission.parking import ParkingQueue
from pos_gateway.admission.rate import Rate
from pos_gateway.admission.symptoms import MerchantStatus, Symptoms
from pos_gateway.admission.usage import WINDOW, Usage
from pos_gateway.domain.outcome import CallResult

Ticket = TypeVar("Ticket")

#: Seconds without a call after which a merchant in trouble gets the benefit of the doubt.
QUIET = 60.0
#: Seconds after an order that was not sent for which the merchant is shown: its retry comes within 60.
UNSENT = 120.0
#: Seconds for which a merchant that was behind does not keep up, and its orders here that are several.
BEHIND_FOR, SEVERAL = 5.0, 3
#: Seconds that a call is assumed to take before the first answer.
UNKNOWN_DURATION = 1.0
#: Entries of a queue beyond twice the live ones before the void ones are purged.
STALE = 64


@dataclass(slots=True, eq=False)
class Provider:
    """The state that the merchants of one POS vendor share: they fall silent together.

    A vendor is silent while a call to one of its merchants is an outlier, and none of them has
    answered since that began."""

    silent: bool = False
    _silent_since: float = 0.0
    _answered_at: float = -inf

    def answered(self, now: float) -> float | None:
        """One of its merchants has answered; returns for how long the vendor was silent, if it was."""
        was_silent, self.silent = self.silent, False
        self._answered_at = now
        return now - self._silent_since if was_silent else None

    def is_unusual(self, started: float, now: float) -> None:
        """A call that started then is an outlier."""
        if not self.silent and self._answered_at < started:
            self.silent, self._silent_since = True, now


@dataclass(slots=True, eq=False)
class Waiting(Generic[Ticket]):
    """A waiting order: since when, and its deadline."""

    lane: "Lane[Ticket]"
    ticket: Ticket
    since: float
    deadline: float
    #: It does not wait any more.
    done: bool = False
    #: The POS may have it.
    is_look_up: bool = False


@dataclass(slots=True, eq=False)
class LookUps(Generic[Ticket]):
    """One merchant's orders in doubt, first in, first out, and their half of its concurrency limit.

    New orders arrive for ever at an overloaded merchant, each with a deadline. Beside them, an order in
    doubt would never be looked up; before them, a flood of look-ups would start no new order. Each kind
    has half of the merchant's slot-time, and all of it while no order of the other kind waits.

    No deadline and no clock orders look-ups: an order that was parked comes back among look-ups alone.
    """

    usage: Usage = field(default_factory=Usage)
    parking: ParkingQueue = field(default_factory=ParkingQueue)
    #: Those that wait; done entries of the queue are skipped.
    waiting: int = 0
    queue: deque[Waiting[Ticket]] = field(default_factory=deque)

    def first(self) -> Waiting[Ticket] | None:
        """The look-up whose turn is next."""
        while self.queue and self.queue[0].done:
            self.queue.popleft()
        return self.queue[0] if self.queue else None

    def go_first(self, all_calls: Usage, now: float) -> bool:
        """Whether the next start is a look-up's, of all calls' slot-time with these among them."""
        own, everything = self.usage, all_calls
        held = own.average(now) + own.held
        return 2 * held <= everything.average(now) + everything.held


class Demand(NamedTuple):
    """A merchant's demand in this process."""

    #: Its concurrency limit; 0 while it is paused.
    limit: int
    in_flight: int
    waiting: int


@dataclass(slots=True, eq=False)
class Lane(Generic[Ticket]):
    """A merchant that has, or had, orders in flight or waiting."""

    #: For the agenda: a lane is never done.
    done: ClassVar[bool] = False

    merchant_id: str
    #: Its terms are known; until then its orders wait.
    known: bool = False
    provider: Provider | None = None
    #: Its calls may be ended early: its POS honours our key, or can be asked by our order id.
    may_be_cut_short: bool = True
    bulkhead: Bulkhead = field(default_factory=lambda: Bulkhead(0))
    breaker: Breaker = field(default_factory=Breaker)
    latency: LatencyEstimate = field(default_factory=LatencyEstimate)
    #: None: it has no rate limit.
    rate: Rate | None = None
    #: Waiting orders.
    waiting: int = 0
    #: Whether the last order that waits does so for the merchant itself, or behind one that does, and
    #: when one was last offered that did.
    is_holding: bool = False
    held_at: float = -inf
    #: Since when it has several orders here, and when it was last seen behind: with several for some time, or
    #: with parked ones; at first, when it came.
    crowded_since: float = inf
    behind_at: float = -inf
    #: Late calls in flight.
    late_calls: int = 0
    #: When its last call ended, whether or not it was answered.
    last_call: float = 0.0
    #: When it answered last, be it with 429 or 503.
    last_answer: float = -inf
    #: What went wrong, for operators; None: no call has failed or was late.
    evidence: Evidence | None = None
    #: Slots that its orders hold.
    usage: Usage = field(default_factory=Usage)
    #: Whether it used less than its fair share of slot-time when last judged (``Scheduler``).
    is_light: bool = False
    #: Whether it yields to merchants that keep up, since CPU is scarce, as of then.
    yields: bool = False
    #: Slots that its light calls hold, and the light spell that those belong to.
    light_held: int = 0
    light_spell: int = 0
    #: Its queue for a slot, and its place there.
    queue: "MerchantQueue[Any] | None" = None
    place: int = 0
    #: Its part in the counts of all merchants: waiting orders, those that wait for the merchant
    #: itself, those whose merchant takes none, slots that it holds while it is silent, and whether
    #: it has work.
    counted_waiting: int = 0
    counted_blocked: int = 0
    counted_stuck: int = 0
    counted_silent: int = 0
    counted_working: bool = False
    _queue: list[tuple[float, int, Waiting[Ticket]]] = field(default_factory=list)
    _number: int = 0
    _parking: ParkingQueue | None = None
    _look_ups: LookUps[Ticket] | None = None

    @property
    def parking(self) -> ParkingQueue:
        """Its parking queue, made on demand: few merchants ever have a parked order."""
        if self._parking is None:
            self._parking = ParkingQueue()
        return self._parking

    @property
    def look_ups(self) -> LookUps[Ticket]:
        """Its look-ups, made on demand: few merchants ever have an order in doubt."""
        if self._look_ups is None:
            self._look_ups = LookUps()
        return self._look_ups

    def waiting_of(self, *, look_ups: bool) -> int:
        """Its waiting look-ups, or its other waiting orders."""
        number = self._look_ups.waiting if self._look_ups is not None else 0
        return number if look_ups else self.waiting - number

    def agree(self, terms: Terms, provider: Provider | None) -> None:
        """Set the merchant's terms and provider."""
        self.known, self.provider = True, provider
        self.bulkhead.agree(terms.limit, None if not terms.is_shared else self.bulkhead.allotment)
        self.may_be_cut_short = terms.may_be_cut_short
        if terms.per_second is None:
            self.rate = None
        elif self.rate is None or self.rate.per_second != terms.per_second:
            self.rate = Rate(terms.per_second)

    @property
    def has_room(self) -> bool:
        """Whether its terms, limits and breaker allow one more start."""
        is_under_limits = self.known and self.bulkhead.in_flight < self.bulkhead.limit
        has_rate = self.rate is None or not self.rate.is_spent
        return is_under_limits and has_rate and self.breaker.lets_through

    @property
    def is_spent(self) -> bool:
        """Whether its rate limit is used up."""
        return self.rate is not None and self.rate.is_spent

    @property
    def is_troubled(self) -> bool:
        """Whether its orders wait for the merchant itself, not for a slot."""
        if self.latency.silent or self.breaker.state is not BreakerState.CLOSED:
            return True
        return self.is_spent or (self.known and self.bulkhead.is_full)

    @property
    def is_silent(self) -> bool:
        """Whether a call hangs or timed out, the breaker is half-open, or the provider silent."""
        if self.latency.silent or self.breaker.state is BreakerState.HALF_OPEN:
            return True
        return self.provider is not None and self.provider.silent

    @property
    def is_stranger(self) -> bool:
        """Whether it has never answered, and has no call in flight."""
        return self.latency.mean is None and not self.usage.held and not self.is_silent

    @property
    def is_early(self) -> bool:
        """Whether it has never answered, and has a call in flight."""
        return self.latency.mean is None and self.usage.held > 0 and not self.is_silent

    @property
    def is_paced(self) -> bool:
        """Whether its starts are paced while it is heavy."""
        return (self.latency.mean or 0.0) >= pacing.SHORTEST and not self.is_silent

    @property
    def is_working(self) -> bool:
        """Whether it has orders here, and takes them as far as is known."""
        may_work = self.waiting > 0 and self.known and self.bulkhead.limit > 0
        has_work = self.usage.held > 0 or may_work
        return has_work and self.breaker.state is BreakerState.CLOSED and not self.latency.silent

    @property
    def is_crowded(self) -> bool:
        """Whether it has several orders here, and one that waits."""
        return self.waiting > 0 and self.waiting + self.usage.held >= SEVERAL

    def was_behind(self, now: float) -> bool:
        """Whether it did not keep up with its orders a short time ago."""
        return now - self.behind_at < BEHIND_FOR

    def projected(self, now: float) -> float:
        """Its average of slots if one more of its orders starts now."""
        usual = UNKNOWN_DURATION if self.latency.mean is None else self.latency.mean
        return self.usage.average(now) + (self.usage.held + 1) * usual / WINDOW

    @property
    def is_idle(self) -> bool:
        return not self.bulkhead.in_flight and not self.waiting

    def standing(self, parked: int, now: float) -> MerchantStatus:
        bulkhead = self.bulkhead
        return MerchantStatus(
            self.merchant_id,
            bulkhead.in_flight,
            self.waiting,
            bulkhead.concurrency_limit,
            max(0, bulkhead.limit),
            self.is_light,
            self.is_silent,
            self.breaker.state,
            self.is_troubled,
            parked,
            self.is_unsent(now),
        )

    def is_unsent(self, now: float) -> bool:
        """Whether its orders are not sent, for want of something at the gateway."""
        return self.evidence is not None and now - self.evidence.unsent_at < UNSENT

    def offered(self, now: float) -> None:
        """An order is offered that does not start at once."""
        self.is_holding = self.is_troubled or (self.is_holding and self.waiting > 0)
        if self.is_holding:
            self.held_at = now

    def noted(self) -> Evidence:
        """Its evidence, made on demand: few merchants ever have any."""
        if self.evidence is None:
            self.evidence = Evidence()
        return self.evidence

    def symptoms(self, parked: int, now: float) -> Symptoms:
        """Its status, and what shows why."""
        breaker, evidence = self.breaker, self.evidence or Evidence()
        failures = Counter(evidence.last(breaker.failed))
        error, failed_at = evidence.error or (None, now)
        return Symptoms(
            self.standing(parked, now),
            0.0 if breaker.is_closed else now - evidence.since,
            max(0.0, breaker.until - now),
            breaker.calls,
            failures[CallResult.TIMED_OUT],
            failures[CallResult.FAILED],
            failures[CallResult.OVERLOADED],
            breaker.late,
            evidence.latest,
            self.latency.mean,
            error,
            now - failed_at,
        )

    def is_forgettable(self, now: float) -> bool:
        """Whether its next order may start as if it were the first."""
        is_fresh = self.rate is None or self.rate.is_idle(now)
        return self.is_idle and self.breaker.is_closed and is_fresh and not self.is_unsent(now)

    def is_quiet(self, now: float) -> bool:
        """Whether it has been idle for so long that its history says little."""
        return now - self.last_call > QUIET and self.is_idle

    def put(
        self, ticket: Ticket, now: float, deadline: float, *, is_look_up: bool = False
    ) -> Waiting[Ticket]:
        """Let an order wait; the earliest deadline goes first, and look-ups have a queue of their own.

        While the breaker is not closed, the order that has waited longest goes first.

        An order without a deadline is invalid: an attempt only says so, and none is put before it for ever.
        """
        waiting = Waiting(self, ticket, now, deadline, is_look_up=is_look_up)
        self.waiting += 1
        if is_look_up:
            self.look_ups.waiting += 1
            self.look_ups.queue.append(waiting)
            return waiting
        self._number += 1
        if len(self._queue) > 2 * self.waiting + 16:  # most entries are done
            self._queue = [entry for entry in self._queue if not entry[2].done]
            heapq.heapify(self._queue)
        urgency = deadline if deadline < inf else now
        heapq.heappush(self._queue, (urgency, self._number, waiting))
        return waiting

    def first(self, now: float) -> Waiting[Ticket] | None:
        """The waiting order whose turn is next."""
        order = self._first_order() if self.breaker.is_closed else self._first_come()
        look_ups = self._look_ups
        look_up = look_ups.first() if look_ups is not None else None
        if order is None or look_ups is None or look_up is None:
            return order or look_up
        return look_up if look_ups.go_first(self.usage, now) else order

    def _first_order(self) -> Waiting[Ticket] | None:
        """The waiting order, no look-up, with the earliest deadline."""
        while self._queue and self._queue[0][2].done:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def _first_come(self) -> Waiting[Ticket] | None:
        """The waiting order, no look-up, that has waited longest.

        A probe is not the most urgent order, which may be the cause of the failures, and would be each
        probe until its deadline.
        """
        queued = (entry for entry in self._queue if not entry[2].done)
        first = min(queued, key=lambda entry: entry[1], default=None)
        return None if first is None else first[2]

    def expiring(self, time: float) -> list[Waiting[Ticket]]:
        """Waiting orders with a deadline by ``time``, the earliest first."""
        left = [each for each in self._in_queues() if each.deadline <= time]
        return sorted(left, key=lambda each: each.deadline)

    def take(self, waiting: Waiting[Ticket]) -> Ticket:
        """Remove a waiting order and return its ticket. No reference to it is kept."""
        ticket = waiting.ticket
        del waiting.ticket
        waiting.done = True
        self.waiting -= 1
        if waiting.is_look_up:
            self.look_ups.waiting -= 1
            self.look_ups.first()
        else:
            self._first_order()
        return ticket

    def take_all(self) -> list[Ticket]:
        """Remove all waiting orders and return their tickets."""
        return [self.take(waiting) for waiting in self._in_queues()]

    def _in_queues(self) -> list[Waiting[Ticket]]:
        """Its waiting orders."""
        queued = [waiting for _, _, waiting in self._queue]
        if self._look_ups is not None:
            queued += self._look_ups.queue
        return [waiting for waiting in queued if not waiting.done]


@dataclass(slots=True, eq=False)
class Call(Generic[Ticket]):
    """An order in flight: it holds a slot until it is released."""

    lane: Lane[Ticket]
    ticket: Ticket
    #: When its exchange began; until then, when it took its slot.
    started: float
    #: Its merchant's light spell in which it started; None: the merchant was not light, or the call
    #: is an outlier.
    light: int | None = None
    #: Its part of the merchant's time limit; less than 1 for a breaker's first probes.
    time_limit_share: float = 1.0
    #: Seconds for which no order has had to wait for the merchant itself.
    well_for: float = inf
    #: The breaker's half-open spell that admitted it; None: it is no probe.
    probe: int | None = None
    #: It is late: it counts against its merchant.
    late: bool = False
    #: Since when it is an outlier.
    outlier_since: float = inf
    #: It was asked to end early, since its slot is needed.
    cut_short: bool = False
    done: bool = False
    #: The POS may have its order.
    is_look_up: bool = False
    #: It started under a lowered limit.
    lowered: bool = False

    @property
    def is_light(self) -> bool:
        """Whether its slot counts as a light merchant's."""
        return self.light == self.lane.light_spell


class MerchantQueue(Generic[Ticket]):
    """Merchants that lack only a slot: a heap of lanes, the least key first, and of equal ones the first to come.

    A lane is in one queue at most, and leaves it in constant time: its entry is skipped later.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Lane[Ticket]]] = []
        self._count = count(1)
        #: The lanes in the queue.
        self.size = 0

    def __iter__(self) -> Iterator[Lane[Ticket]]:
        return (entry[2] for entry in self._entries if self._is_valid(entry))

    def add(self, lane: Lane[Ticket], key: float) -> None:
        """Add a lane that is in no queue."""
        lane.queue, lane.place = self, next(self._count)
        self.size += 1
        if len(self._entries) > 2 * self.size + STALE:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (key, lane.place, lane))

    def remove(self, lane: Lane[Ticket]) -> None:
        """Remove a lane that is in this queue."""
        lane.queue = None
        self.size -= 1

    def head(self) -> tuple[float, int, Lane[Ticket]] | None:
        """The next lane as (key, place, lane), not removed."""
        while self._entries and not self._is_valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0] if self._entries else None

    def _is_valid(self, entry: tuple[float, int, Lane[Ticket]]) -> bool:
        _, place, lane = entry
        return lane.queue is self and lane.place == place
