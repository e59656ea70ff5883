"""CPU is scarce, too: merchants that do not keep up with their orders yield to merchants that do.

The loop works in the order of arrival. Without a rule, the orders of a hundred slow merchants take the time in which
healthy merchants' orders would be read from the queue, and a control group's quota then stops all orders. So while the
loop has no time left, and merchants that keep up have orders, slow merchants start one order in a turn of the loop,
within the part of the CPU that leaves time for reading. Merchants that keep up start a few in a turn, lest a backlog
of many quick orders stay in the queue, where no rule sees the backlog.

Whether merchants that keep up have orders is unknown while messages lie unread. Slow merchants therefore also yield to
the reader while the reader is behind. Merchants with few of the orders read since then keep up (``arrivals.py``). A
standing queue is detected as by CoDel (RFC 8289): the reader has not caught up for an interval.
"""

from dataclasses import dataclass
from math import inf

#: Part of the CPU's time that the loop may take, of a whole core and of less. Beyond this part, orders that come at
#: random wait for each other, and a quota stops the process for the rest of most periods. With these parts slow
#: merchants get 0.6 of the time that healthy orders leave, and add 20 ms to healthy orders' p99 on a whole core, 50 on
#: half a core (docs/why-admission.md).
PART, PART_OF_LESS = 0.77, 0.85
#: Seconds of the loop's time that can be saved up, and that can be owed: a long stop costs later orders nothing.
SAVED = OWED = 0.01
#: Minimum starts a second and core of slow merchants, lest healthy orders or events take all time; orders without a
#: slot have as many.
LEAST = 50.0
#: Expired parked orders that return at once, if as many orders without a slot were recorded before.
EXPIRED = 256
#: Starts in a turn of merchants that keep up, once no time is left: fewer than the orders read in a turn.
AT_ONCE = 3
#: Seconds for which CPU is scarce after the loop had no time left, and for which slow merchants yield to the reader
#: after the reader was behind: until then the merchants of orders just read are known to keep up.
SCARCE_FOR = 2.0
#: Seconds after a start of a merchant that keeps up in which the merchant's next order is expected.
EXPECTED = 30.0
#: Seconds without catching up after which the reader is behind: longer than reading one burst takes.
INTERVAL = 0.25
#: Seconds over which the loop's busy time is averaged for reports, and the part of the loop's limit from which no CPU
#: is left: one long turn is no reason to add workers.
AVERAGED, NONE_LEFT = 10.0, 0.9
#: Seconds after which the loop has turned.
TURN = 1e-6


@dataclass(slots=True)
class Turns:
    """Orders that yield: one starts in a turn of the loop."""

    has_turn: bool = True
    #: Time of the next guaranteed start.
    least_at: float = 0.0


