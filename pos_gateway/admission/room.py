"""Room for orders that wait: how many of a merchant's may, and where those stand that may not."""

from dataclasses import replace
from typing import Generic

from pos_gateway.admission.breaker import PROBES_TO_CLOSE
from pos_gateway.admission.lane import Lane, Ticket
from pos_gateway.admission.limits import Limits
from pos_gateway.admission.parking import QUICKEST, Line, Outlook
from pos_gateway.admission.share import Share


class Room(Generic[Ticket]):
    """Counts the orders that wait, and says whether there is room for more.

    Args:
        limits: what to keep to.
        slow: the slow merchants' share.
    """

    def __init__(self, limits: Limits, slow: Share) -> None:
        self._limits = limits
        self._slow = slow
        self.waiting = 0
        #: Those of ``waiting`` whose merchant is in trouble.
        self.blocked = 0

    def count(self, lane: Lane[Ticket], by: int) -> None:
        """So many more of the merchant's orders wait, or fewer."""
        self.waiting += by
        self.blocked += by * lane.is_troubled
        if lane.provider is not None:
            lane.provider.waiting += by

    def recount(self, lane: Lane[Ticket], *, was_troubled: bool, provider: Share | None) -> None:
        """The merchant has come into trouble, or out of it, or has another provider than before."""
        number = lane.waiting
        self.blocked += number * (lane.is_troubled - was_troubled)
        if lane.provider is not provider:
            for share, by in ((provider, -number), (lane.provider, number)):
                if share is not None:
                    share.waiting += by

    def is_none_for(self, lane: Lane[Ticket], now: float, *, may_start: bool) -> bool:
        """Whether no more orders of this merchant may wait here.

        Those whose turn comes soon are better off here than away and back.

        Args:
            lane: the merchant's.
            now: the time.
            may_start: whether its next order would start if there were a slot.
        """
        limits = self._limits
        if self._is_crowded(lane.provider):
            return True
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
        """The line that the merchant's parked orders stand in, and how things are there.

        It is that of the share which keeps them, where more wait for that than may: by their own
        merchant's line they would be back at once, again and again.
        """
        limits, slow = self._limits, self._slow
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
        if lane.pace.slow and slow.is_full and crowded:
            return _line_of(slow, self.blocked, lane, outlook)
        if lane.provider is not None and self._is_crowded(lane.provider):
            return _line_of(lane.provider, lane.provider.waiting, lane, outlook)
        if crowded:  # no more may wait, but what can start may come
            room = 0 if lane.is_troubled else lane.bulkhead.limit - lane.bulkhead.in_flight
            outlook = replace(outlook, capacity=room)
        return lane.line, outlook

    def _is_crowded(self, provider: Share | None) -> bool:
        """Whether no more orders of the provider's may wait here for its share."""
        most = self._limits.max_blocked // 2
        return provider is not None and provider.is_full and provider.waiting >= most


def _line_of(
    share: Share, waiting: int, lane: Lane[Ticket], outlook: Outlook
) -> tuple[Line, Outlook]:
    """The line where there is no room until the share has some."""
    answers = outlook.answers and not share.silent
    turn = max(share.turn, QUICKEST)
    outlook = replace(outlook, answers=answers, turn=turn, waiting=waiting, capacity=0)
    return share.line if answers else lane.line, outlook
