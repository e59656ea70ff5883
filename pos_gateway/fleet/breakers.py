"""Breakers that opened or were closed here, until the fleet has heard of it."""

from itertools import islice

#: In one sync.
MOST = 200
#: Waiting to be told; while Redis is away, those that waited longest are let go.
KEPT = 10_000


class BreakerNews:
    """The newest of each merchant. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        #: Merchant -> until when it is open; None: it was closed.
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
        """Some of it, to be told now."""
        taken = dict(islice(self._pending.items(), MOST))
        for merchant_id in taken:
            del self._pending[merchant_id]
        return taken

    def put_back(self, taken: dict[str, float | None]) -> None:
        """It was not told; something newer may have come since."""
        self._pending = {**taken, **self._pending}

    def _put(self, merchant_id: str, until: float | None) -> None:
        self._pending.pop(merchant_id, None)
        if len(self._pending) >= KEPT:
            del self._pending[next(iter(self._pending))]
        self._pending[merchant_id] = until
