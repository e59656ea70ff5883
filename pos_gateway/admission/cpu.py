"""CPU is scarce, too: merchants that do not keep up with their orders yield to those that do.

The loop does its work in the order of its arrival. Without a rule, the orders of a hundred slow merchants
take the time in which others' orders would be read from the queue, and a control group's quota then stops
them all. So while the loop has no time left, and merchants that keep up have orders, the others start one
order in a turn of the loop, within the part of the CPU that leaves some for reading. Merchants that keep up
start a few in a turn, lest a backlog of many quick ones stays in the queue, where it is seen by no rule.
"""

from math import inf

#: Part of the CPU's time that the loop may take. Beyond it orders that come at random wait for each other, and
#: a quota stops the process for the rest of most periods.
PART = 0.8
#: Seconds of the loop's time that can be saved up, and that can be owed: a long stop is not paid for by others.
SAVED = OWED = 0.01
#: Starts a second and core that others have in any case, lest healthy orders or events take all.
LEAST = 50.0
#: Starts in a turn of merchants that keep up, once nothing is left: fewer than the orders that are read in it.
AT_ONCE = 3
#: Seconds for which CPU is scarce after the loop had no time left.
SCARCE_FOR = 2.0
#: Seconds after a start of a merchant that keeps up in which its next order is expected.
EXPECTED = 30.0
#: Seconds over which the loop's busy time is averaged for those who look, and the part of what it may take
#: from which it has no CPU left: one long turn is no reason to add workers.
AVERAGED, NONE_LEFT = 10.0, 0.9
#: Seconds after which the loop has turned.
TURN = 1e-6


class Cpu:
    """A token bucket of the loop's time, and starts that may take from it.

    Its time passes in turns of the loop, which tell how long the last one was and how much of it busy.

    Args:
        cores: the CPU that this process may use; it uses one core at most.
    """

    def __init__(self, cores: float) -> None:
        cores = min(1.0, cores)
        self._rate = PART * cores
        self._pause = 1 / (LEAST * cores)
        self._now = 0.0
        self._left = SAVED
        #: The part of its time for which the loop was busy.
        self._busy = 0.0
        #: When nothing was left, and when a merchant that keeps up started an order.
        self._ran_out = self._kept_up = -inf
        #: Starts in this turn of merchants that keep up, whether the others' is still there, and when they may
        #: start one in any case.
        self._starts, self._has_turn = 0, True
        self._least_at = 0.0

    def turned(self, busy: float, passed: float) -> None:
        """A turn of the loop begins; the last one took ``passed`` seconds, and was busy in ``busy`` of them."""
        self._now += passed
        if passed > 0:
            self._busy += min(1.0, passed / AVERAGED) * (busy / passed - self._busy)
        self._left = max(-OWED, min(SAVED, self._left + passed * self._rate - busy))
        self._starts, self._has_turn = 0, True
        if self._left < 0:
            self._ran_out = self._now

    @property
    def is_scarce(self) -> bool:
        """Whether merchants that do not keep up yield to those that do."""
        return self._now - self._ran_out < SCARCE_FOR and self._now - self._kept_up < EXPECTED

    @property
    def is_used_up(self) -> bool:
        """Whether there has been no CPU left for some seconds."""
        return self.is_scarce and self._busy >= NONE_LEFT * self._rate

    @property
    def wait(self) -> float:
        """Seconds until a merchant that does not keep up may start an order; 0: it may now."""
        if not self.is_scarce:
            return 0.0
        # Until a quarter is saved up, lest waking up takes what a start needs.
        lack = SAVED / 4 - self._left if self._left < 0 else 0.0
        wait = max(0.0, min(lack / self._rate, self._least_at - self._now))
        return max(wait, TURN) if wait or not self._has_turn else 0.0

    @property
    def is_turn_over(self) -> bool:
        """Whether a merchant that keeps up has to wait for the next turn, too."""
        return self._starts >= AT_ONCE and self._left < 0 and self.is_scarce

    def kept_up(self) -> None:
        """A merchant that keeps up starts an order."""
        self._kept_up = self._now
        self._starts += 1

    def started(self) -> None:
        """A merchant that does not keep up starts an order."""
        self._has_turn = False
        self._least_at = self._now + self._pause