class Cpu:
    """A token bucket of the loop's time, and starts that may take from the bucket.

    Time passes in turns of the loop, each reported with its length and its busy part.

    Args:
        cores: the CPU that this process may use, a core at most.
    """

    def __init__(self, cores: float) -> None:
        self._rate = cores * (PART if cores >= 1 else PART_OF_LESS)
        self._pause = 1 / (LEAST * cores)
        self._now = 0.0
        self._left = SAVED
        #: The part of the time for which the loop was busy.
        self._busy = 0.0
        #: When no time was left, and when a merchant that keeps up started an order.
        self._ran_out = self._kept_up = -inf
        #: Starts in this turn of merchants that keep up, and the turns of slow merchants and of orders without a slot.
        self._starts = 0
        self._others, self._without_slot = Turns(), Turns()
        #: Whether the reader used up its part of this turn, when last it did not, and when last the reader was behind,
        #: and was not.
        self._reads_on = False
        self._caught_up = 0.0
        self._was_behind = -inf
        self._was_ahead = 0.0
        #: Orders without a slot that were recorded, less returned orders, and when more may return without a record.
        self._recorded = 0
        self._expired_at = 0.0

    def turned(self, busy: float, passed: float) -> None:
        """A turn of the loop begins; the last turn took ``passed`` seconds, ``busy`` of them busy."""
        self._now += passed
        if not self._reads_on:
            self._caught_up = self._now
        elif self._now - self._caught_up >= INTERVAL:
            self._was_behind = self._now
        if not self.is_behind:
            self._was_ahead = self._now
        self._reads_on = False
        if passed > 0:
            self._busy += min(1.0, passed / AVERAGED) * (busy / passed - self._busy)
        self._left = max(-OWED, min(SAVED, self._left + passed * self._rate - busy))
        self._starts = 0
        self._others.has_turn = self._without_slot.has_turn = True
        if self._left < 0:
            self._ran_out = self._now

    def reads_on(self) -> None:
        """The reader has read as much as a turn allows. A waiting reader never calls."""
        self._reads_on = True

    @property
    def is_behind(self) -> bool:
        """Whether messages lay unread for a while, and slow merchants yield to the reader."""
        return self._now - self._was_behind < SCARCE_FOR

    @property
    def unread_for(self) -> float:
        """Seconds for which the reader has been behind; 0: the reader is not behind."""
        return self._now - self._was_ahead

    @property
    def is_contended(self) -> bool:
        """Whether some merchants yield: to merchants that keep up, or to the reader."""
        return self.is_scarce or self.is_behind

    @property
    def is_scarce(self) -> bool:
        """Whether merchants that do not keep up yield to merchants that do."""
        return self._now - self._ran_out < SCARCE_FOR and self._now - self._kept_up < EXPECTED

    @property
    def is_used_up(self) -> bool:
        """Whether there has been no CPU left for some seconds, with or without merchants keeping up."""
        ran_out = self._now - self._ran_out < SCARCE_FOR
        return ran_out and self._busy >= NONE_LEFT * self._rate

    @property
    def wait(self) -> float:
        """Seconds until a merchant that does not keep up may start an order; 0: now."""
        return self._wait(self._others) if self.is_contended else 0.0

    @property
    def wait_without_slot(self) -> float:
        """Seconds until an order that needs no slot may start; 0: now."""
        return self._wait(self._without_slot) if self.is_scarce else 0.0

    @property
    def is_turn_over(self) -> bool:
        """Whether even a merchant that keeps up has to wait for the next turn."""
        return self._starts >= AT_ONCE and self._left < 0 and self.is_scarce

    def kept_up(self) -> None:
        """A merchant that keeps up starts an order."""
        self._kept_up = self._now
        self._starts += 1

    def started(self) -> None:
        """A merchant that does not keep up starts an order."""
        self._started(self._others)

    def started_without_slot(self) -> None:
        """An order starts that needs no slot."""
        self._recorded = min(EXPIRED, self._recorded + 1)
        self._started(self._without_slot)

    def takes_expired(self, orders: int) -> bool:
        """Whether this number of expired parked orders may return now.

        While CPU is scarce, orders return as fast as orders without a slot are recorded, or at ``LEAST``: more would
        be read only to be parked again.
        """
        return not self.is_scarce or self._recorded >= orders or self._now >= self._expired_at

    def took_expired(self, orders: int) -> None:
        """This number of parked orders that have expired comes back."""
        if self.is_scarce:
            self._recorded = max(0, self._recorded - orders)
            self._expired_at = self._now + orders * self._pause

    def pause(self) -> float:
        """Seconds for which the events' pipeline pauses between two pieces of work; bounded, lest events stop."""
        return self._lack if self.is_scarce else 0.0

    @property
    def _lack(self) -> float:
        """Seconds until a quarter is saved up, lest waking up take the time of a start; 0: some is left."""
        return (SAVED / 4 - self._left) / self._rate if self._left < 0 else 0.0

    def _wait(self, turns: Turns) -> float:
        wait = max(0.0, min(self._lack, turns.least_at - self._now))
        return max(wait, TURN) if wait or not turns.has_turn else 0.0

    def _started(self, turns: Turns) -> None:
        turns.has_turn = False
        turns.least_at = self._now + self._pause
