"""Orders read of each merchant while messages lie unread: a merchant with few has few among the unread, too."""

from collections import Counter

#: Minimum orders of the average order's merchant before merchants are compared: of fewer, chance decides.
ENOUGH = 32
#: Counts are halved beyond this average: messages may lie unread for hours, and merchants change.
MOST = 4 * ENOUGH
#: A merchant has few orders below this part of the average, by this divisor.
FEW = 4


class Arrivals:
    """Counts orders by merchant. Memory is bounded by the merchants counted since ``forget``.

    The average is of orders: the number of orders of an order's merchant. Thousands of merchants with one order each
    do not change the average.
    """

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        #: All orders, and the sum of the squares of the merchants' orders.
        self.total = self._squares = 0

    def add(self, merchant_id: str) -> None:
        """A merchant's order has been read."""
        before = self._of[merchant_id]
        self._of[merchant_id] = before + 1
        self.total += 1
        self._squares += 2 * before + 1
        if self._squares > MOST * self.total:
            self._halve()

    def forget(self) -> None:
        """Count anew."""
        self._of.clear()
        self.total = self._squares = 0

    def are_few(self, merchant_id: str) -> bool | None:
        """Whether the merchant has far fewer orders than the average; None: too few are counted."""
        if self._squares <= ENOUGH * self.total:
            return None
        return FEW * self._of[merchant_id] * self.total < self._squares

    def _halve(self) -> None:
        self._of = Counter({key: number // 2 for key, number in self._of.items() if number > 1})
        self.total = sum(self._of.values())
        self._squares = sum(number * number for number in self._of.values())
