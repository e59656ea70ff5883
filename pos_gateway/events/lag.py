"""The leader's lag, as known without I/O."""

from collections.abc import Sequence

from pos_gateway.events.outbox import Row, Term


class EventLag:
    """Events recorded and not published. Set by the leader's thread, read by any thread."""

    def __init__(self) -> None:
        #: Number of unconfirmed events with a position.
        self.unpublished = 0
        #: Time of the oldest unpublished event's record (Unix time); None: unknown.
        self._since: float | None = None

    def age(self, now: float) -> float:
        """Seconds since the oldest unpublished event was recorded; 0: unknown."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def nothing_left(self) -> None:
        """All is published, or this worker does not lead."""
        self.unpublished, self._since = 0, None

    def are_left(self, term: Term, rows: Sequence[Row]) -> None:
        """These rows are published next; more rows may follow."""
        self.unpublished, self._since = term.assigned - term.published, rows[0].occurred_at

    def are_stored(self, term: Term, rows: Sequence[Row], stored: int, *, more: bool) -> None:
        """The first rows are published.

        Args:
            term: the term since then.
            rows: the batch's rows.
            stored: number of published rows.
            more: more rows may follow, recorded no earlier than the last row.
        """
        if stored == len(rows) and not more:
            self.nothing_left()
        else:
            self.are_left(term, rows[min(stored, len(rows) - 1) :])
