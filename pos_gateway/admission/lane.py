"""One merchant's lane: its bulkhead, its breaker, its pace, its usage, and its orders that wait."""

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from pos_gateway.admission import pacing
from pos_gateway.admission.breaker import Breaker, State
from pos_gateway.admission.bulkhead import Bulkhead
from pos_gateway.admission.limits import Terms
from pos_gateway.admission.pace import Pace
from pos_gateway.admission.parking import ParkingQueue
from pos_gateway.admission.provider import Provider
from pos_gateway.admission.rate import Rate
from pos_gateway.admission.usage import WINDOW, Usage

if TYPE_CHECKING:
    from pos_gateway.admission.merchant_queue import MerchantQueue

Ticket = TypeVar("Ticket")

#: Seconds without a call after which a merchant in trouble gets the benefit of the doubt.
QUIET = 60.0
#: Seconds that a call is taken to last before the first one has been answered.
UNKNOWN_DURATION = 1.0


@dataclass(slots=True, eq=False)
class Waiting(Generic[Ticket]):
    """An order that waits, since when for its merchant, and until when that makes sense."""

    lane: "Lane[Ticket]"
    ticket: Ticket
    since: float
    deadline: float
    #: It has started, or was given back.
    done: bool = False


class Demand(NamedTuple):
    """What a merchant's orders want in this process."""

    #: What is agreed with it; 0 while it is paused.
    limit: int
    in_flight: int
    waiting: int


class MerchantStatus(NamedTuple):
    """How things stand with a merchant."""

    merchant_id: str
    in_flight: int
    waiting: int
    #: What was agreed with it (0: it is paused, or not known yet), and what it is held to.
    agreed: int
    limit: int
    #: It uses less than half of its fair part of slot-time, as was seen last: it starts at once.
    light: bool
    #: A call of its is out for too long or timed out, its breaker is half-open, or its provider is
    #: silent.
    silent: bool
    breaker: State
    #: Its orders wait for the merchant itself, not for somebody else's.
    troubled: bool
    #: Its orders that this process has parked.
    parked: int


