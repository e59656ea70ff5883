"""Timers: a heap of everything that admission waits for."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any, Protocol

#: Minimum entries before done entries are purged.
STALE = 1000


class Timed(Protocol):
    """The item of an entry."""

    @property
    def done(self) -> bool:
        """Whether the item has ended: the entry is void."""
        ...


class Agenda:
    """Calls an action with an item when the time has come, unless the item is done by then.

    Entries of done items are purged once they may be as many as the live entries: an entry costs the
    logarithm of the live entries.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Callable[[Any, float], None], Timed]] = []
        self._number = count()
        #: When the first entry is due; the entry may be void.
        self.due_at = inf
        self._look_at = STALE

    def add(self, at: float, action: Callable[[Any, float], None], item: Timed) -> None:
        """Call ``action(item, now)`` at the first ``run`` from then on."""
        if len(self._entries) >= self._look_at:
            self._entries = [entry for entry in self._entries if not entry[3].done]
            heapq.heapify(self._entries)
            self._look_at = max(STALE, 2 * len(self._entries))
        heapq.heappush(self._entries, (at, next(self._number), action, item))
        self.due_at = self._entries[0][0]

    def run(self, now: float) -> None:
        """Run all due actions."""
        while self._entries and self._entries[0][0] <= now:
            _, _, action, item = heapq.heappop(self._entries)
            if not item.done:
                action(item, now)
        self.due_at = self._entries[0][0] if self._entries else inf

    @property
    def next_at(self) -> float:
        """When the next action is due."""
        while self._entries and self._entries[0][3].done:
            heapq.heappop(self._entries)
        return self._entries[0][0] if self._entries else inf
