"""How many orders this worker has parked in the broker."""


class ParkedCount:
    """Orders and bundles that this worker has parked and that are not due yet.

    Its memory is bounded by the longest delay: one entry per merchant and second.
    """

    def __init__(self) -> None:
        self.total = 0
        #: Messages that carry them.
        self.bundles = 0
        self._of: dict[str, int] = {}
        self._due: dict[int, dict[str, int]] = {}
        self._bundles_due: dict[int, int] = {}
        self._second = 0

    def add(self, merchant_id: str, orders: int, due: float) -> None:
        """A bundle of ``orders`` is parked until ``due``."""
        self.total += orders
        self.bundles += 1
        self._of[merchant_id] = self._of.get(merchant_id, 0) + orders
        second = self._due.setdefault(int(due), {})
        second[merchant_id] = second.get(merchant_id, 0) + orders
        self._bundles_due[int(due)] = self._bundles_due.get(int(due), 0) + 1

    def of(self, merchant_id: str) -> int:
        """The merchant's parked orders."""
        return self._of.get(merchant_id, 0)

    def pass_time(self, now: float) -> None:
        """Drop what was due before this second."""
        if int(now) == self._second:
            return
        self._second = int(now)
        for second in [second for second in self._due if second < self._second]:
            self.bundles -= self._bundles_due.pop(second)
            for merchant_id, orders in self._due.pop(second).items():
                self.total -= orders
                self._of[merchant_id] -= orders
                if not self._of[merchant_id]:
                    del self._of[merchant_id]
