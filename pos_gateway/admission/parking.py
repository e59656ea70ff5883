"""A merchant's line: when orders that are parked in the broker are to be back.

The line is virtual: the broker holds the orders, many to a bundle, and here is only how many turns
they take. Lengths are kept in orders, not in seconds: what a turn takes is learnt anew with every
reply, above all when a merchant is back that did not answer for an hour.
"""

import random
from dataclasses import dataclass
from math import inf

#: Seconds that a turn takes at least, whatever was measured.
QUICKEST = 0.0005
#: Seconds of turns that come back together: enough to keep a merchant busy until the next ones
#: are here, and little enough to wait in the worker.
SPAN = 2.0
#: Seconds by which parked orders are to be back before their turn: the broker's delays are whole
#: seconds, and a merchant whose line is late idles.
LEAD = 1.5
#: Seconds of turns under which a merchant is about to idle, whatever its line looks like.
DRY = 0.5
#: Seconds within which an order that was let out has come by the queue, to this worker or another.
#: Longer, and those that wait here already are counted twice: then there seems to be no room.
ON_ITS_WAY = 0.25
#: Seconds between two orders that are let out to see whether a silent merchant is back.
PROBE_EVERY = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where parked orders stand."""

    #: Seconds until they are to be back.
    delay: float
    #: Turns in the line are theirs; else they are back to see whether there are any.
    reserved: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How things are with the merchant at present."""

    #: The time.
    now: float
    #: Whether it answers, as far as is known; not while it is paused.
    answers: bool
    #: Whether it may be called, if only to see whether it answers again.
    may_be_called: bool
    #: Seconds between two of its orders' turns.
    turn: float
    #: Its orders that wait in this worker.
    waiting: int
    #: How many of its orders may wait in this worker.
    capacity: int
    #: Bounds of a delay in seconds.
    shortest: float
    longest: float


@dataclass(slots=True)
class Line:
    """The turns of one merchant's parked orders. Its time is the caller's, and never jumps."""

    #: Orders whose turn is still to come, when that was last reckoned, and when that was.
    _ahead: float = 0.0
    _reckoned: float = 0.0
    #: Orders that were let out and may be on their way, and when the last of them were.
    _coming: float = 0.0
    _let_out_at: float = -inf
    #: When those are to be back that are too few for a bundle of their own.
    _meeting: float = 0.0

    def ahead(self, standing: Standing) -> float:
        """Orders whose turn is still to come."""
        passed = (standing.now - self._reckoned) / standing.turn
        self._ahead = max(0.0, self._ahead - passed)
        self._reckoned = standing.now
        return self._ahead

    def place(self, orders: int, standing: Standing, *, few: bool) -> Place:
        """Have so many orders stand in line.

        While the merchant answers they take the turns behind those already there, if those come
        within the longest delay. Else they are back after half of it to the whole, nobody knows
        for what: ``few`` then meet, so that they can go on in one bundle.
        """
        if standing.answers:
            behind = max(self.ahead(standing), standing.waiting + self._on_their_way(standing.now))
            seconds = behind * standing.turn
            if seconds <= standing.longest:
                self._ahead = behind + min(orders, _at_once(standing))
                return Place(max(standing.shortest, seconds - LEAD), reserved=True)
        half = standing.longest / 2
        if not few:
            return Place(random.uniform(half, standing.longest), reserved=False)
        if not half <= self._meeting - standing.now <= standing.longest:
            self._meeting = standing.now + standing.longest
        return Place(self._meeting - standing.now, reserved=False)

    def let_out(self, orders: int, standing: Standing, *, reserved: bool) -> int:
        """How many of so many orders that are back may come now; they are counted as coming.

        One at least, if nobody else is there to find out how the merchant does.
        """
        here = standing.waiting + self._on_their_way(standing.now)
        number = 0.0
        if standing.answers:
            number = min(_at_once(standing), standing.capacity - here)
            if not reserved and here * standing.turn >= DRY:
                number = min(number, SPAN / standing.turn - self.ahead(standing))
        elif standing.waiting == 0 and standing.now - self._let_out_at >= PROBE_EVERY:
            number = 1
        if not standing.may_be_called:
            return 0
        whole = max(0, min(orders, int(number)))
        if whole:
            self._coming = self._on_their_way(standing.now) + whole
            self._let_out_at = standing.now
            if not reserved:
                self._ahead = self.ahead(standing) + whole
        return whole

    def _on_their_way(self, now: float) -> float:
        return self._coming * max(0.0, 1 - (now - self._let_out_at) / ON_ITS_WAY)


def _at_once(standing: Standing) -> int:
    """Orders that are to come back together at most."""
    return max(1, int(SPAN / standing.turn))
