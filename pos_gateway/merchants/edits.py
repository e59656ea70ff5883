"""Finds the rows of a table edited since the last look; see ``stamps.py``."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pos_gateway.merchants.store import YIELD_EVERY
from pos_gateway.runtime.clock import Clock
from pos_gateway.runtime.green import cooperatively

#: Seconds by which an edit may become visible after later ones: an earlier release's, which takes
#: no lock.
LATE = 60.0


class Edits:
    """Reports each edit of a table, at least once. For one caller at a time.

    Args:
        last_edit: returns the table's highest stamp; 0 without a row.
        on_edit: called with each edited row's id and stamp.
        known_for: seconds before the first look whose edits are reported, too.
    """

    def __init__(
        self,
        last_edit: Callable[[], float],
        on_edit: Callable[[str, float], None],
        *,
        known_for: float,
        clock: Clock,
    ) -> None:
        self._last_edit, self._on_edit = last_edit, on_edit
        self._known_for = known_for
        self._clock = clock
        #: The highest stamps seen, each with when that was, on this worker's clock. The first is
        #: the last one seen at least ``LATE`` seconds ago.
        self._highest: deque[tuple[float, float]] = deque()
        #: The rows last read, with their stamps: each is read every second for a minute, and an import
        #: has thousands.
        self._reported: Mapping[str, float] = {}

    def since(self) -> float:
        """The stamp after which edits are to be read now. Raises what ``last_edit`` does."""
        now = self._clock.monotonic()
        highest = self._highest
        while len(highest) > 1 and now - highest[1][0] >= LATE:
            highest.popleft()
        if not highest:
            highest.append((now, self._begin()))
        return highest[0][1]

    def report(self, edited: Sequence[tuple[str, float]]) -> None:
        """Report what is new in what was read: all rows with a higher stamp than ``since``, with it."""
        seen = max((stamp for _, stamp in edited), default=0.0)
        if seen > self._highest[-1][1]:
            self._highest.append((self._clock.monotonic(), seen))
        newest: dict[str, float] = {}  # a merchant that was removed and added again has two
        for each, stamp in cooperatively(edited, YIELD_EVERY):
            newest[each] = max(stamp, newest.get(each, stamp))
        for each, stamp in cooperatively(newest.items(), YIELD_EVERY):
            if self._reported.get(each) != stamp:
                self._on_edit(each, stamp)
        self._reported = newest

    def _begin(self) -> float:
        # Stamps may be ahead of the time of day, or behind it since the last edit.
        present = min(self._last_edit(), self._clock.now().timestamp())
        return max(0.0, present - self._known_for - LATE)
