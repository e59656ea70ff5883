"""Finds the rows of a table edited since the last look; see ``stamps.py``."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from pos_gateway.merchants.store import YIELD_EVERY
from pos_gateway.runtime.clock import Clock
from pos_gateway.runtime.green import cooperatively

#: Seconds by which an edit may become visible after later ones: an earlier release's, which takes
#: no lock.
LATE = 60.0


class Stamped(Protocol):
    """A table whose rows have stamps."""

    def last_edit(self) -> float:
        """The highest stamp there is; 0 without a row."""
        ...

    def edited_since(self, stamp: float) -> list[tuple[str, float]]:
        """The ids of the rows with a higher stamp, each with its stamp."""
        ...


class Edits:
    """Reports each edit at least once. For one caller at a time.

    Args:
        table: the table.
        on_edit: called with each edited row's id and stamp.
        known_for: seconds before the first look whose edits are reported, too.
    """

    def __init__(
        self,
        table: Stamped,
        on_edit: Callable[[str, float], None],
        *,
        known_for: float,
        clock: Clock,
    ) -> None:
        self._table, self._on_edit = table, on_edit
        self._known_for = known_for
        self._clock = clock
        #: The highest stamps seen, each with when that was, on this worker's clock. The first is
        #: the last one seen at least ``LATE`` seconds ago.
        self._highest: deque[tuple[float, float]] = deque()

    def look(self) -> None:
        """Report the edits since the last look. Raises SQLAlchemyError."""
        now = self._clock.monotonic()
        highest = self._highest
        while len(highest) > 1 and now - highest[1][0] >= LATE:
            highest.popleft()
        if not highest:
            highest.append((now, self._begin()))
        edited = self._table.edited_since(highest[0][1])
        seen = max((stamp for _, stamp in edited), default=0.0)
        if seen > highest[-1][1]:
            highest.append((now, seen))
        for each, stamp in cooperatively(edited, YIELD_EVERY):
            self._on_edit(each, stamp)

    def _begin(self) -> float:
        # Stamps may be ahead of the time of day, or behind it since the last edit.
        present = min(self._table.last_edit(), self._clock.now().timestamp())
        return max(0.0, present - self._known_for - LATE)
