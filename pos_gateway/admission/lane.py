"""A merchant's lane: bulkhead, breaker, latency estimate, usage, and waiting orders; and queues of lanes."""

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
from pos_gateway.admission.quota import Quota
from pos_gateway.admission.symptoms import MerchantStatus, Symptoms
from pos_gateway.admission.usage import WINDOW, Usage
from pos_gateway.domain.outcome import CallResult

Ticket = TypeVar("Ticket")

#: Seconds without a call after which a merchant in trouble gets the benefit of the doubt.
QUIET = 60.0
#: Seconds for which a merchant is shown after an unsent order: the retry comes within 60.
UNSENT = 120.0
#: The number of orders that counts as several.
SEVERAL = 3
#: Assumed seconds of a call before the first answer.
UNKNOWN_DURATION = 1.0
#: Void entries of a queue, beyond twice the live entries, before a purge.
STALE = 64


@dataclass(slots=True, eq=False)
class Provider:
    """The state shared by the merchants of a POS vendor: the merchants fall silent together.

    A vendor is silent while a call to a merchant is an outlier, and no merchant has answered since the
    call began."""

    silent: bool = False
    _silent_since: float = 0.0
    _answered_at: float = -inf

    def answered(self, now: float) -> float | None:
        """A merchant has answered; returns the seconds of the vendor's silence, None if there was no silence."""
        was_silent, self.silent = self.silent, False
        self._answered_at = now
        return now - self._silent_since if was_silent else None

    def is_unusual(self, started: float, now: float) -> None:
        """A call started then is an outlier."""
        if not self.silent and self._answered_at < started:
            self.silent, self._silent_since = True, now


@dataclass(slots=True, eq=False)
class Waiting(Generic[Ticket]):
    """A waiting order: waiting since, and deadline."""

    lane: "Lane[Ticket]"
    ticket: Ticket
    since: float
    deadline: float
    #: The order waits no longer.
    done: bool = False
    #: The POS may have the order.
    is_look_up: bool = False


@dataclass(slots=True, eq=False)
class LookUps(Generic[Ticket]):
    """A merchant's orders in doubt, first in, first out, with half of the concurrency limit.

    New orders arrive for ever at an overloaded merchant, each with a deadline. Beside them, an order in
    doubt would never be looked up; before them, a flood of look-ups would start no new order. Each kind
    has half of the merchant's slot-time, and all slot-time while no order of the second kind waits.

    No deadline and no clock orders look-ups: a parked order comes back among look-ups alone.
    """

    usage: Usage = field(default_factory=Usage)
    parking: ParkingQueue = field(default_factory=ParkingQueue)
    #: Waiting look-ups; done entries of the queue are skipped.
    waiting: int = 0
    queue: deque[Waiting[Ticket]] = field(default_factory=deque)

    def first(self) -> Waiting[Ticket] | None:
        """The next look-up in turn."""
        while self.queue and self.queue[0].done:
            self.queue.popleft()
        return self.queue[0] if self.queue else None

    def go_first(self, all_calls: Usage, now: float) -> bool:
        """Whether the next start is a look-up's; ``all_calls`` has the look-ups' slot-time, too."""
        own, everything = self.usage, all_calls
        held = own.average(now) + own.held
        return 2 * held <= everything.average(now) + everything.held


class Demand(NamedTuple):
    """A merchant's demand in this process."""

    #: The concurrency limit; 0 while the merchant is paused.
    limit: int
    in_flight: int
    waiting: int


