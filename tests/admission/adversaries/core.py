"""A worker's core in virtual time: it does one thing after the other, in turns of a loop."""

from collections.abc import Callable

#: Seconds of a whole core: to read a message, to start an order and to end it, to tell of one that expired, to
#: park a bundle, and each of its orders, or to unpark it (docs/performance.md, on the machine of its figures).
READ, START, END, EXPIRED, BUNDLE, PARKED = 0.0004, 0.0015, 0.0015, 0.002, 0.001, 0.00005
#: To hydrate, or to publish, events until the pipeline yields; and those pieces of a batch, of each kind.
EVENTS, PIECES = 0.002, 10
#: Messages that are read in a turn.
READS = 5
#: Seconds in which a control group may use its quota, as Kubernetes sets it.
PERIOD = 0.1


class Core:
    """What the worker does takes time: by a control group's quota, which stops it once it is used up.

    Args:
        cores: the quota, as a part of a core.
        turned: called as a turn begins, with the seconds in which the last one was busy, those that it took, and
            the time.
    """

    def __init__(self, cores: float, turned: Callable[[float, float, float], None]) -> None:
        self._quota = cores * PERIOD
        self._turned = turned
        #: When it is free again, and when this turn began.
        self.free_at = 0.0
        self._began = 0.0
        self._busy = 0.0
        #: The period, and what is left of its quota.
        self._period, self._left = 0, self._quota

    def comes_to(self, at: float) -> float:
        """When it comes to what is due at ``at``; what became due after a turn's start is for the next one."""
        now = max(at, self.free_at)
        if at > self._began:
            self._turned(self._busy, now - self._began, now)
            self._began, self._busy = now, 0.0
        return now

    def spend(self, seconds: float, now: float) -> None:
        """Use that much CPU; a stop in between is a part of the turn."""
        start = end = max(self.free_at, now)
        while seconds > 0:
            if int(end / PERIOD) != self._period:
                self._period, self._left = int(end / PERIOD), self._quota
            if not self._left:
                end = (self._period + 1) * PERIOD + 1e-9
                continue
            part = min(seconds, self._left)
            self._left, seconds, end = self._left - part, seconds - part, end + part
        self._busy += end - start
        self.free_at = end
