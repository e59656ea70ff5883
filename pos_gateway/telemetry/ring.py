"""A bounded buffer between those who have something to say and the one who writes it down."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Generic, NamedTuple, TypeVar

from pos_gateway.runtime.green import native

Item = TypeVar("Item")


class Taken(NamedTuple, Generic[Item]):
    """What was taken out of a ring."""

    #: The oldest first; each with its severity.
    items: Sequence[tuple[int, Item]]
    #: How many were dropped of each severity before, since the ring was made.
    dropped: Sequence[int]


class Ring(Generic[Item]):
    """Keeps the newest and the most severe. Any thread may call anything, at any time.

    When it is full, the oldest of the least severe goes: an error is dropped when there are nothing
    but errors. The lock is held for a few steps in memory and never for longer, whoever waits for
    whom; the same thread may have it twice, since a signal or a garbage collection in the midst of
    one call may lead to another. That one leaves what it has to the first, which may be at any step.

    Args:
        capacity: items that are kept at most.
        severities: how many there are; 0 is the least severe.
    """

    def __init__(self, capacity: int, severities: int) -> None:
        self.capacity = capacity
        self._lanes = tuple(deque[tuple[int, Item]]() for _ in range(severities))
        #: What is not in its lane yet.
        self._coming: deque[tuple[int, Item]] = deque()
        self._numbers = count()
        self._dropped = [0] * severities
        self._lock = native("_thread", "RLock")()
        #: Whoever has the lock is at work.
        self._at_work = False

    def __len__(self) -> int:
        return len(self._coming) + sum(map(len, self._lanes))

    @property
    def dropped(self) -> tuple[int, ...]:
        """How many were dropped of each severity."""
        with self._lock:
            return tuple(self._dropped)

    def put(self, severity: int, item: Item) -> None:
        """Keep one. Never waits for whoever takes them out."""
        with self._lock:
            self._coming.append((severity, item))
            if self._at_work:  # this very thread
                return
        with self._working():
            self._take_in()

    def take(self, most: int) -> Taken[Item]:
        """Take out so many of the oldest, or all there are."""
        items: list[tuple[int, Item]] = []
        with self._working():
            self._take_in()
            while len(items) < most and (filled := self._filled()):
                severity = min(filled, key=lambda each: self._lanes[each][0][0])
                items.append((severity, self._lanes[severity].popleft()[1]))
            return Taken(items, tuple(self._dropped))

    def lose(self, severity: int) -> None:
        """Count one as dropped that was taken out and got lost."""
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
        least = self._filled()[0]
        self._lanes[least].popleft()
        self._dropped[least] += 1

    def _filled(self) -> list[int]:
        return [severity for severity, lane in enumerate(self._lanes) if lane]