@dataclass(slots=True, eq=False)
class Lane(Generic[Ticket]):
    """A merchant with orders in flight or waiting, now or earlier."""

    #: For the agenda: a lane is never done.
    done: ClassVar[bool] = False

    merchant_id: str
    #: The terms are known; until then orders wait.
    known: bool = False
    provider: Provider | None = None
    #: Calls may be ended early: the POS honours our key, or has a look-up by our order id.
    may_be_cut_short: bool = True
    bulkhead: Bulkhead = field(default_factory=lambda: Bulkhead(0))
    breaker: Breaker = field(default_factory=Breaker)
    latency: LatencyEstimate = field(default_factory=LatencyEstimate)
    #: Limits of requests, and the quota awaited by the next order.
    quotas: "tuple[Quota[Lane[Ticket]], ...]" = ()
    lacks: "Quota[Lane[Ticket]] | None" = None
    #: Waiting orders.
    waiting: int = 0
    #: True while orders queue because of the merchant rather than for a slot; and when an order was last
    #: offered meanwhile.
    is_holding: bool = False
    held_at: float = -inf
    #: Since when several orders are here; and when the merchant was last seen behind: with several orders
    #: for some time, or with parked orders; at first, when the lane was made.
    crowded_since: float = inf
    behind_at: float = -inf
    #: Late calls in flight.
    late_calls: int = 0
    #: When the last call ended, answered or not.
    last_call: float = 0.0
    #: When the merchant answered last, be the answer 429 or 503.
    last_answer: float = -inf
    #: Failures, for operators; None: no call has failed or was late.
    evidence: Evidence | None = None
    #: Slots held by orders.
    usage: Usage = field(default_factory=Usage)
    #: Whether the merchant used less than a fair share of slot-time when last judged (``Scheduler``).
    is_light: bool = False
    #: Whether the merchant then yielded to merchants that keep up, for want of CPU.
    yields: bool = False
    #: Slots held by light calls, and the light spell of these calls.
    light_held: int = 0
    light_spell: int = 0
    #: The queue for a slot, and the place there.
    queue: "MerchantQueue[Any] | None" = None
    place: int = 0
    #: The lane's part in the counts of all merchants: orders waiting, orders waiting for the merchant, and orders
    #: waiting for a merchant that takes no order; slots held while silent; and whether there is work.
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
        """The parking queue, made on demand: few merchants ever have a parked order."""
        if self._parking is None:
            self._parking = ParkingQueue()
        return self._parking

    @property
    def look_ups(self) -> LookUps[Ticket]:
        """The look-ups, made on demand: few merchants ever have an order in doubt."""
        if self._look_ups is None:
            self._look_ups = LookUps()
        return self._look_ups

    def waiting_of(self, *, look_ups: bool) -> int:
        """The waiting look-ups, or the waiting new orders."""
        number = self._look_ups.waiting if self._look_ups is not None else 0
        return number if look_ups else self.waiting - number

    def agree(self, terms: Terms, provider: Provider | None) -> None:
        """Set the merchant's terms and provider."""
        self.known, self.provider = True, provider
        self.bulkhead.agree(terms.limit, None if not terms.is_shared else self.bulkhead.allotment)
        self.may_be_cut_short = terms.may_be_cut_short

    @property
    def has_room(self) -> bool:
        """Whether terms, limits, breaker and quotas allow a further start."""
        is_under_limits = self.known and self.bulkhead.in_flight < self.bulkhead.limit
        return is_under_limits and self.lacks is None and self.breaker.lets_through

    @property
    def is_troubled(self) -> bool:
        """Whether orders wait for the merchant, not for a slot."""
        if self.latency.silent or self.breaker.state is not BreakerState.CLOSED:
            return True
        return self.lacks is not None or (self.known and self.bulkhead.is_full)

    @property
    def is_silent(self) -> bool:
        """Whether a call hangs or timed out, the breaker is half-open, or the provider silent."""
        if self.latency.silent or self.breaker.state is BreakerState.HALF_OPEN:
            return True
        return self.provider is not None and self.provider.silent

    @property
    def is_stranger(self) -> bool:
        """Whether the merchant has never answered, and no call is in flight."""
        return self.latency.mean is None and not self.usage.held and not self.is_silent

    @property
    def is_early(self) -> bool:
        """Whether the merchant has never answered, and a call is in flight."""
        return self.latency.mean is None and self.usage.held > 0 and not self.is_silent

    @property
    def is_paced(self) -> bool:
        """Whether starts are paced while the merchant is heavy."""
        return (self.latency.mean or 0.0) >= pacing.SHORTEST and not self.is_silent

    @property
    def is_working(self) -> bool:
        """Whether orders are here, and the merchant takes orders as far as is known."""
        may_work = self.waiting > 0 and self.known and self.bulkhead.limit > 0
        has_work = self.usage.held > 0 or may_work
        return has_work and self.breaker.state is BreakerState.CLOSED and not self.latency.silent

    @property
    def is_crowded(self) -> bool:
        """Whether several orders are here, and an order waits."""
        return self.waiting > 0 and self.waiting + self.usage.held >= SEVERAL

    @property
    def usual(self) -> float:
        """Seconds of a usual call, assumed before the first answer."""
        return UNKNOWN_DURATION if self.latency.mean is None else self.latency.mean

    def projected(self, now: float) -> float:
        """The average of slots if a further order starts now."""
        return self.usage.average(now) + (self.usage.held + 1) * self.usual / WINDOW

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
        """Whether orders are not sent, for want of something at the gateway."""
        return self.evidence is not None and now - self.evidence.unsent_at < UNSENT

    def offered(self, now: float) -> None:
        """An order is offered, and does not start at once."""
        self.is_holding = self.is_troubled or (self.is_holding and self.waiting > 0)
        if self.is_holding:
            self.held_at = now

    def noted(self) -> Evidence:
        """The evidence, made on demand: few merchants ever have any."""
        if self.evidence is None:
            self.evidence = Evidence()
        return self.evidence

    def symptoms(self, parked: int, now: float) -> Symptoms:
        """The merchant's status, and the reasons."""
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
            self.lacks.terms.key if self.lacks else None,
        )

    def is_forgettable(self, now: float) -> bool:
        """Whether the next order may start like the first."""
        is_fresh = all(each.members > 1 or each.is_idle(now) for each in self.quotas)
        return self.is_idle and self.breaker.is_closed and is_fresh and not self.is_unsent(now)

    def is_quiet(self, now: float) -> bool:
        """Whether the merchant has been idle for long: the history says little."""
        return now - self.last_call > QUIET and self.is_idle

    def put(
        self, ticket: Ticket, now: float, deadline: float, *, is_look_up: bool = False
    ) -> Waiting[Ticket]:
        """Let an order wait; the earliest deadline goes first, and look-ups have a queue of their own.

        While the breaker is not closed, the order with the longest wait goes first.

        An order without a deadline is invalid, and queues as if due now: newer orders must not go first for ever.
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
        """The waiting order with the next turn."""
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
        """The new order with the longest wait.

        The most urgent order is no probe: an order that causes the failures would be each probe until its
        deadline.
        """
        queued = (entry for entry in self._queue if not entry[2].done)
        first = min(queued, key=lambda entry: entry[1], default=None)
        return None if first is None else first[2]

    def expiring(self, time: float) -> list[Waiting[Ticket]]:
        """Waiting orders with a deadline by ``time``, the earliest first."""
        left = [each for each in self._in_queues() if each.deadline <= time]
        return sorted(left, key=lambda each: each.deadline)

    def take(self, waiting: Waiting[Ticket]) -> Ticket:
        """Remove a waiting order and return the ticket. No reference to the ticket is kept."""
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
        """Remove all waiting orders and return the tickets."""
        return [self.take(waiting) for waiting in self._in_queues()]

    def _in_queues(self) -> list[Waiting[Ticket]]:
        """All waiting orders."""
        queued = [waiting for _, _, waiting in self._queue]
        if self._look_ups is not None:
            queued += self._look_ups.queue
        return [waiting for waiting in queued if not waiting.done]


@dataclass(slots=True, eq=False)
class Call(Generic[Ticket]):
    """An order in flight: holds a slot until its release."""

    lane: Lane[Ticket]
    ticket: Ticket
    #: When the exchange began; until then, when the order took the slot.
    started: float
    #: The merchant's light spell at the start; None: the merchant was not light, or the call is an
    #: outlier.
    light: int | None = None
    #: The call's part of the merchant's time limit; less than 1 for a breaker's first probes.
    time_limit_share: float = 1.0
    #: Seconds for which no order has had to wait for the merchant.
    well_for: float = inf
    #: The breaker's half-open spell that admitted the probe; None: the call is no probe.
    probe: int | None = None
    #: A late call counts against the merchant.
    late: bool = False
    #: Since when the call is an outlier.
    outlier_since: float = inf
    #: Asked to end early: the slot is needed.
    cut_short: bool = False
    done: bool = False
    #: The POS may have the order.
    is_look_up: bool = False
    #: Started under a lowered limit.
    lowered: bool = False
    #: The quotas of the order.
    quotas: tuple[Quota[Lane[Ticket]], ...] = ()

    @property
    def is_light(self) -> bool:
        """Whether the slot counts as a light merchant's."""
        return self.light == self.lane.light_spell


class MerchantQueue(Generic[Ticket]):
    """Merchants that lack only a slot: a heap of lanes, the least key first, and of equal keys the first to come.

    A lane is in at most a single queue, and leaves the queue in constant time: the entry is skipped later.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Lane[Ticket]]] = []
        self._count = count(1)
        #: The lanes in the queue.
        self.size = 0

    def __iter__(self) -> Iterator[Lane[Ticket]]:
        return (entry[2] for entry in self._entries if self._is_valid(entry))

    def add(self, lane: Lane[Ticket], key: float) -> None:
        """Add a lane without a queue."""
        lane.queue, lane.place = self, next(self._count)
        self.size += 1
        if len(self._entries) > 2 * self.size + STALE:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (key, lane.place, lane))

    def remove(self, lane: Lane[Ticket]) -> None:
        """Remove a lane of this queue."""
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
