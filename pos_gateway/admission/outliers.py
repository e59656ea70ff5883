"""Outliers, calls longer than their merchants' usual: the first to be cut short if slots lack.

Long before a call takes five times the usual, dozens of outliers at once show that merchants have
stopped answering. A lone outlier cuts nothing short; the call only stops counting as light, and may
make the provider silent.
"""

import heapq
from collections import deque
from itertools import count
from math import inf
from typing import Generic

from pos_gateway.admission.lane import Call, Lane, Ticket
from pos_gateway.admission.latency import LatencyEstimate

#: Seconds from a call's turning into an outlier until the call can be cut short: after a stall of this
#: process, the answers that arrived during the stall are read first.
GRACE = 0.05
#: Above this fraction of late answers the worker itself counts as slow (two hundred replies at once
#: keep it busy for longer than a quick merchant takes), and only silent merchants' calls are cut
#: short; NEWEST is the EWMA weight.
LATE, NEWEST = 0.25, 0.1
#: EWMA weight of the newest first answer.
NEWEST_FIRST = 0.02


class Outliers(Generic[Ticket]):
    """The outliers in flight, and the choice of calls to cut short.

    Args:
        slow_after: seconds before which a merchant that has never answered is not silent.
    """

    def __init__(self, slow_after: float) -> None:
        self._slow_after = slow_after
        #: The number of outliers in flight, calls cut short among them.
        self.number = 0
        #: Calls cut short, still with slots.
        self.ending = 0
        #: Outliers of merchants that have answered before, and of strangers, the oldest first; outliers that make
        #: merchants silent are also in a heap, the oldest on top. Done calls are skipped.
        self._known: deque[Call[Ticket]] = deque()
        self._strangers: deque[Call[Ticket]] = deque()
        self._silent: list[tuple[float, int, Call[Ticket]]] = []
        self._count = count()
        #: When any merchant last answered in the merchant's usual time.
        self._answered_at = 0.0
        #: EWMA of the fraction of slower answers.
        self._late = 0.0
        #: Latency estimate of all merchants' first answers.
        self._first = LatencyEstimate()

    def unusual_after(self, lane: Lane[Ticket]) -> float:
        """Seconds after which a call is an outlier, or makes the merchant silent.

        A stranger, without an answer, is judged by the first answers of all merchants: a first call
        includes connecting.
        """
        latency = lane.latency
        silent_after = latency.silent_after(self._slow_after)
        if latency.mean is None:
            return self._first.exceeded_after(silent_after)
        return min(silent_after, latency.exceeded_after(silent_after))

    def silent_after(self, lane: Lane[Ticket]) -> float:
        """Seconds after which a call makes the merchant silent; a stranger's call is an outlier by then."""
        after = lane.latency.silent_after(self._slow_after)
        return (
            after
            if lane.latency.mean is not None
            else max(after, self._first.exceeded_after(after))
        )

    def first_took(self, seconds: float) -> None:
        """A merchant has answered for the first time, after ``seconds``."""
        self._first.learn(seconds, max(NEWEST_FIRST, 1 / (self._first.answers + 1)))

    def add(self, call: Call[Ticket], now: float) -> None:
        """Add an outlier, from now on."""
        call.outlier_since = now
        self.number += 1
        calls = self._strangers if call.lane.latency.mean is None else self._known
        calls.append(call)

    def became_silent(self, call: Call[Ticket]) -> None:
        """An outlier makes the merchant silent from now on."""
        heapq.heappush(self._silent, (call.outlier_since, next(self._count), call))

    def came_back(self, call: Call[Ticket], now: float, *, answered: bool) -> None:
        """A call, outlier or not, has finished. A first answer is judged by first answers."""
        is_outlier = call.outlier_since < inf
        if answered:
            self._late += NEWEST * (is_outlier - self._late)
            if not is_outlier and call.lane.latency.mean is not None:
                self._answered_at = now
        self.number -= is_outlier
        noted = len(self._known) + len(self._strangers) + len(self._silent)
        if noted > 4 * self.number:  # half of them at least are done
            self._known = deque(each for each in self._known if not each.done)
            self._strangers = deque(each for each in self._strangers if not each.done)
            self._silent = [entry for entry in self._silent if not entry[2].done]
            heapq.heapify(self._silent)

    def released(self, call: Call[Ticket]) -> None:
        """A call's slot is free."""
        self.ending -= call.cut_short

    def cut_short(self, light: int, strangers: int, most: int, now: float) -> list[Call[Ticket]]:
        """Up to ``most`` calls, the oldest first. Each is returned once.

        A light merchant may end any outlier, a stranger the outliers of known merchants, a heavy merchant
        the outliers of silent merchants. A merchant that has answered since keeps the call. If no merchant
        has answered in the usual time since, or many answers are late, the worker may be slow: then
        only calls that made their merchants silent are ended, and the next order is tried.
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
        # The estimate for first answers may have grown since this call began.
        is_unusual = now - call.started >= self.unusual_after(lane)
        if is_unusual and lane.last_answer < call.outlier_since:
            call.cut_short = True
            chosen.append(call)


def _is_ready(call: Call[Ticket], until: float) -> bool:
    return call.done or call.outlier_since <= until
