"""A bounded buffer between the threads that log and the writer thread."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from pos_gateway.runtime.green import native

Item = TypeVar("Item")


class Taken(NamedTuple, Generic[Item]):
    """Items taken from a ring."""

    #: Oldest first, each with its severity.
    items: Sequence[tuple[int, Item]]
    #: Items dropped so far, by severity.
    dropped: Sequence[int]


class Ring(Generic[Item]):
    """Keeps the newest and the most severe items. Any thread may call any method, at any time.

    A full ring drops the oldest of the least severe items: an error only among errors. The lock is
    held for a few steps in memory only. The lock is re-entrant, since a signal or a garbage collection
    may make a second call within a call; the inner call leaves the item to the outer, at any step.

    Args:
        capacity: maximum items.
        severities: number of severities; 0 is the least severe.
    """

    def __init__(self, capacity: int, severities: int) -> None:
        self.capacity = capacity
        self._lanes = tuple(deque[tuple[int, Item]]() for _ in range(severities))
        #: Items not yet in a lane.
        self._coming: deque[tuple[int, Item]] = deque()
        self._numbers = count()
        self._dropped = [0] * severities
        self._lock = native("_thread", "RLock")()
        #: The lock's owner is changing the lanes.
        self._at_work = False

    def __len__(self) -> int:
        return len(self._coming) + sum(map(len, self._lanes))

    @property
    def dropped(self) -> tuple[int, ...]:
        """Items dropped, by severity."""
        with self._lock:
            return tuple(self._dropped)

    def put(self, severity: int, item: Item) -> None:
        """Add an item. Never waits for ``take``."""
        with self._lock:
            self._coming.append((severity, item))
            if self._at_work:  # this thread, in an outer call
                return
            self._at_work = True
            try:
                self._take_in()
            finally:
                self._at_work = False

    def take(self, most: int) -> Taken[Item]:
        """Remove the oldest items, ``most`` at most."""
        items: list[tuple[int, Item]] = []
        with self._working():
            self._take_in()
            while len(items) < most:
                oldest = [(lane[0][0], n) for n, lane in enumerate(self._lanes) if lane]
                if not oldest:
                    break
                _, severity = min(oldest)
                items.append((severity, self._lanes[severity].popleft()[1]))
            return Taken(items, tuple(self._dropped))

    def lose(self, severity: int) -> None:
        """Count an item as dropped that was taken and then lost."""
        with self._working():
            self._dropped[severity] += 1

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            self._at_work = True
            try:
                yield
            finally:
                self._at_work = False

    def _take_in(self) -> None:
        while self._coming:
            severity, item = self._coming.popleft()
            self._lanes[severity].append((next(self._numbers), item))
            while sum(map(len, self._lanes)) > self.capacity:
                self._drop()

    def _drop(self) -> None:
        least = next(severity for severity, lane in enumerate(self._lanes) if lane)
        self._lanes[least].popleft()
        self._dropped[least] += 1
