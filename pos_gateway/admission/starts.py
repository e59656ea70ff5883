"""Starts of each merchant while messages lie unread: a merchant with far fewer than the others keeps up."""

from collections import Counter

#: Starts of a merchant on average from which starts are compared: of fewer, chance alone makes some merchants' few.
ENOUGH = 32
#: A merchant has few starts below this part of the average, by this divisor.
FEW = 4


class Starts:
    """Counts starts by merchant. Memory is bounded by the merchants counted since ``forget``."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self._total = 0

    def add(self, merchant_id: str) -> None:
        """A merchant's order starts."""
        self._of[merchant_id] += 1
        self._total += 1

    def forget(self) -> None:
        """Count anew."""
        self._of.clear()
        self._total = 0

    def are_few(self, merchant_id: str) -> bool:
        """Whether the merchant had far fewer starts than the average, and the average is known."""
        merchants = len(self._of)
        is_known = self._total >= ENOUGH * merchants
        return is_known and FEW * self._of[merchant_id] * merchants < self._total
