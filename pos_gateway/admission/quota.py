"""A quota of a POS: requests of all merchants of an app, or of a credential, together.

Merchants that lack only the quota queue for a turn, the least use first: a merchant's next start is due once in the
time in which all merchants with work could start an order (a virtual clock: Zhang, 1990). A merchant ahead of this
time is *heavy*, and leaves a start to the rest. Polls have no turn: polls have the requests that delay no start.
"""

import heapq
from collections import Counter
from collections.abc import Hashable
from itertools import count
from math import inf
from typing import ClassVar, Generic, TypeVar

from pos_gateway.admission.limits import QuotaTerms
from pos_gateway.admission.rate import LEAST, Rate

#: Seconds of a turn: a merchant without a slot by then queues anew, at the end.
TURN = 0.25
#: Maximum starts ahead of a merchant's fair part: an old backlog does not count for longer.
AHEAD = 2
#: Seconds for which a process wants a fair part of a quota after orders waited.
KEPT = 10.0
#: Permits of a quota without a limit of orders in flight, and a poll's part: at HubRise, 0.75 requests a second.
PARTS, POLLED = 100, 10
#: Polls may have a quarter of the requests in flight, by this divisor: their POSes may hang.
POLLS = 4


#: A merchant's.
Lane = TypeVar("Lane", bound=Hashable)


