"""Spaces the starts of heavy merchants' calls, unless they are quick.

Calls that take equally long and started together end together, and would start together again, for
ever: 180 starts in one moment hold the worker's only thread for a fifth of a second, and each order
that comes meanwhile waits. Spread once over the time that they take, they stay spread, as packets do
that TCP paces.
"""

#: Merchants are paced that usually take so many seconds or more: so many starts as there are slots
#: take the worker's CPU for nearly as long, so that quicker calls are spread anyway.
SHORTEST = 0.25
#: Starts that need no pause between them.
BURST = 4
#: Starts fill the slots in this part of the time that a call takes: sooner than they are given back,
#: so that a slot is idle only while a clump is spread.
PART = 0.8
#: Seconds that a call is taken to last at most, lest slots that are free wait for longer.
LONGEST = 2.5


class Pacing:
    """A token bucket over starts, each of which costs ``PART`` of its share of all slots' time.

    Args:
        slots: how many there are.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        #: When the next start may be.
        self.next_at = 0.0

    def lets_start(self, now: float) -> bool:
        """Whether one more call may start."""
        return now >= self.next_at

    def started(self, usual: float, now: float) -> None:
        """A call has started that usually takes so many seconds."""
        pause = PART * min(usual, LONGEST) / self._slots
        self.next_at = max(self.next_at, now - (BURST - 1) * pause) + pause