@dataclass(slots=True, eq=False)
class Lane(Generic[Ticket]):
    """A merchant that has, or had, orders under way or waiting."""

    #: For the agenda: a lane is never done.
    done: ClassVar[bool] = False

    merchant_id: str
    #: What was agreed with the merchant is known; until then its orders wait.
    known: bool = False
    provider: Provider | None = None
    #: A call of its may be ended early: sending the order again is safe, or it can be asked.
    may_be_cut_short: bool = True
    bulkhead: Bulkhead = field(default_factory=lambda: Bulkhead(0))
    breaker: Breaker = field(default_factory=Breaker)
    pace: Pace = field(default_factory=Pace)
    #: None: as many may start in a second as there are.
    rate: Rate | None = None
    #: How many orders wait.
    waiting: int = 0
    #: Calls that are late by now and still out.
    late_calls: int = 0
    #: When its last call ended, whether or not it was answered.
    last_call: float = 0.0
    #: When it answered last, be it that this is too much.
    last_answer: float = -inf
    #: Slots that its orders hold.
    usage: Usage = field(default_factory=Usage)
    #: Whether it used less than half of its fair part of slot-time when it was looked at last.
    is_light: bool = False
    #: Slots that its light calls hold, and the spell of being light that those belong to.
    light_held: int = 0
    light_spell: int = 0
    #: Where it stands in line for a slot, and its place there.
    queue: "MerchantQueue[Any] | None" = None
    place: int = 0
    #: What of it is in the counts of all merchants: orders that wait, those of them that wait for
    #: the merchant itself, those whose merchant takes none, slots that it holds while it is silent,
    #: and whether it has work.
    counted_waiting: int = 0
    counted_blocked: int = 0
    counted_stuck: int = 0
    counted_silent: int = 0
    counted_working: bool = False
    _queue: list[tuple[float, int, Waiting[Ticket]]] = field(default_factory=list)
    _number: int = 0
    _parking: ParkingQueue | None = None

    @property
    def parking(self) -> ParkingQueue:
        """Its orders that are parked; few merchants ever have one."""
        if self._parking is None:
            self._parking = ParkingQueue()
        return self._parking

    def agree(self, terms: Terms, provider: Provider | None) -> None:
        """This is agreed with the merchant, which is that provider's, from now on."""
        self.known, self.provider = True, provider
        self.bulkhead.ceiling = terms.limit
        self.may_be_cut_short = terms.may_be_cut_short
        if not terms.is_shared:
            self.bulkhead.allotment = None
        if terms.per_second is None:
            self.rate = None
        elif self.rate is None or self.rate.per_second != terms.per_second:
            self.rate = Rate(terms.per_second)

    @property
    def has_room(self) -> bool:
        """As far as the merchant itself is concerned, one more may start."""
        may_be_called = self.known and self.bulkhead.has_room and self.breaker.lets_through
        return may_be_called and not self.is_spent

    @property
    def is_spent(self) -> bool:
        """As many of its orders as may have started in this second."""
        return self.rate is not None and self.rate.is_spent

    @property
    def is_troubled(self) -> bool:
        """Its orders wait for the merchant itself, not for somebody else's."""
        if self.pace.silent or self.breaker.state is not State.CLOSED:
            return True
        return self.is_spent or (self.known and self.bulkhead.is_full)

    @property
    def is_silent(self) -> bool:
        """A call is out for too long or timed out, its breaker is half-open, or its provider is silent."""
        if self.pace.silent or self.breaker.state is State.HALF_OPEN:
            return True
        return self.provider is not None and self.provider.silent

    @property
    def is_stranger(self) -> bool:
        """It has never answered, and is not asked either."""
        return self.pace.mean is None and not self.usage.held and not self.is_silent

    @property
    def is_early(self) -> bool:
        """It has never answered, and is being asked."""
        return self.pace.mean is None and self.usage.held > 0 and not self.is_silent

    @property
    def is_paced(self) -> bool:
        """Its starts are spaced while it is heavy."""
        return (self.pace.mean or 0.0) >= pacing.SHORTEST and not self.is_silent

    @property
    def is_working(self) -> bool:
        """It has orders here, and takes them as far as is known."""
        may_work = self.waiting > 0 and self.known and self.bulkhead.limit > 0
        has_work = self.usage.held > 0 or may_work
        return has_work and self.breaker.state is State.CLOSED and not self.pace.silent

    def projected(self, now: float) -> float:
        """Slots that it will have held on average if one more of its orders starts now."""
        usual = UNKNOWN_DURATION if self.pace.mean is None else self.pace.mean
        return self.usage.average(now) + (self.usage.held + 1) * usual / WINDOW

    @property
    def is_idle(self) -> bool:
        return not self.bulkhead.in_flight and not self.waiting

    def standing(self, parked: int) -> MerchantStatus:
        bulkhead = self.bulkhead
        return MerchantStatus(
            self.merchant_id,
            bulkhead.in_flight,
            self.waiting,
            bulkhead.ceiling,
            max(0, bulkhead.limit),
            self.is_light,
            self.is_silent,
            self.breaker.state,
            self.is_troubled,
            parked,
        )

    def is_forgettable(self, now: float) -> bool:
        """Its next order may start as if it were the first."""
        is_fresh = self.rate is None or self.rate.is_idle(now)
        return self.is_idle and self.breaker.is_closed and is_fresh

    def is_quiet(self, now: float) -> bool:
        """Nothing has been heard of it for so long that what is remembered says little."""
        return self.is_idle and now - self.last_call > QUIET

    def put(self, ticket: Ticket, now: float, deadline: float) -> Waiting[Ticket]:
        """Let an order wait; those that must be delivered soonest go first."""
        waiting = Waiting(self, ticket, now, deadline)
        self._number += 1
        self.waiting += 1
        if len(self._queue) > 2 * self.waiting + 16:  # most of it has been taken from the middle
            self._queue = [entry for entry in self._queue if not entry[2].done]
            heapq.heapify(self._queue)
        heapq.heappush(self._queue, (deadline, self._number, waiting))
        return waiting

    def first(self) -> Waiting[Ticket] | None:
        """The order whose turn is next among those that wait."""
        while self._queue and self._queue[0][2].done:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def take(self, waiting: Waiting[Ticket]) -> Ticket:
        """It waits no more; what it was. Nothing here keeps hold of that."""
        ticket = waiting.ticket
        del waiting.ticket
        waiting.done = True
        self.waiting -= 1
        self.first()
        return ticket

    def take_all(self) -> list[Ticket]:
        """None wait any more; who they were."""
        left = [waiting for _, _, waiting in self._queue if not waiting.done]
        return [self.take(waiting) for waiting in left]


@dataclass(slots=True, eq=False)
class Call(Generic[Ticket]):
    """An order under way: it holds a slot until it is released."""

    lane: Lane[Ticket]
    ticket: Ticket
    started: float
    #: The spell of its merchant's being light in which it started; None: it was not, or it is out for
    #: unusually long.
    light: int | None = None
    #: The part of its merchant's time limit that it has; less than 1 for a breaker's probe.
    patience: float = 1.0
    #: The breaker's half-open spell that let it through; None: it is no probe.
    probe: int | None = None
    #: It counts against its merchant.
    late: bool = False
    #: Since when it is out for longer than its merchant usually takes.
    outlier_since: float = inf
    #: It was asked to end early, for somebody else's sake.
    cut_short: bool = False
    done: bool = False

    @property
    def is_light(self) -> bool:
        """Its slot counts as a light merchant's."""
        return self.light == self.lane.light_spell

    @property
    def is_outlier(self) -> bool:
        return self.outlier_since < inf
