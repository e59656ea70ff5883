"""When a merchant's parked orders return, and how many to unpark then.

The broker holds parked orders, many to a bundle, and delivers a bundle after a whole number of seconds. An answering
merchant's orders return before the orders waiting here are done; a silent merchant's, after half to all of the seconds
of silence.
"""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

#: Seconds of a merchant's work that may wait in the worker, and as many again in bundles; parked orders return so long
#: before their turn. The broker's delays are whole seconds, and the round trip takes a part of a second more: with
#: less, a merchant would idle until the next orders return.
AHEAD = 1.5
#: Maximum bundles that return in a second and core, on average: each is parsed and published again.
LOOKS = 20
#: Seconds between checks of a waiting bundle, at least and at most; at least the second while no
#: more orders of its merchant may wait, since there may be hundreds of bundles to check.
SOONEST_LOOK, CROWDED_LOOK, LATEST_LOOK = 0.02, 0.1, 1.0
#: Seconds within which an unparked order has arrived through the queue, at any worker. With more, orders already
#: waiting here would be counted twice, and leave no room.
ON_ITS_WAY = 0.25
#: Seconds between two orders unparked to probe a silent merchant.
PROBE_EVERY = 1.0
#: Ticks of a second: without them, a merchant with bundles due every second would be counted twice.
TICKS = 10


@dataclass(frozen=True, slots=True)
class ParkingState:
    """A merchant's orders and health at present."""

    now: float
    #: Whether the merchant answers, as far as is known; not during a pause.
    answers: bool
    #: Whether the merchant may be called, if only by a probe.
    may_be_called: bool
    #: Orders unparked as probes: one, as many as close a half-open breaker, or a bundle's worth before the merchant's
    #: record is here.
    tries: int
    #: The soonest time of the next allowed call; the time itself, if a call is allowed now.
    not_before: float
    #: The merchant's last answer; -inf: never.
    answered_at: float
    #: Seconds between two orders' turns at best, and until there are enough answers to know (0: there are enough, or
    #: no answer at all).
    interval: float
    known_in: float
    #: The merchant's orders waiting in this worker, how many may wait, and how many this worker has parked.
    waiting: int
    room: int
    parked: int
    #: Bundles parked by this worker, of all merchants, per core.
    bundles: float
    #: Whether the orders have lacked CPU for some seconds: a look at the bundles takes as long as a start.
    lacks_cpu: bool
    #: Bounds of a delay in seconds.
    shortest: float
    longest: float


@dataclass(slots=True)
class Unparked:
    """Orders on their way from the broker through the queue."""

    _orders: float = 0.0
    #: When the last orders were unparked.
    last: float = -inf

    def add(self, orders: int, now: float) -> None:
        """Orders are unparked now."""
        self._orders, self.last = self.on_their_way(now) + orders, now

    def on_their_way(self, now: float) -> float:
        """Orders that may not have arrived yet."""
        return self._orders * max(0.0, 1 - (now - self.last) / ON_ITS_WAY)


