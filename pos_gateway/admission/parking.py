"""When a merchant's parked orders return, and how many of them to unpark then.

The broker holds them, many to a bundle, and delivers a bundle after a whole number of seconds. A
merchant that answers gets its orders again before those that wait here are done; a silent one,
after half to all of the time that it has been silent.
"""

import random
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

#: Seconds of a merchant's work that may wait in the worker, and as many again in bundles; parked
#: orders return so long before their turn. The broker's delays are whole seconds, and the round
#: trip takes a part of another: with less, a merchant would idle until the next ones return.
AHEAD = 1.5
#: Bundles that return in a second and core at most, on average: each is parsed and published again.
LOOKS = 20
#: Seconds between checks of a waiting bundle, at least and at most; at least the second while no
#: more orders of its merchant may wait, since there may be hundreds of bundles to check.
SOONEST_LOOK, CROWDED_LOOK, LATEST_LOOK = 0.02, 0.1, 1.0
#: Seconds within which an unparked order has arrived by the queue, at this worker or another.
#: Longer, and those that wait here already would be counted twice, and leave no room.
ON_ITS_WAY = 0.25
#: Seconds between two orders that are unparked to probe a silent merchant.
PROBE_EVERY = 1.0
#: Ticks of a second: a merchant whose bundles are due every second would be counted twice, else.
TICKS = 10


@dataclass(frozen=True, slots=True)
class ParkingState:
    """A merchant's orders, and its health, at present."""

    #: The time.
    now: float
    #: Whether it answers, as far as is known; not while it is paused.
    answers: bool
    #: Whether it may be called, if only by a probe.
    may_be_called: bool
    #: How many orders are unparked as probes: one, as many as close a half-open breaker, or a
    #: bundle's worth while the merchant's record is not here yet.
    tries: int
    #: When it may be called again at the soonest; the time, if it may be now.
    not_before: float
    #: When it answered last; -inf if it never did.
    answered_at: float
    #: Seconds between two of its orders' turns at best, and until there are enough answers to know
    #: that (0: there are, or there is none).
    interval: float
    known_in: float
    #: Its orders that wait in this worker, how many may wait, and how many this worker has parked.
    waiting: int
    room: int
    parked: int
    #: Bundles that this worker has parked, of all merchants, for each core that it has.
    bundles: float
    #: Whether its orders have lacked CPU for some seconds: a look at its bundles takes what a start needs.
    lacks_cpu: bool
    #: Bounds of a delay in seconds.
    shortest: float
    longest: float


@dataclass(slots=True)
class ParkingQueue:
    """One merchant's parked orders. Times are of the caller's monotonic clock."""

    #: Unparked orders that may still be on their way, and when the last of them were unparked.
    _coming: float = 0.0
    _unparked_at: float = -inf
    #: When the merchant was last seen to answer; at first, when it was first checked.
    _answered_at: float | None = None
    #: When small bundles return, to be merged into one.
    _meeting: float = 0.0

    def delay(self, state: ParkingState, *, few: bool, left: float = inf) -> float:
        """Seconds until orders parked now return, of which the first expires in ``left`` seconds.

        Orders that have expired return within the time in which all bundles can be checked: thousands may
        expire in one moment.
        """
        due = max(0.0, left) + random.uniform(0.0, _looks(state))
        return min(max(state.shortest, self._turn(state, few=few)), due)

    def _turn(self, state: ParkingState, *, few: bool) -> float:
        """Seconds until it may be their turn.

        While the merchant answers, that is shortly before the orders ahead are done at best, or
        when that is known better, or any time within which all bundles can be checked, whichever is
        soonest. For a silent merchant it is half to all of the time that it has been silent; with
        an open breaker, when that half-opens, and as long again at most. Within that range, ``few``
        return with others, to be merged into one bundle.
        """
        soonest, latest = 0.0, max(state.shortest, _looks(state))
        silent_for = self._silent_for(state)
        if (closed := state.not_before - state.now) > 0:
            soonest = closed
            latest = closed + _within(closed, state.shortest, state.longest / 2)
        elif not state.answers:
            # It answered a moment ago, and is about to again: one call takes long.
            least = latest if silent_for >= PROBE_EVERY else state.shortest
            latest = _within(silent_for, least, state.longest)
            soonest = latest / 2
        else:
            ahead = state.parked + state.waiting + self._on_their_way(state.now)
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
            # Spread over merchants, whose orders may have been parked in the same moment.
            self._meeting = state.now + random.uniform((soonest + latest) / 2, latest)
        return self._meeting - state.now

    def unpark(self, orders: int, state: ParkingState, *, may_probe: bool = True) -> int:
        """How many of the returned orders to unpark now; they are counted as on their way.

        None while there is room neither for all of them nor for half of ``room``, lest bundles be
        split up; of a silent merchant ``tries``, if none of its orders waits here and they may probe.
        """
        self._silent_for(state)
        if not state.may_be_called:
            return 0
        coming, number = self._on_their_way(state.now), 0
        if state.answers:
            number = int(state.room - state.waiting - coming)
            number *= number >= min(orders, state.room / 2)
        elif may_probe and not state.waiting and state.now - self._unparked_at >= PROBE_EVERY:
            number = state.tries
        number = min(orders, number)
        if number:
            self._coming, self._unparked_at = coming + number, state.now
        return number

    def _silent_for(self, state: ParkingState) -> float:
        """Seconds for which the merchant is known to be silent."""
        if state.answers or self._answered_at is None:
            self._answered_at = state.now
        return state.now - max(self._answered_at, state.answered_at)

    def _on_their_way(self, now: float) -> float:
        return self._coming * max(0.0, 1 - (now - self._unparked_at) / ON_ITS_WAY)


def look_again(orders_at_hand: int, state: ParkingState) -> float | None:
    """Seconds until a bundle that waits in the worker is checked again.

    None: no bundle should wait besides those, since the merchant doesn't answer, or they last until
    the next bundle returns. A merchant that answers may have one here, however long that lasts.
    """
    if not state.answers or orders_at_hand * state.interval >= AHEAD:
        return None
    half_empty = (state.waiting - state.room / 2) * state.interval
    soonest = SOONEST_LOOK if state.room > state.waiting else CROWDED_LOOK
    return _within(half_empty, soonest, LATEST_LOOK)


def _looks(state: ParkingState) -> float:
    """Seconds within which all bundles can be checked."""
    return min(state.bundles / LOOKS, state.longest)


def _within(value: float, least: float, most: float) -> float:
    return max(least, min(value, most))


class ParkedCount:
    """Orders and bundles that this worker has parked and that are not due yet.

    Its memory is bounded by the longest delay: one entry per merchant and tick.
    """

    def __init__(self) -> None:
        self.total = 0
        #: Messages that carry them.
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
        """Drop what was due before this tick."""
        while self._ticks and self._ticks[0] < int(now * TICKS):
            at = heappop(self._ticks)
            self.bundles -= self._bundles_due.pop(at)
            for merchant_id, orders in self._due.pop(at).items():
                self.total -= orders
                self._of[merchant_id] -= orders
                if not self._of[merchant_id]:
                    del self._of[merchant_id]
