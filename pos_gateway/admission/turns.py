"""Whose turn it is: round robin over the merchants that have an order waiting.

A merchant whose provider, or whose fellow slow ones, hold their share in full is not in line but
among those that wait for the share, and comes back into line when it has room.
"""

import heapq
import itertools
from typing import Generic

from pos_gateway.admission.lane import Lane, Queued, Ticket
from pos_gateway.admission.limits import Limits
from pos_gateway.admission.share import Share

#: The slow may hold one in so many of their slots while none of them answers: each of those that have
#: just stopped would come back with its next order, and take the slots that tell of the others.
SILENT = 4


class Turns(Generic[Ticket]):
    """The merchants in line, and the shares that keep others from it."""

    def __init__(self, limits: Limits) -> None:
        slow, self._provider_cap = limits.shares()
        #: What all slow merchants hold together.
        self.slow = Share(slow, max(1, slow // SILENT))
        self._providers: dict[str, Share] = {}
        #: Those in line by their places; nobody has another's.
        self._line: list[tuple[int, Lane[Ticket]]] = []
        self._places = itertools.count()
        #: Providers at their share that have merchants waiting for it.
        self._at_share: dict[int, Share] = {}

    def __len__(self) -> int:
        """How many merchants are in line; some may have no use for their turn any more."""
        return len(self._line)

    def provider(self, name: str | None) -> Share | None:
        """The share of a provider; None for a merchant that stands alone."""
        if name is None:
            return None
        if name not in self._providers:
            cap = self._provider_cap
            self._providers[name] = Share(cap, min(cap, self.slow.cap))
        return self._providers[name]

    def may_start(self, lane: Lane[Ticket]) -> bool:
        """Whether only a slot is missing."""
        return lane.has_room and self.full_share(lane) is None

    def full_share(self, lane: Lane[Ticket]) -> Share | None:
        """The share that keeps the merchant from starting; None: none does."""
        if lane.pace.slow and self.slow.is_full:
            return self.slow
        if lane.provider is not None and lane.provider.is_full:
            return lane.provider
        return None

    def may_start_above_share(self, lane: Lane[Ticket]) -> bool:
        """The same, if its provider's share does not count."""
        return lane.has_room and not (lane.pace.slow and self.slow.is_full)

    def line_up(self, lane: Lane[Ticket]) -> None:
        """Give the lane a turn if it has use for one, or a place among those a share keeps back."""
        if lane.queued is Queued.NOWHERE and lane.waiting and lane.has_room:
            full = self.full_share(lane)
            lane.place = next(self._places)
            if full is None:
                self._give_turn(lane)
            else:
                lane.queued = full
                full.blocked.append(lane)
                if full is not self.slow:
                    self._at_share[id(full)] = full
        elif isinstance(lane.queued, Share) and self.full_share(lane) is not lane.queued:
            # What it waited for is not what keeps it any more; its place there is skipped.
            lane.queued = Queued.NOWHERE
            self.line_up(lane)

    def next(self) -> Lane[Ticket] | None:
        """The lane whose turn it is, which may have no use for it by now. ``done_with`` it after."""
        if not self._line:
            return None
        _, lane = heapq.heappop(self._line)
        lane.queued = Queued.NOWHERE
        return lane

    def done_with(self, lane: Lane[Ticket]) -> None:
        """Its turn is over: it lines up again, behind who waits for the share that woke it.

        If it had no use for its turn any more, that is the next one's now.
        """
        woken_by, lane.woken_by = lane.woken_by, None
        if woken_by is not None:
            woken_by.promised -= 1
            self.wake(woken_by, lane.place)
        self.line_up(lane)

    def wake(self, share: Share, place: int | None = None) -> None:
        """A share may have room: those that have waited for it longest have a turn each.

        Args:
            share: which.
            place: of who had no use for that room; the end of the line if nobody had it. Who has
                waited for less long than that place goes by its own, lest it pass others by twice.
        """
        while share.blocked and share.has_room_to_promise:
            lane = share.blocked.popleft()
            if lane.queued is share:
                lane.place = next(self._places) if place is None else max(place, lane.place)
                lane.woken_by = share
                share.promised += 1
                self._give_turn(lane)

    def _give_turn(self, lane: Lane[Ticket]) -> None:
        lane.queued = Queued.TURNS
        heapq.heappush(self._line, (lane.place, lane))

    def at_share(self) -> list[Share]:
        """The providers that answer, are at their share, and keep merchants waiting."""
        for key in [key for key, share in self._at_share.items() if not share.blocked]:
            del self._at_share[key]
        return [share for share in self._at_share.values() if not share.silent]

    def next_of(self, provider: Share) -> Lane[Ticket] | None:
        """The lane that has waited longest for the provider's share. ``done_with`` it after."""
        while provider.blocked:
            lane = provider.blocked.popleft()
            if lane.queued is provider:
                lane.queued = Queued.NOWHERE
                return lane
        return None

    def clear(self) -> None:
        """Nobody waits any more."""
        for share in (self.slow, *self._providers.values()):
            share.blocked.clear()
            share.promised = 0
        self._line.clear()
        self._at_share.clear()
