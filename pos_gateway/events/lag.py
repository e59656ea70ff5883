"""The leader's lag, as far as it knows without I/O."""

from collections.abc import Sequence

from pos_gateway.events.outbox import Row, Term


class EventLag:
    """Events recorded and not published. Set by the leader's thread, read by any."""

    def __init__(self) -> None:
        #: Events with a position that are not confirmed yet.
        self.unpublished = 0
        #: When the oldest unpublished event was recorded (Unix time); None: none is known.
        self._since: float | None = None

    def age(self, now: float) -> float:
        """Seconds since the oldest unpublished event was recorded; 0: none is known."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def nothing_left(self) -> None:
        """All is published, or this worker does not lead."""
        self.unpublished, self._since = 0, None

    def are_left(self, term: Term, rows: Sequence[Row]) -> None:
        """These rows are published next; there may be more after them."""
        self.unpublished, self._since = term.assigned - term.published, rows[0].occurred_at

    def are_stored(self, term: Term, rows: Sequence[Row], stored: int, *, more: bool) -> None:
        """The first rows are published.

        Args:
            term: the term since then.
            rows: the batch's rows.
            stored: how many of them are published.
            more: more may follow, recorded no earlier than the last of these.
        """
        if stored == len(rows) and not more:
            self.nothing_left()
        else:
            self.are_left(term, rows[min(stored, len(rows) - 1) :])
