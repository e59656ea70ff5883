"""How far behind the leader is, as far as it knows without asking anybody."""

from collections.abc import Sequence

from pos_gateway.events.outbox import Row, Term


class Lag:
    """What is written and not published. Set by the leader's thread, read by whoever asks."""

    def __init__(self) -> None:
        #: Events that have a position and are not confirmed yet.
        self.unpublished = 0
        #: When the oldest event that is not published was written (Unix time); None: none is known.
        self._since: float | None = None

    def age(self, now: float) -> float:
        """Seconds since the oldest event that is not published was written; 0: none is known."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def nothing_left(self) -> None:
        """All is published, or it is another's to publish."""
        self.unpublished, self._since = 0, None

    def are_left(self, term: Term, rows: Sequence[Row]) -> None:
        """These are the next to be published; there may be more behind them."""
        self.unpublished, self._since = term.assigned - term.published, rows[0].occurred_at

    def are_stored(self, term: Term, rows: Sequence[Row], stored: int, *, more: bool) -> None:
        """So many of them are.

        Args:
            term: as it is since.
            rows: as many as were at hand.
            stored: how many of them are published.
            more: there may be others behind them, written no earlier than the last of these.
        """
        if stored == len(rows) and not more:
            self.nothing_left()
        else:
            self.are_left(term, rows[min(stored, len(rows) - 1) :])
