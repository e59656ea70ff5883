"""Paces the starts of heavy merchants' calls, unless the calls are quick.

Calls of equal length that start together end together, and would start together again, forever: 180 starts at once
block the worker's only thread for a fifth of a second, and each arriving order waits. Spread once over their length,
calls stay spread, as TCP's paced packets do.
"""

#: Mean answer time in seconds from which a merchant is paced: starting a call in every slot takes the worker's CPU
#: nearly as long, and quicker calls are spread anyway.
SHORTEST = 0.25
#: Starts without a pause in between.
BURST = 4
#: Starts fill the slots in this part of a call's time: sooner than slots are released, and a slot is idle only while a
#: burst is spread.
PART = 0.8
#: Maximum seconds assumed of a call, lest free slots stay idle for longer.
LONGEST = 2.5


class Pacing:
    """A token bucket over starts, each at the cost of ``PART`` of a slot's time, divided by all slots.

    Args:
        slots: the number of slots.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        #: When the next call may start.
        self.next_at = 0.0

    def lets_start(self, now: float) -> bool:
        """Whether a further call may start."""
        return now >= self.next_at

    def started(self, usual: float, now: float) -> None:
        """A call of ``usual`` seconds on average has started."""
        pause = PART * min(usual, LONGEST) / self._slots
        self.next_at = max(self.next_at, now - (BURST - 1) * pause) + pause
