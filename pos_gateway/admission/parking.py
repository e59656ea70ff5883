"""When a merchant's parked orders are to be back, and how many of them may come then.

The broker holds them, many to a bundle, and hands a bundle back after a whole number of seconds. A
merchant that answers is offered its orders again before what waits for it here is done; one that
does not, after half as long to as long again as it has been silent.
"""

import random
from dataclasses import dataclass
from math import inf

#: Seconds of a merchant's turns that may wait in the worker, and as many again in bundles at hand;
#: parked orders are back so long before their turn. The broker's delays are whole seconds, and the
#: way there and back takes a part of another: with less, a merchant idles until the next are back.
AHEAD = 1.5
#: Bundles that are back in a second at most, on average: each is read and published again.
LOOKS = 20
#: Seconds between two looks at a bundle at hand: quick enough for any merchant, and cheap enough. No
#: sooner than the second while no more of its orders may wait: there may be hundreds to look at.
SOONEST_LOOK, CROWDED_LOOK, LATEST_LOOK = 0.02, 0.1, 1.0
#: Seconds within which an order that was let out has come by the queue, to this worker or another.
#: Longer, and those that wait here already are counted twice: then there seems to be no room.
ON_ITS_WAY = 0.25
#: Seconds between two orders that are let out to see whether a silent merchant is back.
PROBE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class QueueState:
    """A merchant's orders, and how it does, at present."""

    #: The time.
    now: float
    #: Whether it answers, as far as is known; not while it is paused.
    answers: bool
    #: Whether it may be called, if only to see whether it answers again.
    may_be_called: bool
    #: How many orders are let out to see that: one, as many as close a half-open breaker, or a
    #: bundle's worth while the merchant's record is not here yet.
    tries: int
    #: When it may be called again at the soonest; the time, if it may be now.
    not_before: float
    #: When it answered last; -inf if it never did.
    answered_at: float
    #: Seconds between two of its orders' turns at best, and until enough have answered to know that
    #: (0: they have, or none has).
    turn: float
    known_in: float
    #: Its orders that wait in this worker, how many may, and how many this worker has parked.
    waiting: int
    room: int
    parked: int
    #: Bundles that this worker has parked, all merchants' together.
    bundles: int
    #: Bounds of a delay in seconds.
    shortest: float
    longest: float


@dataclass(slots=True)
class ParkingQueue:
    """One merchant's parked orders. Its time is the caller's, and never jumps."""

    #: Orders that were let out and may be on their way, and when the last of them were.
    _coming: float = 0.0
    _let_out_at: float = -inf
    #: When the merchant was last seen to answer; at first, when it was first looked at.
    _answered_at: float | None = None
    #: When those are to be back that are too few for a bundle of their own.
    _meeting: float = 0.0

    def delay(self, state: QueueState, *, few: bool) -> float:
        """Seconds until orders that are parked now are to be back.

        While the merchant answers, that is shortly before those ahead of them are done at best, or
        when that is known better, or any time within which all bundles can be looked at, whichever
        is soonest. Else it is half of the time for which it has been silent to the whole, or when
        its breaker half-opens, and as long again at most. Where that leaves a choice, ``few`` meet
        others, to go on in one bundle.
        """
        soonest, latest = 0.0, _within(state.bundles / LOOKS, state.shortest, state.longest)
        silent_for = self._silent_for(state)
        if (closed := state.not_before - state.now) > 0:
            soonest = closed
            latest = closed + _within(closed, state.shortest, state.longest / 2)
        elif not state.answers:
            # One that answered a moment ago is about to again: it is one call that takes long.
            least = latest if silent_for >= PROBE_EVERY else state.shortest
            latest = _within(silent_for, least, state.longest)
            soonest = latest / 2
        else:
            ahead = state.parked + state.waiting + self._on_their_way(state.now)
            seconds = ahead * state.turn - AHEAD
            if state.known_in:
                seconds = min(seconds, state.known_in)
            if seconds <= latest:
                return max(state.shortest, seconds)
        if not few:
            return max(state.shortest, random.uniform(soonest, latest))
        if not soonest <= self._meeting - state.now <= latest:
            # Not all merchants' in the same moment, though they may have gone at the same.
            self._meeting = state.now + random.uniform((soonest + latest) / 2, latest)
        return max(state.shortest, self._meeting - state.now)

    def let_out(self, orders: int, state: QueueState) -> int:
        """How many of so many orders that are back may come now; they are counted as coming.

        None while there is room neither for all nor for half of what may wait, lest bundles come
        apart; of a merchant that does not answer ``tries``, if no other order is there to find out.
        """
        self._silent_for(state)
        if not state.may_be_called:
            return 0
        coming, number = self._on_their_way(state.now), 0
        if state.answers:
            number = int(state.room - state.waiting - coming)
            number *= number >= min(orders, state.room / 2)
        elif not state.waiting and state.now - self._let_out_at >= PROBE_EVERY:
            number = state.tries
        number = min(orders, number)
        if number:
            self._coming, self._let_out_at = coming + number, state.now
        return number

    def _silent_for(self, state: QueueState) -> float:
        """Seconds for which the merchant is known not to have answered."""
        if state.answers or self._answered_at is None:
            self._answered_at = state.now
        return state.now - max(self._answered_at, state.answered_at)

    def _on_their_way(self, now: float) -> float:
        return self._coming * max(0.0, 1 - (now - self._let_out_at) / ON_ITS_WAY)


def look_again(orders_at_hand: int, state: QueueState) -> float | None:
    """Seconds after which a bundle that is kept at hand is to be looked at again.

    None: none is to be kept beside those, since the merchant doesn't answer, or they last until the
    next bundle is back. A merchant that answers may have one at hand however long that lasts.
    """
    if not state.answers or orders_at_hand * state.turn >= AHEAD:
        return None
    half_empty = (state.waiting - state.room / 2) * state.turn
    soonest = SOONEST_LOOK if state.room > state.waiting else CROWDED_LOOK
    return _within(half_empty, soonest, LATEST_LOOK)


def _within(value: float, least: float, most: float) -> float:
    return max(least, min(value, most))
