"""Merchants that lack only a slot, in the order in which they get one."""

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic

from pos_gateway.admission.lane import Lane, Ticket

#: Entries beyond twice the live ones before the void ones are purged.
STALE = 64


class MerchantQueue(Generic[Ticket]):
    """A heap of lanes, the least key first, and of equal ones the first to come.

    A lane is in one queue at most, and leaves it in constant time: its entry is skipped later.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Lane[Ticket]]] = []
        self._count = count(1)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Lane[Ticket]]:
        return (entry[2] for entry in self._entries if self._is_valid(entry))

    def add(self, lane: Lane[Ticket], key: float) -> None:
        """Add a lane that is in no queue."""
        lane.queue, lane.place = self, next(self._count)
        self._size += 1
        if len(self._entries) > 2 * self._size + STALE:
            self._entries = [entry for entry in self._entries if self._is_valid(entry)]
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (key, lane.place, lane))

    def remove(self, lane: Lane[Ticket]) -> None:
        """Remove a lane that is in this queue."""
        lane.queue = None
        self._size -= 1

    def head(self) -> tuple[float, int, Lane[Ticket]] | None:
        """The next lane as (key, place, lane), not removed."""
        while self._entries and not self._is_valid(self._entries[0]):
            heapq.heappop(self._entries)
        return self._entries[0] if self._entries else None

    def _is_valid(self, entry: tuple[float, int, Lane[Ticket]]) -> bool:
        _, place, lane = entry
        return lane.queue is self and lane.place == place
