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
class Outlook:
    """How things are with the merchant at present."""

    #: The time.
    now: float
    #: Whether it answers, as far as is known; not while it is paused.
    answers: bool
    #: Whether it may be called, if only to see whether it answers again.
    may_be_called: bool
    #: How many orders it takes to see that.
    tries: int
    #: When it may be called again at the soonest; the time, if it may be now.
    not_before: float
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

    def ahead(self, outlook: Outlook) -> float:
        """Orders whose turn is still to come."""
        passed = (outlook.now - self._reckoned) / outlook.turn
        self._ahead = max(0.0, self._ahead - passed)
        self._reckoned = outlook.now
        return self._ahead

    def place(self, orders: int, outlook: Outlook, *, few: bool) -> Place:
        """Have so many orders stand in line.

        While the merchant answers they take the turns behind those already there, if those come
        within the longest delay. Else they are back when it may be called again, or, if nobody
        knows for what, after half of that delay to the whole; ``few`` then meet, so that they can
        go on in one bundle.
        """
        if outlook.answers:
            behind = max(self.ahead(outlook), outlook.waiting + self._on_their_way(outlook.now))
            seconds = behind * outlook.turn
            if seconds <= outlook.longest:
                self._ahead = behind + min(orders, _at_once(outlook))
                return Place(max(outlook.shortest, seconds - LEAD), reserved=True)
        soonest, latest = outlook.longest / 2, outlook.longest
        if (closed := outlook.not_before - outlook.now) > 0:
            latest = closed + min(max(outlook.shortest, closed), soonest)
            soonest = closed
        if not few:
            return Place(random.uniform(soonest, latest), reserved=False)
        if not soonest <= self._meeting - outlook.now <= latest:
            # Not all merchants' in the same moment, though they may have gone at the same.
            self._meeting = outlook.now + random.uniform((soonest + latest) / 2, latest)
        return Place(self._meeting - outlook.now, reserved=False)

    def let_out(self, orders: int, outlook: Outlook, *, reserved: bool) -> int:
        """How many of so many orders that are back may come now; they are counted as coming.

        One at least, if nobody else is there to find out how the merchant does.
        """
        here = outlook.waiting + self._on_their_way(outlook.now)
        number = 0.0
        if outlook.answers:
            number = min(_at_once(outlook), outlook.capacity - here)
            if not reserved and here * outlook.turn >= DRY:
                number = min(number, SPAN / outlook.turn - self.ahead(outlook))
        elif outlook.waiting == 0 and outlook.now - self._let_out_at >= PROBE_EVERY:
            number = outlook.tries
        if not outlook.may_be_called:
            return 0
        whole = max(0, min(orders, int(number)))
        if whole:
            self._coming = self._on_their_way(outlook.now) + whole
            self._let_out_at = outlook.now
            if not reserved:
                self._ahead = self.ahead(outlook) + whole
        return whole

    def _on_their_way(self, now: float) -> float:
        return self._coming * max(0.0, 1 - (now - self._let_out_at) / ON_ITS_WAY)


def _at_once(outlook: Outlook) -> int:
    """Orders that are to come back together at most."""
    return max(1, int(SPAN / outlook.turn))
