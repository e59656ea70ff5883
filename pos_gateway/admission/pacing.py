"""Paces the starts of heavy merchants' calls, unless they are quick.

Calls of equal length that start together end together, and would start together again, forever: 180
starts at once block the worker's only thread for a fifth of a second, and each order that arrives
meanwhile waits. Spread once over their length, they stay spread, as TCP's paced packets do.
"""

#: Mean answer time in seconds from which a merchant is paced: starting a call in every slot takes
#: the worker's CPU nearly as long, so that quicker calls are spread anyway.
SHORTEST = 0.25
#: Starts that need no pause between them.
BURST = 4
#: Starts fill the slots in this part of a call's time: sooner than they are released, so that a
#: slot is idle only while a burst is spread.
PART = 0.8
#: Seconds that a call is assumed to take at most, lest free slots stay idle for longer.
LONGEST = 2.5


class Pacing:
    """A token bucket over starts, each of which costs ``PART`` of its share of all slots' time.

    Args:
        slots: the number of slots.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        #: When the next call may start.
        self.next_at = 0.0

    def lets_start(self, now: float) -> bool:
        """Whether one more call may start."""
        return now >= self.next_at

    def started(self, usual: float, now: float) -> None:
        """A call has started that takes ``usual`` seconds on average."""
        pause = PART * min(usual, LONGEST) / self._slots
        self.next_at = max(self.next_at, now - (BURST - 1) * pause) + pause
