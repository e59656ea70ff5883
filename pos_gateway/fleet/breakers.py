"""Breakers that opened or closed here, to be reported to the fleet."""

from itertools import islice

#: Maximum breakers reported in one sync.
MAX_CHANGES = 200
#: Maximum breakers kept for a report; while Redis is away, the oldest are dropped.
KEPT = 10_000


class BreakerNews:
    """Each merchant's newest change. Times are seconds of a single monotonic clock."""

    def __init__(self) -> None:
        #: Merchant -> end of the open breaker; None: the breaker closed.
        self._pending: dict[str, float | None] = {}

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, merchant_id: object) -> bool:
        return merchant_id in self._pending

    def opened(self, merchant_id: str, until: float) -> None:
        self._put(merchant_id, until)

    def closed(self, merchant_id: str) -> None:
        self._put(merchant_id, None)

    def take(self) -> dict[str, float | None]:
        """Take at most ``MAX_CHANGES`` changes, to report now."""
        taken = dict(islice(self._pending.items(), MAX_CHANGES))
        for merchant_id in taken:
            del self._pending[merchant_id]
        return taken

    def put_back(self, taken: dict[str, float | None]) -> None:
        """Put back unreported changes, except of merchants with newer changes."""
        self._pending = {**taken, **self._pending}

    def _put(self, merchant_id: str, until: float | None) -> None:
        self._pending.pop(merchant_id, None)
        if len(self._pending) >= KEPT:
            del self._pending[next(iter(self._pending))]
        self._pending[merchant_id] = until
