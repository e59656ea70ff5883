"""Finds the rows of a table edited since the last look; see ``stamps.py``."""

from collections.abc import Callable, Iterable

from pos_gateway.runtime.clock import Clock


class Edits:
    """Reports each edit of a table once. For one caller at a time.

    An edit of the first release, which locks no table, may become visible after an edit with a later
    stamp. Readers see that edit when their record expires.

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
        #: The highest stamp reported; None before the first look.
        self._highest: float | None = None

    def since(self) -> float:
        """The stamp after which edits are to be read now. Raises what ``last_edit`` does."""
        if self._highest is None:
            # Stamps may be ahead of the time of day, or behind it since the last edit.
            present = min(self._last_edit(), self._clock.now().timestamp())
            self._highest = max(0.0, present - self._known_for)
        return self._highest

    def report(self, edited: Iterable[tuple[str, float]]) -> None:
        """Report what was read: all rows with a higher stamp than ``since``, each with its stamp."""
        highest = self.since()
        for each, stamp in edited:
            self._on_edit(each, stamp)
            highest = max(highest, stamp)
        self._highest = highest
