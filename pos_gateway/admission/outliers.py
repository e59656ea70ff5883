"""Calls that are out for longer than their merchants usually take: the first to go if slots lack.

Long before a call is out for five times the usual, that dozens of them are late at once tells that
merchants have stopped answering. One outlier alone cuts nothing short; it only stops counting as
light, and may silence its provider.
"""

import heapq
from collections import deque
from itertools import count
from math import inf
from typing import Generic

from pos_gateway.admission.lane import Call, Lane, Ticket
from pos_gateway.admission.latency import LatencyEstimate

#: Seconds that a call is an outlier before it can be cut short: when this process was held up,
#: answers that came meanwhile are to be read first.
GRACE = 0.05
#: Above this fraction of late answers the worker itself is taken to be slow (two hundred replies at
#: once keep it busy for longer than a quick merchant takes), and only silent merchants' calls are
#: cut short; NEWEST is the EWMA weight.
LATE, NEWEST = 0.25, 0.1
#: Weight of the newest answer in what is usual for a first one.
NEWEST_FIRST = 0.02


class Outliers(Generic[Ticket]):
    """Those that are out, and which of them to cut short.

    Args:
        slow_after: seconds after which a merchant that has never answered is silent, at the soonest.
    """

    def __init__(self, slow_after: float) -> None:
        self._slow_after = slow_after
        #: How many there are, those included that were cut short and are still out.
        self.number = 0
        #: How many calls were cut short and still hold their slots.
        self.ending = 0
        #: Those of merchants that have answered before, and of those that never have, the oldest
        #: first; and those that make their merchants silent once more, as a heap, the oldest on top.
        #: Those that are done are skipped.
        self._known: deque[Call[Ticket]] = deque()
        self._strangers: deque[Call[Ticket]] = deque()
        self._silent: list[tuple[float, int, Call[Ticket]]] = []
        self._count = count()
        #: When a merchant, whichever, answered last in its usual time.
        self._answered_at = 0.0
        #: The part of the last answers that took longer.
        self._late = 0.0
        #: How long merchants' first answers take, whichever.
        self._first = LatencyEstimate()

    def unusual_after(self, lane: Lane[Ticket]) -> float:
        """When a call is out for longer than is usual for its merchant, or silent.

        A stranger is judged by first answers of all merchants, since it has none of its own. Such a
        call has a connection to make.
        """
        usual = self._first if lane.pace.mean is None else lane.pace
        silent_after = self.silent_after(lane)
        return min(silent_after, usual.exceeded_after(silent_after))

    def silent_after(self, lane: Lane[Ticket]) -> float:
        """When a call is out for so long that its merchant is silent.

        For a stranger no sooner than first answers are unusual.
        """
        after = lane.pace.silent_after(self._slow_after)
        return (
            after if lane.pace.mean is not None else max(after, self._first.exceeded_after(after))
        )

    def first_took(self, seconds: float) -> None:
        """A merchant, whichever, has answered for the first time, after so long."""
        self._first.learn(seconds, max(NEWEST_FIRST, 1 / (self._first.answers + 1)))

    def add(self, call: Call[Ticket], now: float) -> None:
        """It is out for longer than is usual from now."""
        call.outlier_since = now
        self.number += 1
        calls = self._strangers if call.lane.pace.mean is None else self._known
        calls.append(call)

    def became_silent(self, call: Call[Ticket]) -> None:
        """An outlier makes its merchant silent from now."""
        heapq.heappush(self._silent, (call.outlier_since, next(self._count), call))

    def came_back(self, call: Call[Ticket]) -> None:
        """The call, outlier or not, is not out any more."""
        self.number -= call.is_outlier
        noted = len(self._known) + len(self._strangers) + len(self._silent)
        if noted > 4 * self.number:  # half of them at least are done
            self._known = deque(each for each in self._known if not each.done)
            self._strangers = deque(each for each in self._strangers if not each.done)
            self._silent = [entry for entry in self._silent if not entry[2].done]
            heapq.heapify(self._silent)

    def released(self, call: Call[Ticket]) -> None:
        """Its slot is free."""
        self.ending -= call.cut_short

    def answered(self, call: Call[Ticket], now: float) -> None:
        """Its merchant has answered. A first answer is late if it is for a first one."""
        self._late += NEWEST * (call.is_outlier - self._late)
        if not call.is_outlier and call.lane.pace.mean is not None:
            self._answered_at = now

    def cut_short(self, light: int, strangers: int, most: int, now: float) -> list[Call[Ticket]]:
        """Up to ``most`` calls, the oldest first. Each is named once.

        A light merchant may end any outlier, a stranger those of known merchants, a heavy one those
        of silent merchants. Never a merchant's that has answered since. Where no merchant at all has
        answered in its usual time since, or many answers are late, the worker itself may be slow:
        then only calls that made their merchants silent are ended, so that the next one is tried.
        """
        chosen: list[Call[Ticket]] = []
        settled = now - GRACE
        others_answer = min(settled, self._answered_at) if self._late < LATE else -inf
        for calls, wanted in ((self._known, light + strangers), (self._strangers, light)):
            limit = min(most, wanted)
            while calls and len(chosen) < limit and _is_ready(calls[0], others_answer):
                self._choose(calls.popleft(), chosen, now)
        while self._silent and len(chosen) < most and _is_ready(self._silent[0][2], settled):
            self._choose(heapq.heappop(self._silent)[2], chosen, now)
        self.ending += len(chosen)
        return chosen

    def _choose(self, call: Call[Ticket], chosen: list[Call[Ticket]], now: float) -> None:
        lane = call.lane
        if call.done or call.cut_short or not lane.may_be_cut_short:
            return
        # What is usual for a first answer may be longer by now than it was when this one began.
        is_unusual = now - call.started >= self.unusual_after(lane)
        if is_unusual and lane.last_answer < call.outlier_since:
            call.cut_short = True
            chosen.append(call)


def _is_ready(call: Call[Ticket], until: float) -> bool:
    return call.done or call.outlier_since <= until
