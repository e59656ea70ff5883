"""Room for orders that wait: how many of a merchant's may, and where those stand that may not."""

from dataclasses import replace
from typing import Generic

from pos_gateway.admission.breaker import PROBES_TO_CLOSE
from pos_gateway.admission.lane import Lane, Ticket
from pos_gateway.admission.limits import Limits
from pos_gateway.admission.parking import QUICKEST, Line, Outlook


class Room(Generic[Ticket]):
    """Counts the orders that wait, and says whether there is room for more.

    Args:
        limits: what to keep to.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.waiting = 0
        #: Those of ``waiting`` whose merchant is in trouble.
        self.blocked = 0

    def update(self, lane: Lane[Ticket]) -> None:
        """Have the counts say what the lane does."""
        blocked = lane.waiting if lane.waiting and lane.is_troubled else 0
        self.waiting += lane.waiting - lane.counted_waiting
        self.blocked += blocked - lane.counted_blocked
        lane.counted_waiting, lane.counted_blocked = lane.waiting, blocked

    def is_none_for(self, lane: Lane[Ticket], now: float, *, may_start: bool) -> bool:
        """Whether no more orders of this merchant may wait here.

        Those whose turn comes soon are better off here than away and back.

        Args:
            lane: the merchant's.
            now: the time.
            may_start: whether its next order would start if there were a slot.
        """
        limits = self._limits
        if may_start and not lane.is_light:  # as much room as it leaves: it waits for slots only
            return lane.waiting >= max(1, (limits.max_blocked - self.waiting) // 2)
        if not lane.is_troubled or may_start:
            return False
        if self.blocked >= limits.max_blocked:
            return True
        if lane.breaker.is_open and lane.breaker.until - now > limits.max_wait:
            return True
        if lane.waiting < limits.max_waiting:
            return False
        return lane.waiting * lane.turn > limits.max_wait / 2

    def line(self, lane: Lane[Ticket], now: float) -> tuple[Line, Outlook]:
        """The line that the merchant's parked orders stand in, and how things are there."""
        limits = self._limits
        is_paused = lane.known and not lane.bulkhead.ceiling
        may_be_called = not is_paused and not lane.breaker.is_open
        crowded = self.blocked >= limits.max_blocked
        outlook = Outlook(
            now=now,
            answers=may_be_called and lane.breaker.is_closed and not lane.pace.silent,
            may_be_called=may_be_called,
            tries=1 if lane.breaker.is_closed else PROBES_TO_CLOSE,
            not_before=lane.breaker.until if lane.breaker.is_open else now,
            turn=max(lane.turn, QUICKEST),
            waiting=lane.waiting,
            capacity=max(limits.max_waiting, int(limits.max_wait / 2 / max(lane.turn, QUICKEST))),
            shortest=limits.shortest_park,
            longest=limits.longest_park,
        )
        if crowded:  # no more may wait, but what can start may come
            room = 0 if lane.is_troubled else lane.bulkhead.limit - lane.bulkhead.in_flight
            outlook = replace(outlook, capacity=room)
        return lane.line, outlook