class Quota(Generic[Lane]):
    """A quota, and this process's part: 0 until the fleet has answered.

    Times never go back.
    """

    #: For the agenda: a quota is never done.
    done: ClassVar[bool] = False

    def __init__(self, terms: QuotaTerms, part: float, now: float) -> None:
        self.terms, self._part = terms, part
        self.rate = Rate(terms, part, now)
        #: Due time of the next start, by merchant on the quota.
        self._due: dict[Lane, float] = {}
        #: Orders and requests of polls, and the latter alone.
        self.in_flight = self._polls = 0
        #: Merchants with work: orders in flight, and 1 while waiting.
        self._working: Counter[Lane] = Counter()
        #: By the POS's Retry-After.
        self.paused_until = 0.0
        #: Merchants with a turn, and the turn's end. A turn reserves a start.
        self.turns: dict[Lane, float] = {}
        #: Merchants without a turn, by the due start; entries with an old place are skipped.
        self._queue: list[tuple[float, int, Lane]] = []
        self._places: dict[Lane, int] = {}
        self._count = count()
        #: When a merchant last waited for a turn, and when a poll last sent a request, or waited.
        self._lacked_at = self._polled_at = -inf
        #: When admission looks at the quota next.
        self.look_at = inf

    @property
    def permits(self) -> int:
        """Permits of the whole fleet."""
        return PARTS if self.terms.at_once is None else self.terms.at_once

    @property
    def is_short(self) -> bool:
        """Whether the fleet may have more permits for this process."""
        return self._part < 1

    def wanted(self, now: float) -> int:
        """Permits awaited by orders, or a poll; all permits if orders used up the part a short time ago."""
        waiting = len(self._places) + len(self.turns)
        if now - self._polled_at < KEPT:
            waiting = max(waiting, POLLED if self.terms.at_once is None else 1)
        return self.permits if self._part and now - self._lacked_at < KEPT else waiting

    @property
    def members(self) -> int:
        """The number of merchants on the quota."""
        return len(self._due)

    def add(self, lane: Lane) -> None:
        """Add a merchant."""
        self._due[lane] = 0.0

    def remove(self, lane: Lane) -> None:
        """Remove a merchant. Orders in flight go on."""
        self.leave(lane)
        del self._due[lane]

    def agree(self, terms: QuotaTerms, now: float) -> None:
        """Set the limits. Orders in flight go on, and earlier starts count."""
        self.terms = terms
        self.allot(self._part, now)

    def allot(self, part: float, now: float) -> None:
        """Set this process's part. Orders in flight go on, and earlier starts count."""
        self._part = part
        self.rate.agree(self.terms, part, now)

    def takes(self, lane: Lane, now: float) -> bool:
        """Whether an order of the merchant may start now."""
        if lane in self.turns:
            return True
        head = self._head()
        is_first = head is None or self._due[lane] < head[0]
        return is_first and self._has(self._needs(lane, now), now)

    def has(self, lane: Lane) -> bool:
        """Whether the merchant has a turn, or is queued."""
        return lane in self.turns or lane in self._places

    def give(self, lane: Lane, now: float) -> None:
        """Give the merchant a turn."""
        self._unqueue(lane)
        self.turns.setdefault(lane, now + TURN)

    def queue(self, lane: Lane, now: float) -> None:
        """Queue the merchant for a turn."""
        self._lacked_at = now
        if lane not in self._places:
            self._work(lane, 1)
            self._places[lane] = next(self._count)
            heapq.heappush(self._queue, (self._due[lane], self._places[lane], lane))

    def leave(self, lane: Lane) -> bool:
        """Take the merchant out of queue and turn; returns whether there was a turn."""
        self._unqueue(lane)
        return self.turns.pop(lane, None) is not None

    def next(self, now: float) -> Lane | None:
        """A merchant to look at: the turn has ended, or else begins. None: nothing changes now."""
        lane, until = next(iter(self.turns.items()), (None, inf))
        if lane is not None and until <= now:
            del self.turns[lane]
            self._charge(lane, now)
            return lane
        head = self._head()
        if head is None or not self._has(self._needs(head[2], now), now):
            return None
        self.give(head[2], now)
        return head[2]

    def next_at(self, now: float) -> float:
        """The next time at which a turn begins or ends by itself, after ``next`` returned None."""
        ends = next(iter(self.turns.values()), inf)
        head = self._head()
        if head is None:
            return ends
        if now < self.paused_until:
            return min(ends, self.paused_until)
        lane, turns = head[2], len(self.turns)
        needs = self._needs(lane, now)
        order = self.terms.requests
        at = [self.rate.ready_at((turns + needs) * order)]
        if needs > 1:  # until the merchant is not heavy any more
            at.append(max(self._due[lane], self.rate.ready_at((turns + 1) * order)))
        # Ready orders wait for an order in flight.
        return min(ends, *(each if each > now else inf for each in at))

    def started(self, lane: Lane, now: float) -> None:
        """An order of the merchant has started."""
        self.turns.pop(lane, None)
        self.in_flight += 1
        self._work(lane, 1)
        self.rate.sent(self.terms.requests, now)
        self._charge(lane, now)

    def ended(self, lane: Lane) -> None:
        """A started order has ended."""
        self.in_flight -= 1
        self._work(lane, -1)

    def takes_poll(self, now: float) -> bool:
        """Whether a request of a poll delays no start of an order, waiting or to come next.

        Of a quota that has no request beside an order's, a poll takes one while no order waits. Until the fleet
        has answered, one request at once may be sent.
        """
        starts, order = len(self.turns) + 1, self.terms.requests
        if self._at_once == 1 or self.rate.ready_at(order + 1) == inf:
            starts = 0
            if self.turns or self._head() is not None:
                return False
        if now < self.paused_until or self.in_flight + starts >= self._at_once:
            return False
        if self._polls >= max(1, self._at_once / POLLS) or self.rate.ready_at(1) > now:
            return False
        start_at = self.rate.ready_at(starts * order)
        return self.rate.ready_at(starts * order + 1) <= max(now, start_at) < inf

    def poll_waits(self, now: float) -> bool:
        """A poll yields; returns whether this process has no part: no order may ever ask for a part."""
        self._polled_at = now
        return not self._part

    def poll_began(self, now: float) -> None:
        """A request of a poll is sent."""
        self.in_flight, self._polls, self._polled_at = self.in_flight + 1, self._polls + 1, now
        self.rate.sent(1, now)

    def poll_ended(self) -> None:
        """A request of a poll has a reply, or none."""
        self.in_flight, self._polls = self.in_flight - 1, self._polls - 1

    def pause(self, until: float) -> list[Lane]:
        """Start nothing until then; returns the merchants whose turn is lost."""
        self.paused_until = max(self.paused_until, until)
        lost, self.turns = list(self.turns), {}
        return lost

    @property
    def interval(self) -> float:
        """Seconds between two starts of a merchant with a fair part; 0 without any permits."""
        return self.rate.interval * max(1, len(self._working)) if self._part else 0.0

    def is_idle(self, now: float) -> bool:
        """Whether a new quota would start as many orders."""
        return not self.in_flight and self.paused_until <= now and self.rate.is_idle(now)

    def _has(self, starts: int, now: float) -> bool:
        """Whether ``starts`` are left beside the turns."""
        starts += len(self.turns)
        if not self._part or now < self.paused_until or self.in_flight + starts > self._at_once:
            return False
        return self.rate.ready_at(starts * self.terms.requests) <= now

    @property
    def _at_once(self) -> float:
        """Orders, and requests of polls, in flight in this process."""
        at_once = self.terms.at_once
        return inf if at_once is None else max(1, int(at_once * self._part + LEAST))

    def _needs(self, lane: Lane, now: float) -> int:
        """Starts that must be left for an order of the merchant: 2 for a heavy merchant, if there ever are 2."""
        is_heavy = self.members > 1 and self._due[lane] > now
        return 2 if is_heavy and min(self.rate.most, self._at_once) > 1 else 1

    def _charge(self, lane: Lane, now: float) -> None:
        """The merchant's next start is due a fair part later."""
        # A fair part leaves room for a further merchant.
        interval, due = self.interval + self.rate.interval, self._due.get(lane)
        if due is not None:
            self._due[lane] = min(max(due, now) + interval, now + AHEAD * interval)

    def _unqueue(self, lane: Lane) -> None:
        if self._places.pop(lane, None) is not None:
            self._work(lane, -1)

    def _work(self, lane: Lane, by: int) -> None:
        self._working[lane] += by
        if not self._working[lane]:
            del self._working[lane]

    def _head(self) -> tuple[float, int, Lane] | None:
        while self._queue and self._places.get(self._queue[0][2]) != self._queue[0][1]:
            heapq.heappop(self._queue)
        return self._queue[0] if self._queue else None
