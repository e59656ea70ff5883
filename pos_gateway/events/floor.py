"""The first id of the search for events without a position.

An id is taken before its transaction commits, and lower ids than the last found may still appear;
but no longer once all transactions have ended that wrote to the table when the last was found.
"""

import time
from collections.abc import Callable

#: Seconds between two looks at the table's writers.
EVERY = 1.0


class Floor:
    """An id up to which every event has a position. For a single connection."""

    def __init__(self) -> None:
        self._connects = -1
        self._ask_at = 0.0
        self._begin(0)

    def _begin(self, connects: int) -> None:
        self._connects = connects
        self._id = self._highest = 0
        #: The next two floors, each with the transactions that wrote when it was found.
        self._next: tuple[int, set[str]] = 0, set()
        self._after_next: tuple[int, set[str]] | None = None

    def before(self, connects: int, writers: Callable[[], set[str] | None]) -> int:
        """The floor for a search that begins now.

        Args:
            connects: number of the connection: a new connection may find lower ids.
            writers: the transactions writing to the table; None: unknown.
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
        """Report the last id of a search (None: nothing found), and whether all were found."""
        if self._after_next is not None and (is_all or (last or 0) > self._next[0]):
            self._id, _ = self._next
            self._next = self._after_next
        self._highest = max(self._highest, last or 0)
