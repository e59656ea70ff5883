"""Calls that are out for longer than their merchants usually take: the first to go if slots lack.

Long before a call can be called slow, that dozens of them are late at once tells that merchants
have stopped answering. One of them alone means nothing, and nothing comes of it.
"""

import heapq
from collections import deque
from itertools import count
from math import inf
from typing import Generic

from pos_gateway.admission.lane import Call, Lane, Ticket
from pos_gateway.admission.usual import Usual

#: Seconds that a call is a suspect before it can be cut short: when this process was held up,
#: answers that came meanwhile are to be read first.
GRACE = 0.05
#: The part of the answers that may be late before this process is taken to be, or its network: two
#: hundred replies at once keep it busy for longer than a quick merchant takes. And the weight of
#: the newest in it.
LATE, NEWEST = 0.25, 0.1
#: Weight of the newest answer in what is usual for a first one.
NEWEST_FIRST = 0.02


class Suspects(Generic[Ticket]):
    """Those that are out, and which of them to cut short."""

    def __init__(self) -> None:
        #: How many there are, those included that were cut short and are still out.
        self.number = 0
        #: How many calls were cut short and still hold their slots.
        self.ending = 0
        #: The oldest first; and those that are slow once more, as a heap, the oldest on top.
        #: Either skips those that are done.
        self._calls: deque[Call[Ticket]] = deque()
        self._slow: list[tuple[float, int, Call[Ticket]]] = []
        self._count = count()
        #: When a merchant, whichever, answered last in its usual time.
        self._answered_at = 0.0
        #: The part of the last answers that took longer.
        self._late = 0.0
        #: How long merchants' first answers take, whichever, and of how many that is.
        self._usual = Usual()
        self._answers = 0

    def suspicious_after(self, lane: Lane[Ticket], slow_after: float) -> float:
        """When a call is out for longer than is usual for its merchant, or slow.

        A merchant that has never answered is taken to be like others at their first call, which has a
        connection to make. It would else hold a slot until it is slow, and of those that stop
        together many may be strangers.
        """
        usual = self._usual if lane.pace.mean is None else lane.pace
        return min(slow_after, usual.exceeded_after(slow_after))

    def first_took(self, seconds: float) -> None:
        """A merchant, whichever, has answered for the first time, after so long."""
        self._answers += 1
        self._usual.learn(seconds, max(NEWEST_FIRST, 1 / self._answers))

    def add(self, call: Call[Ticket], now: float) -> None:
        """It is out for longer than is usual from now."""
        call.suspected_at = now
        self.number += 1
        self._calls.append(call)

    def became_slow(self, call: Call[Ticket]) -> None:
        """A suspect is slow from now."""
        heapq.heappush(self._slow, (call.suspected_at, next(self._count), call))

    def came_back(self, call: Call[Ticket]) -> None:
        """The call, suspect or not, is not out any more."""
        self.number -= call.is_suspect
        if len(self._calls) + len(self._slow) > 4 * self.number:  # half of them at least are done
            self._calls = deque(each for each in self._calls if not each.done)
            self._slow = [entry for entry in self._slow if not entry[2].done]
            heapq.heapify(self._slow)

    def released(self, call: Call[Ticket]) -> None:
        """Its slot is free."""
        self.ending -= call.cut_short

    def answered(self, call: Call[Ticket], now: float) -> None:
        """Its merchant has answered. A first answer is late if it is for a first one."""
        self._late += NEWEST * (call.is_suspect - self._late)
        if not call.is_suspect and call.lane.pace.mean is not None:
            self._answered_at = now

    def cut_short(self, most: int, now: float) -> list[Call[Ticket]]:
        """Up to so many calls, the oldest suspects first; each is named once.

        Only calls of merchants that have not answered anything since. Where nobody at all has in
        its usual time, or many have not, it may be no fault of theirs: then those that are slow by
        now, so that the next one is tried.
        """
        chosen: list[Call[Ticket]] = []
        settled = now - GRACE
        others_answer = min(settled, self._answered_at) if self._late < LATE else -inf
        while self._calls and len(chosen) < most and self._is_ready(self._calls[0], others_answer):
            self._choose(self._calls.popleft(), chosen)
        while self._slow and len(chosen) < most and self._is_ready(self._slow[0][2], settled):
            self._choose(heapq.heappop(self._slow)[2], chosen)
        self.ending += len(chosen)
        return chosen

    def _is_ready(self, call: Call[Ticket], until: float) -> bool:
        return call.done or call.suspected_at <= until

    def _choose(self, call: Call[Ticket], chosen: list[Call[Ticket]]) -> None:
        is_silent = call.lane.last_answer < call.suspected_at
        is_out = not (call.done or call.cut_short)
        if is_out and is_silent and call.lane.may_be_cut_short:
            call.cut_short = True
            chosen.append(call)