@dataclass(slots=True)
class ParkingQueue:
    """One merchant's parked orders. Times are of the caller's monotonic clock."""

    _unparked: Unparked = field(default_factory=Unparked)
    #: Time of the merchant's last known answer; at first, of the first check.
    _answered_at: float | None = None
    #: When small bundles return, to be merged into one.
    _meeting: float = 0.0

    def delay(self, state: ParkingState, *, few: bool, left: float = inf) -> float:
        """Seconds until orders parked now return, of which the first expires in ``left`` seconds.

        Expired orders return within the time for checking all bundles: thousands may expire in one moment.
        """
        due = max(0.0, left) + random.uniform(0.0, _looks(state))
        return min(max(state.shortest, self._turn(state, few=few)), due)

    def _turn(self, state: ParkingState, *, few: bool) -> float:
        """Seconds until the orders' probable turn.

        While the merchant answers, the soonest of three: shortly before the orders ahead are done at best, when the
        turn is known better, or any time within which all bundles can be checked. For a silent merchant, half to all
        of the seconds of silence; with an open breaker, when the breaker half-opens, and as long again at most. Within
        these bounds, ``few`` orders return with more, to be merged into one bundle.
        """
        soonest, latest = 0.0, max(state.shortest, _looks(state))
        silent_for = self._silent_for(state)
        if (closed := state.not_before - state.now) > 0:
            soonest = closed
            latest = closed + _within(closed, state.shortest, state.longest / 2)
        elif not state.answers:
            # The merchant answered a moment ago, and is about to again: one call takes long.
            least = latest if silent_for >= PROBE_EVERY else state.shortest
            latest = _within(silent_for, least, state.longest)
            soonest = latest / 2
        else:
            ahead = state.parked + state.waiting + self._unparked.on_their_way(state.now)
            seconds = ahead * state.interval - AHEAD
            if state.known_in:
                seconds = min(seconds, state.known_in)
            if state.lacks_cpu:
                latest = state.longest
            if seconds <= latest:
                return seconds
        if not few:
            return random.uniform(soonest, latest)
        if not soonest <= self._meeting - state.now <= latest:
            # Spread over merchants, since their orders may have been parked in the same moment.
            self._meeting = state.now + random.uniform((soonest + latest) / 2, latest)
        return self._meeting - state.now

    def unpark(self, orders: int, state: ParkingState, *, may_probe: bool = True) -> int:
        """How many of the returned orders to unpark now, counted as on their way.

        None while there is room neither for all nor for half of ``room``, lest bundles be split up; of a silent
        merchant ``tries``, if no order of the merchant waits here and the orders may probe.
        """
        self._silent_for(state)
        if not state.may_be_called:
            return 0
        coming, number = self._unparked.on_their_way(state.now), 0
        if state.answers:
            number = int(state.room - state.waiting - coming)
            number *= number >= min(orders, state.room / 2)
        elif may_probe and not state.waiting and state.now - self._unparked.last >= PROBE_EVERY:
            number = state.tries
        number = min(orders, number)
        if number:
            self._unparked.add(number, state.now)
        return number

    def _silent_for(self, state: ParkingState) -> float:
        """Seconds of the merchant's known silence."""
        if state.answers or self._answered_at is None:
            self._answered_at = state.now
        return state.now - max(self._answered_at, state.answered_at)


def look_again(orders_at_hand: int, state: ParkingState) -> float | None:
    """Seconds until a bundle waiting in the worker is checked again.

    None: no further bundle should wait, since the merchant doesn't answer, or the waiting bundles last until the next
    bundle returns. An answering merchant may have a bundle here, however long the bundle lasts.
    """
    if not state.answers or orders_at_hand * state.interval >= AHEAD:
        return None
    half_empty = (state.waiting - state.room / 2) * state.interval
    soonest = SOONEST_LOOK if state.room > state.waiting else CROWDED_LOOK
    return _within(half_empty, soonest, LATEST_LOOK)


def _looks(state: ParkingState) -> float:
    """Seconds for checking all bundles."""
    return min(state.bundles / LOOKS, state.longest)


def _within(value: float, least: float, most: float) -> float:
    return max(least, min(value, most))


class ParkedCount:
    """Orders and bundles parked by this worker, and not due yet.

    Memory is bounded by the longest delay: one entry per merchant and tick.
    """

    def __init__(self) -> None:
        self.total = 0
        #: Messages with the orders.
        self.bundles = 0
        self._of: dict[str, int] = {}
        self._due: dict[int, dict[str, int]] = {}
        self._bundles_due: dict[int, int] = {}
        #: The ticks of ``_due``, the next first.
        self._ticks: list[int] = []

    def add(self, merchant_id: str, orders: int, due: float) -> None:
        """A bundle of ``orders`` is parked until ``due``."""
        self.total += orders
        self.bundles += 1
        self._of[merchant_id] = self._of.get(merchant_id, 0) + orders
        at = int(due * TICKS)
        tick = self._due.get(at)
        if tick is None:
            tick = self._due[at] = {}
            heappush(self._ticks, at)
        tick[merchant_id] = tick.get(merchant_id, 0) + orders
        self._bundles_due[at] = self._bundles_due.get(at, 0) + 1

    def of(self, merchant_id: str) -> int:
        """The merchant's parked orders."""
        return self._of.get(merchant_id, 0)

    def pass_time(self, now: float) -> None:
        """Drop the entries due before this tick."""
        while self._ticks and self._ticks[0] < int(now * TICKS):
            at = heappop(self._ticks)
            self.bundles -= self._bundles_due.pop(at)
            for merchant_id, orders in self._due.pop(at).items():
                self.total -= orders
                self._of[merchant_id] -= orders
                if not self._of[merchant_id]:
                    del self._of[merchant_id]
