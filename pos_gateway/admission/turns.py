"""Whose turn it is: round robin over the merchants that have an order waiting.

A merchant whose provider, or whose fellow slow ones, hold their share in full is not in line but
among those that wait for the share, and comes back into line when it has room.
"""

from collections import deque
from typing import Generic

from pos_gateway.admission.lane import Lane, Queued, Ticket
from pos_gateway.admission.limits import Limits
from pos_gateway.admission.share import Share


class Turns(Generic[Ticket]):
    """The merchants in line, and the shares that keep others from it."""

    def __init__(self, limits: Limits) -> None:
        slow, self._provider_cap = limits.shares()
        #: What all slow merchants hold together.
        self.slow = Share(slow, slow)
        self._providers: dict[str, Share] = {}
        self._line: deque[Lane[Ticket]] = deque()
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
            if full is None:
                lane.queued = Queued.TURNS
                self._line.append(lane)
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
        while self._line:
            lane = self._line.popleft()
            if lane.queued is Queued.TURNS:
                lane.queued = Queued.NOWHERE
                return lane
        return None

    def done_with(self, lane: Lane[Ticket]) -> None:
        """Its turn is over: it lines up again, and so does who waits behind it for a share."""
        woken_by, lane.woken_by = lane.woken_by, None
        if woken_by is not None:
            self.wake(woken_by)  # it may have room for another one yet, before this one's next
        self.line_up(lane)

    def wake(self, share: Share) -> None:
        """A share may have room: whoever has waited for it longest has a turn."""
        while share.blocked and not share.is_full:
            lane = share.blocked.popleft()
            if lane.queued is share:
                lane.queued, lane.woken_by = Queued.TURNS, share
                self._line.append(lane)
                return

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
            share.waiting = 0
        self._line.clear()
        self._at_share.clear()
