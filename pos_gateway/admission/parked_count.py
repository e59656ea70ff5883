"""How many orders this worker has parked in the broker."""

from heapq import heappop, heappush

#: Ticks of a second: a merchant whose bundles are due every second would be counted twice, else.
TICKS = 10


class ParkedCount:
    """Orders and bundles that this worker has parked and that are not due yet.

    Its memory is bounded by the longest delay: one entry per merchant and tick.
    """

    def __init__(self) -> None:
        self.total = 0
        #: Messages that carry them.
        self.bundles = 0
        self._of: dict[str, int] = {}
        self._due: dict[int, dict[str, int]] = {}
        self._bundles_due: dict[int, int] = {}
        #: The ticks of ``_due``, the next first.
        self._ticks: list[int] = []

    def add(self, merchant_id: str, orders: int, due: float) -> None:
        """A bundle of ``orders`` is parked until ``due``."""
        self.total += orders
        self.bundles += 1
        self._of[merchant_id] = self._of.get(merchant_id, 0) + orders
        at = int(due * TICKS)
        tick = self._due.get(at)
        if tick is None:
            tick = self._due[at] = {}
            heappush(self._ticks, at)
        tick[merchant_id] = tick.get(merchant_id, 0) + orders
        self._bundles_due[at] = self._bundles_due.get(at, 0) + 1

    def of(self, merchant_id: str) -> int:
        """The merchant's parked orders."""
        return self._of.get(merchant_id, 0)

    def pass_time(self, now: float) -> None:
        """Drop what was due before this tick."""
        while self._ticks and self._ticks[0] < int(now * TICKS):
            at = heappop(self._ticks)
            self.bundles -= self._bundles_due.pop(at)
            for merchant_id, orders in self._due.pop(at).items():
                self.total -= orders
                self._of[merchant_id] -= orders
                if not self._of[merchant_id]:
                    del self._of[merchant_id]
