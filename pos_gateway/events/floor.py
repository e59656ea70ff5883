"""Where the search for events without a position begins: at the first id that one may still have.

An id is taken before its transaction commits, so one below the last that was found may still appear. None
can once all transactions have ended that wrote to the table when the last one was found.
"""

import time
from collections.abc import Callable

#: Seconds between two questions who writes to the table.
EVERY = 1.0


class Floor:
    """The highest id up to which no event without a position is left. For one connection at a time."""

    def __init__(self) -> None:
        self._connects = -1
        self._ask_at = 0.0
        self._begin(0)

    def _begin(self, connects: int) -> None:
        self._connects = connects
        self._id = self._highest = 0
        #: The next floor, and the transactions that wrote when it was found; and the one after it.
        self._next: tuple[int, set[str]] = 0, set()
        self._after_next: tuple[int, set[str]] | None = None

    def before(self, connects: int, writers: Callable[[], set[str] | None]) -> int:
        """The floor for a search that begins now.

        Args:
            connects: counts the connections: another one may lead to a database with lower ids.
            writers: the transactions that write to the table; None: not known.
        """
        if connects != self._connects:
            self._begin(connects)
        self._after_next, now = None, time.monotonic()
        if self._highest > self._id and now >= self._ask_at:
            self._ask_at = now + EVERY
            found = writers()
            if found is not None and not found & self._next[1]:
                self._after_next = self._highest, found
        return self._id

    def found(self, last: int | None, *, is_all: bool) -> None:
        """The search has found all events up to this id (None: none), or all there are."""
        if self._after_next is not None and (is_all or (last or 0) > self._next[0]):
            self._id, _ = self._next
            self._next = self._after_next
        self._highest = max(self._highest, last or 0)
