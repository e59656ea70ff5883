"""Breakers that opened or closed here, to be reported to the fleet."""

from itertools import islice

#: Maximum breakers reported in one sync.
MAX_CHANGES = 200
#: Maximum breakers kept for a report; while Redis is away, the oldest are dropped.
KEPT = 10_000


class BreakerNews(dict[str, float | None]):
    """Each merchant's newest change: the end of the open breaker; None: the breaker closed.

    Times are seconds of a single monotonic clock.
    """

    def put(self, merchant_id: str, until: float | None) -> None:
        """Keep a merchant's change as the newest."""
        self.pop(merchant_id, None)
        if len(self) >= KEPT:
            del self[next(iter(self))]
        self[merchant_id] = until

    def take(self) -> dict[str, float | None]:
        """Take at most ``MAX_CHANGES`` changes, to report now."""
        return {
            merchant_id: self.pop(merchant_id) for merchant_id in list(islice(self, MAX_CHANGES))
        }

    def put_back(self, taken: dict[str, float | None]) -> None:
        """Put back unreported changes, except of merchants with newer changes."""
        newer = dict(self)
        self.clear()
        self.update(taken | newer)
